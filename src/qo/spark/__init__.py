"""Pipelines on Spark: operators that turn committed inputs into a committed output, exactly once."""

# The function that opens the executor of a runtime; by name, so that PySpark is loaded only if needed.
SPARK = {"spark": "qo.spark.executor:open_executor"}
