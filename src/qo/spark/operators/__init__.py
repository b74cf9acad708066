"""Operators on frames: the built-in ones, and functions of users."""
