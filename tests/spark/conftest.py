"""The one session of these tests."""

from sparks import spark

__all__ = ["spark"]
