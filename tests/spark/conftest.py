"""The one session of these tests."""

from support.spark.session import spark

__all__ = ["spark"]
