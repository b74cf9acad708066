"""Pipelines on Spark: operators that turn committed inputs into a committed output, exactly once."""

# What opens its executor, by runtime; by name, because only who wants Spark waits for it.
SPARK = {"spark": "qo.spark.executor:open_executor"}
