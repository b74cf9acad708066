"""Appends exactly once: rows whose key is committed already are left out.

The rows are compared with what is committed now. If another attempt commits to the same output meanwhile, the
dispatcher refuses the commit (``based_on``), and the task is tried again at no cost.
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
from qo.spark.io.input_frames import read_files

_COMMITTED = "__qo_committed_"


def uncommitted_rows(
    spark: SparkSession, frame: DataFrame, keys: Sequence[str], output: RunOutput, files: Files, name: str
) -> DataFrame:
    """Return the rows whose key is not committed yet, each key once. Null is a value like any other.

    Of several rows with one key, any may stay. Sets ``output.based_on``. Raises UsageError for a key that
    is no column of the frame.
    """
    struct = _key_struct(frame, keys)
    revision, pieces = output.standing()
    output.based_on = revision
    distinct = frame.dropDuplicates(list(struct.names))
    uris = uris_of(list(pieces))
    if not uris:
        return distinct
    committed = read_files(spark, uris, struct, files, name)
    renamed = committed.toDF(*(f"{_COMMITTED}{at}" for at in range(len(keys))))
    same = (_column(distinct, key).eqNullSafe(F.col(f"{_COMMITTED}{at}")) for at, key in enumerate(struct.names))
    return distinct.join(renamed, reduce(Column.__and__, same), "left_anti")


def uris_of(pieces: Sequence[Piece]) -> list[str]:
    """Return the URI of every file of these pieces."""
    return [
        name if ":/" in name else f"{(piece.location or '').rstrip('/')}/{name}"
        for piece in pieces
        for name in piece.files
    ]


def _key_struct(frame: DataFrame, keys: Sequence[str]) -> StructType:
    """Return the key columns with the types of the frame."""
    fields = {each.name.lower(): each for each in frame.schema}
    if missing := [key for key in keys if key.lower() not in fields]:
        there = ", ".join(frame.columns)
        raise UsageError(f"unique_key: the output has no column {', '.join(missing)}: it has {there}")
    key_fields = [fields[key.lower()] for key in keys]
    return StructType([StructField(each.name, each.dataType, nullable=True) for each in key_fields])


def _column(frame: DataFrame, name: str) -> Column:
    return frame["`" + name.replace("`", "``") + "`"]
