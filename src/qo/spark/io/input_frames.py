"""Reads inputs as frames: exactly the files that were committed when the task began."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.agent.run_input import RunInput
from qo.api.contract.task import InputMode, WorkInput
from qo.errors import QoError, UsageError
from qo.spark.engine.error_translation import full_text
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.files import FileProblem, Files, ProblemKind, find_file_problem
from qo.worker.api.signals import Reschedule

log = logging.getLogger(__name__)

RETRY_S = 5.0  # For an input that may be about to be made.


class FileMissing(QoError):
    """A committed file is missing now; another attempt may find it."""


def read_input(spark: SparkSession, source: RunInput, files: Files) -> DataFrame:
    """Return an input. Its rows stay the same whatever is committed later; without files, it is empty.

    Columns that were added later are null in older rows. Raises UsageError for files that cannot be read together, for
    a ``where`` that does not fit, and for an input that is committed without files or columns; FileMissing; and
    Reschedule for an input that does not exist yet, because the job that makes it may still run: a task does not wait
    for the inputs that it reads beside.
    """
    columns, uris = columns_from_bodies(source.details.columns), list(source.files)
    if not uris and not columns:
        if _may_still_come(source.details):
            log.info("%r has never had data yet: the job that makes it comes first", source.name)
            # A reschedule, which costs no attempt: nothing has failed.
            raise Reschedule(RETRY_S, reason=f"waits for {source.name!r}, which has never had data yet")
        raise UsageError(
            f"{source.name!r} is there without files, so its columns are not known: let the job that makes it write a "
            "file, if one without rows, or skip its output, which starts nothing; read nothing of a source that only "
            "says when"
        )
    rows = read_files(spark, uris, struct_of(columns) if columns else None, files, source.name)
    return filter_rows(rows, source.where, source.name)


def _may_still_come(source: WorkInput) -> bool:
    """Whether another attempt may find data. Not in the input that the task was made for, once it is committed."""
    match source.mode:
        case InputMode.WHOLE | InputMode.CHANGES:
            return True
        case InputMode.PARTITION:
            return source.revision is None  # Announced, and not committed.
        case InputMode.CURSOR:
            return False


def read_files(
    spark: SparkSession, uris: Sequence[str], schema: StructType | None, files: Files, name: str
) -> DataFrame:
    """Return the rows of a dataset's committed files, or none without files. ``name`` is for errors."""
    if not uris:
        if schema is None:
            raise UsageError(
                f"{name!r} has never had data, so its columns are not known: run the job that makes it first"
            )
        # A plan alone; ``createDataFrame`` would send data to the JVM.
        return spark.range(0).select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in schema))
    try:
        return files.read(spark, uris, schema)
    except UsageError as error:
        raise UsageError(f"{name!r} cannot be read: {error}") from error
    except Exception as error:
        problem = find_file_problem(full_text(error))
        if problem is None:
            raise
        raise _file_error(problem, name) from None


def filter_rows(rows: DataFrame, where: Mapping[str, Any], name: str) -> DataFrame:
    """Return the rows whose fields have these values, or one of several. Only null equals null."""
    # Spark takes its time to tell the columns: ask only if needed.
    columns = {each.lower() for each in rows.columns} if where else set[str]()
    for field, value in where.items():
        if field.lower() not in columns:
            raise UsageError(f"where: {name!r} has no column {field!r}: it has {', '.join(rows.columns)}")
        rows = rows.where(_one_of(_column(field), _values(field, value)))
    return rows


def _values(field: str, value: Any) -> list[Any]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    if any(isinstance(each, list | dict) for each in values):
        raise UsageError(f"where: {field!r} must be a scalar or a list of scalars, not {value!r}")
    return values


def _one_of(column: Column, values: Sequence[Any]) -> Column:
    # One comparison for each value: with ``isin`` Spark would cast all of them to one common type.
    return reduce(Column.__or__, (column.eqNullSafe(F.lit(each)) for each in values), F.lit(False))


def _column(name: str) -> Column:
    """Return a column by its exact name: a dot in it does not lead into a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


def input_error(error: BaseException, datasets: Mapping[str, str]) -> QoError | None:
    """Return what to raise for an error of Spark about a committed file; None if it is about something else.

    Frames are read lazily, so the caller is whoever uses the rows. ``datasets``: names by dataset id, which is part of
    the path of a file. A missing file may come back: FileMissing is retried. A corrupt one stays so: UsageError.
    """
    problem = find_file_problem(full_text(error))
    if problem is None:
        return None
    name = next((name for id_, name in datasets.items() if f"/{id_}/" in problem.uri), None)
    return _file_error(problem, name)


def _file_error(problem: FileProblem, name: str | None) -> QoError:
    of = f" of {name!r}" if name is not None else ""
    if problem.kind is ProblemKind.MISSING:
        hint = (
            "if its version serves no more, qo collect --retired has deleted it, and what serves now has tasks of its "
            "own: cancel this one"
        )
        return FileMissing(f"the file {problem.uri}{of} is committed but not there: {problem.cause}; {hint}")
    hint = "make the partition again (qo invalidate), or put the file back as it was"
    return UsageError(f"the file {problem.uri}{of} cannot be read: {problem.cause}; {hint}")
