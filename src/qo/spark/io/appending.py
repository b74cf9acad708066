"""Appending exactly once: of rows with a key that is committed already, nothing is added.

The rows are compared with what is committed now. If somebody commits to the same output meanwhile, the dispatcher
refuses the commit (``based_on``), and the attempt is made again, at no cost to the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from qo.agent.operator_run import RunOutput
from qo.api.contract.task import Piece
from qo.errors import UsageError
from qo.spark.io.files import Files
from qo.spark.io.reading import of_files

_COMMITTED = "__qo_committed_"


def fresh(
    spark: SparkSession, frame: DataFrame, keys: Sequence[str], output: RunOutput, files: Files, name: str
) -> DataFrame:
    """The rows whose key is not committed yet, each key once. Null is a value like any other.

    Which row stays of several with one key is not said. Sets ``output.based_on``. Raises UsageError for a key that
    is no column of the frame.
    """
    struct = _key_struct(frame, keys)
    revision, pieces = output.standing()
    output.based_on = revision
    once = frame.dropDuplicates(list(struct.names))
    uris = uris_of(list(pieces))
    if not uris:
        return once
    committed = of_files(spark, uris, struct, files, name)
    renamed = committed.toDF(*(f"{_COMMITTED}{at}" for at in range(len(keys))))
    same = (_column(once, key).eqNullSafe(F.col(f"{_COMMITTED}{at}")) for at, key in enumerate(struct.names))
    return once.join(renamed, reduce(Column.__and__, same), "left_anti")


def uris_of(pieces: Sequence[Piece]) -> list[str]:
    """Every file of these pieces."""
    return [
        name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
        for piece in pieces
        for name in piece.files
    ]


def _key_struct(frame: DataFrame, keys: Sequence[str]) -> StructType:
    """The key columns, as the frame has them."""
    known = {each.name.lower(): each for each in frame.schema}
    if missing := [key for key in keys if key.lower() not in known]:
        there = ", ".join(frame.columns)
        raise UsageError(f"unique_key: the output has no column {', '.join(missing)}: it has {there}")
    found = [known[key.lower()] for key in keys]
    return StructType([StructField(each.name, each.dataType, nullable=True) for each in found])


def _column(frame: DataFrame, name: str) -> Column:
    return frame["`" + name.replace("`", "``") + "`"]
