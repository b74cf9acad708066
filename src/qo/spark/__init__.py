"""Pipelines on Spark: operators that turn committed inputs into a committed output, exactly once."""
