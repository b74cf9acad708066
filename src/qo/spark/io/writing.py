"""Writes a frame to files below the attempt's own prefix, and measures it on the way.

One pass is enough: rows, and what expectations need, are counted while they are written; if only the number of rows is
needed, it comes from the files' footers. Spark decides how many files there are: shuffles end in few, large partitions
(adaptive execution), and small files are read together. The operator ``compact`` merges those that are still small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from qo.agent.operator_run import RunOutput
from qo.api.contract.task import Work
from qo.core.iceberg.iceberg_types import is_atomic
from qo.core.pipeline.columns import Column
from qo.core.pipeline.field_ids import assign_field_ids
from qo.core.pipeline.file_stats import FileStats
from qo.errors import QoError, UsageError
from qo.spark.io.appending import uncommitted_rows
from qo.spark.io.bucketing import BUCKET, Bucketed, bucket_directory
from qo.spark.io.columns import column_bodies, columns_from_bodies, merge_columns, writable_columns
from qo.spark.io.files import File, Files

APPEND = "append"
FILES_MAX = 10_000  # As many as one commit takes.


@dataclass(frozen=True, slots=True)
class Measure:
    """An aggregate over all rows of an output, computed while they are written."""

    name: str
    column: SparkColumn


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    rows: int
    bytes: int
    files: tuple[File, ...]
    columns: tuple[Column, ...]
    # Rows by partition key, where one write makes several partitions; None: it makes one.
    partitions: Mapping[str, int] | None = None
    observed: dict[str, Any] = field(default_factory=dict[str, Any])  # By measure.


def write(
    spark: SparkSession,
    frame: DataFrame | Bucketed,
    output: RunOutput,
    files: Files,
    measures: Sequence[Measure],
    work: Work,
) -> WrittenOutput:
    """Write one output of an attempt, and record its files, columns and statistics in it.

    With ``append`` and a unique key, write only rows that are not committed yet. Without rows there are no files, but
    the columns are recorded. Raises UsageError, before anything is written, for columns that cannot be written or do
    not fit those of the dataset.
    """
    if isinstance(frame, Bucketed):
        return _write_buckets(frame, output, files, measures, work)
    columns = writable_columns(frame.schema)
    ids = field_ids_of(columns)
    merge_columns(columns_from_bodies(output.details.columns), columns, work.drift)
    if work.update_strategy == APPEND and work.unique_key:
        label = f"{work.dag}.{work.job}"
        frame = uncommitted_rows(spark, frame, work.unique_key, output, files, label)
    standard = _standard_measures(frame, work)
    types = {each.name.lower(): each.type for each in columns}
    if measures or len(standard) > 1 or not files.counts_rows:
        values, new_files = _write_and_observe(frame, output, files, [*standard, *measures], ids)
        stats = files.measure(output.prefix, new_files, types)
    else:
        # To count rows while they are written takes longer than a small write itself: the footers have the number.
        files.write(frame, output.prefix, ids)
        new_files = files.list_files(output.prefix)
        stats = files.measure(output.prefix, new_files, types)
        values = [_count_rows(output, new_files, stats)]
    rows, *edges = values[: len(standard)]
    _check_count(len(new_files), "the output")
    if rows == 0 and new_files:
        files.delete(output.prefix)  # Spark writes a file without rows.
        new_files = []
    for at, (each, its) in enumerate(zip(new_files, stats, strict=False)):
        output.add(each.name, size=each.size, rows=rows if at == 0 else None, stats=its)
    output.columns = column_bodies(columns)
    output.stats |= {each.name: json_value(value) for each, value in zip(standard[1:], edges, strict=True)}
    observed = {each.name: value for each, value in zip(measures, values[len(standard) :], strict=True)}
    size = sum(each.size for each in new_files)
    return WrittenOutput(rows, size, tuple(new_files), tuple(columns), observed=observed)


def _write_buckets(
    frame: Bucketed, output: RunOutput, files: Files, measures: Sequence[Measure], work: Work
) -> WrittenOutput:
    """Write all buckets at once, and record each as a partition; those that were emptied as partitions without rows."""
    columns = writable_columns(frame.rows.schema)
    merge_columns(columns_from_bodies(output.details.columns), columns, work.drift)
    ids, types = field_ids_of(columns), {each.name.lower(): each.type for each in columns}
    values, new_files = _write_and_observe(frame.frame, output, files, measures, ids, BUCKET, frame.plain)
    measured_files = zip(new_files, files.measure(output.prefix, new_files, types), strict=True)
    stats = {each.name: its for each, its in measured_files}
    by_directory: dict[str, list[File]] = {bucket_directory(each): [] for each in frame.emptied}
    for each in new_files:
        by_directory.setdefault(each.name.partition("/")[0], []).append(each)
    partitions: dict[str, int] = {}
    for directory, own in sorted(by_directory.items()):
        key = frame.key(int(directory.partition("=")[2]))
        _check_count(len(own), f"partition {key} of the output")
        part = output.partition(key, directory)
        partitions[key] = _count_rows(output, own, [stats[each.name] for each in own])
        for at, each in enumerate(own):
            rows = partitions[key] if at == 0 else None
            part.add(each.name.partition("/")[2], size=each.size, rows=rows, stats=stats[each.name])
        part.columns = column_bodies(columns)
    if not partitions:
        output.skip()
    observed = {each.name: value for each, value in zip(measures, values, strict=True)}
    size = sum(each.size for each in new_files)
    return WrittenOutput(sum(partitions.values()), size, tuple(new_files), tuple(columns), partitions, observed)


def _check_count(files: int, what: str) -> None:
    if files > FILES_MAX:
        raise UsageError(
            f"{what} has {files} files, and a commit takes {FILES_MAX}: repartition or coalesce the frame"
        )


def _standard_measures(frame: DataFrame, work: Work) -> list[Measure]:
    """Return what is measured of every output: its number of rows, and the range of its cursor."""
    measures = [Measure("rows", F.count(F.lit(1)))]
    name = work.cursor_column
    if name is None:
        return measures
    if name.lower() not in {each.lower() for each in frame.columns}:
        if len(work.outputs) > 1:
            return measures  # Another output may have the column.
        raise UsageError(f"cursor_column: the output has no column {name!r}: it has {', '.join(frame.columns)}")
    column = F.col("`" + name.replace("`", "``") + "`")
    return [*measures, Measure("cursor_min", F.min(column)), Measure("cursor_max", F.max(column))]


def _write_and_observe(
    frame: DataFrame,
    output: RunOutput,
    files: Files,
    measures: Sequence[Measure],
    ids: Mapping[str, int] | None,
    by: str | None = None,
    plain: Sequence[str] = (),
) -> tuple[list[Any], list[File]]:
    """Write; return the value of each measure, and the files."""
    if not measures:
        files.write(frame, output.prefix, ids, by, plain)
        return [], files.list_files(output.prefix)
    observation = Observation()
    # Generated names: Spark wants each once, and those of measures may be anything.
    columns = [each.column.alias(f"m{at}") for at, each in enumerate(measures)]
    files.write(frame.observe(observation, *columns), output.prefix, ids, by, plain)
    values = observation.get
    return [values[f"m{at}"] for at in range(len(measures))], files.list_files(output.prefix)


def _count_rows(output: RunOutput, files: Sequence[File], stats: Sequence[FileStats | None]) -> int:
    """Return the rows of all files. Raises QoError for a file that is damaged."""
    rows = 0
    for file, its in zip(files, stats, strict=True):
        if its is None:
            raise QoError(f"the file {output.prefix}/{file.name} was written just now, and cannot be read")
        rows += its.rows
    return rows


def field_ids_of(columns: Sequence[Column]) -> dict[str, int] | None:
    """Return the ids of columns, by name, that files are to have; None if they are to have none.

    Fields within columns get no ids, and readers take either all ids of a file or none.
    """
    return (
        assign_field_ids(each.name for each in columns) if all(is_atomic(each.type) for each in columns) else None
    )


def json_value(value: Any) -> Any:
    """Return a value of a row as JSON can hold it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            return repr(value)[:200]
