"""Spark sessions, clusters and attempts for tests."""
