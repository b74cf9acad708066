"""``stop()`` of a session or context raises an error in operators.

Scripts stop their session at the end. All attempts of a worker share one context, so an operator that did the same
would end the tasks of all others.
"""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql import SparkSession

from qo.errors import UsageError


def forbid_stop(target: SparkSession | SparkContext) -> None:
    """Make ``target.stop()`` raise UsageError."""
    target.stop = _refuse_stop


def allow_stop(target: SparkSession | SparkContext) -> None:
    """Undo ``forbid_stop``, if it was called."""
    vars(target).pop("stop", None)


def _refuse_stop() -> None:
    raise UsageError("an operator must not stop the Spark session: the worker's other tasks run in it")
