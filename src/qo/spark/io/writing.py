"""Outputs: a frame becomes files below the attempt's own prefix, and is measured on the way.

Everything is known after one pass: rows and what expectations ask for are counted while the rows go by, or, where
nothing but the rows is wanted, told by the files themselves. How many files there are is Spark's doing: shuffles end in
few and large partitions (adaptive execution), and small files are read together; what still comes in crumbs is for the
operator ``compact``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from qo.agent.operator_run import RunOutput
from qo.api.contract.task import Work
from qo.core.pipeline.columns import Column
from qo.errors import UsageError
from qo.spark.io.appending import fresh
from qo.spark.io.columns import bodies, of_bodies, settled, writable
from qo.spark.io.files import File, Files

APPEND = "append"
FILES_MAX = 10_000  # What a commit takes.


@dataclass(frozen=True, slots=True)
class Measure:
    """Something to find out about the rows while they are written: an aggregate over all of them."""

    name: str
    column: SparkColumn


@dataclass(frozen=True, slots=True)
class Written:
    rows: int
    bytes: int
    files: tuple[File, ...]
    columns: tuple[Column, ...]
    observed: dict[str, Any] = field(default_factory=dict[str, Any])  # By measure.


def write(
    spark: SparkSession,
    frame: DataFrame,
    output: RunOutput,
    files: Files,
    measures: Sequence[Measure],
    work: Work,
) -> Written:
    """Write one output of an attempt, and fill in what the dispatcher is told of it.

    With ``append`` and a unique key, only what is not committed yet. No rows: no files, but the columns are kept.
    Raises UsageError for columns that cannot be written or are not those of the dataset, before anything is written.
    """
    columns = writable(frame.schema)
    settled(of_bodies(output.given.columns), columns, work.drift)
    if work.update_strategy == APPEND and work.unique_key:
        label = f"{work.dag}.{work.job}"
        frame = fresh(spark, frame, work.unique_key, output, files, label)
    own = _own(frame, work)
    if measures or len(own) > 1 or files.count is None:
        values, made = _observed(frame, output, files, [*own, *measures])
    else:
        values, made = _told(frame, output, files, files.count)
    rows, *edges = values[: len(own)]
    if len(made) > FILES_MAX:
        raise UsageError(
            f"the output has {len(made)} files, and a commit takes {FILES_MAX}: repartition or coalesce the frame"
        )
    if rows == 0 and made:
        files.delete(output.prefix)  # Spark writes one without rows.
        made = []
    for at, each in enumerate(made):
        output.add(each.name, size=each.size, rows=rows if at == 0 else None)
    output.columns = bodies(columns)
    output.stats |= {each.name: plain(value) for each, value in zip(own[1:], edges, strict=True)}
    observed = {each.name: value for each, value in zip(measures, values[len(own) :], strict=True)}
    return Written(rows, sum(each.size for each in made), tuple(made), tuple(columns), observed)


def _own(frame: DataFrame, work: Work) -> list[Measure]:
    """What is measured of every output: its rows, and where its cursor begins and ends."""
    found = [Measure("rows", F.count(F.lit(1)))]
    wanted = work.cursor_column
    if wanted is None:
        return found
    if wanted.lower() not in {each.lower() for each in frame.columns}:
        if len(work.outputs) > 1:
            return found  # It may be a column of another output.
        raise UsageError(f"cursor_column: the output has no column {wanted!r}: it has {', '.join(frame.columns)}")
    column = F.col("`" + wanted.replace("`", "``") + "`")
    return [*found, Measure("cursor_min", F.min(column)), Measure("cursor_max", F.max(column))]


def _observed(
    frame: DataFrame, output: RunOutput, files: Files, measures: Sequence[Measure]
) -> tuple[list[Any], list[File]]:
    """Write; what was seen of the rows meanwhile, measure by measure, and the files."""
    seen = Observation()
    # Names of our own: those of measures may be anything, and Spark wants each once.
    wanted = [each.column.alias(f"m{at}") for at, each in enumerate(measures)]
    files.write(frame.observe(seen, *wanted), output.prefix)
    values = seen.get
    return [values[f"m{at}"] for at in range(len(measures))], files.listed(output.prefix)


def _told(
    frame: DataFrame, output: RunOutput, files: Files, count: Callable[[str, Sequence[File]], int]
) -> tuple[list[Any], list[File]]:
    """Write, and ask the files for their rows: to count them on the way takes longer than a small write itself."""
    files.write(frame, output.prefix)
    made = files.listed(output.prefix)
    return [count(output.prefix, made)], made


def plain(value: Any) -> Any:
    """A value of a row as JSON has it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return repr(value)[:200]
