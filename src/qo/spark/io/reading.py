"""Inputs as frames: exactly the files that were committed when the task began."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from qo.agent.operator_run import RunInput
from qo.api.contract.task import InputMode, WorkInput
from qo.errors import QoError, UsageError
from qo.spark.engine.errors import full_text
from qo.spark.io.columns import of_bodies, struct_of
from qo.spark.io.files import Files, Trouble, Wrong, trouble
from qo.worker.api.signals import Reschedule

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # For an input that is about to be made.


class FileMissing(QoError):
    """A committed file is not there now: another attempt may find it."""


def frame(spark: SparkSession, given: RunInput, files: Files) -> DataFrame:
    """The input. Its rows stay the same whatever is committed later; without any, it is empty.

    Columns that were added later are null in older rows. Raises UsageError for files that cannot be read together,
    for a ``where`` that does not fit, and for one that is there and says nothing of its columns; FileMissing;
    Reschedule for an input that is not there yet, because the job that makes it may still be at it: nothing keeps a
    task back until what it reads beside is there.
    """
    columns, uris = of_bodies(given.given.columns), list(given.files)
    if not uris and not columns:
        if _may_still_come(given.given):
            log.info("%r has never had data yet: the job that makes it comes first", given.name)
            # At no cost: it is nobody's failure.
            raise Reschedule(AGAIN_S, reason=f"waits for {given.name!r}, which has never had data yet")
        raise UsageError(
            f"{given.name!r} is there without files, so its columns are not known: let the job that makes it write a "
            "file, if one without rows, or skip its output, which starts nothing; read nothing of a source that only "
            "says when"
        )
    found = of_files(spark, uris, struct_of(columns) if columns else None, files, given.name)
    return chosen(found, given.where, given.name)


def _may_still_come(given: WorkInput) -> bool:
    """Not so for what the task was made for, once that is there: another attempt would find the same."""
    match given.mode:
        case InputMode.WHOLE:
            return True
        case InputMode.PARTITION:
            return given.revision is None  # Announced, and not committed.
        case InputMode.CURSOR:
            return False


def of_files(
    spark: SparkSession, uris: Sequence[str], schema: StructType | None, files: Files, name: str
) -> DataFrame:
    """The committed files of a dataset, however many; the name is for errors."""
    if not uris:
        if schema is None:
            raise UsageError(
                f"{name!r} has never had data, so its columns are not known: run the job that makes it first"
            )
        # Made of a plan alone, without sending rows that are not there.
        return spark.range(0).select(*(F.lit(None).cast(each.dataType).alias(each.name) for each in schema))
    try:
        return files.read(spark, uris, schema)
    except UsageError as error:
        raise UsageError(f"{name!r} cannot be read: {error}") from error
    except Exception as error:
        found = trouble(full_text(error))
        if found is None:
            raise
        raise _said(found, name) from None


def chosen(rows: DataFrame, where: Mapping[str, Any], name: str) -> DataFrame:
    """The rows whose fields have these values, or one of these. Nothing equals null but null."""
    # Asked for only where it matters: the columns come from Spark, which takes its time to tell them.
    known = {each.lower() for each in rows.columns} if where else set[str]()
    for field, wanted in where.items():
        if field.lower() not in known:
            there = ", ".join(rows.columns)
            raise UsageError(f"where: {name!r} has no column {field!r}: it has {there}")
        rows = rows.where(_one_of(_column(field), _values(field, wanted)))
    return rows


def _values(field: str, wanted: Any) -> list[Any]:
    values = cast("list[Any]", wanted) if isinstance(wanted, list) else [wanted]
    if any(isinstance(each, list | dict) for each in values):
        raise UsageError(f"where: {field!r} must be a scalar or a list of scalars, not {wanted!r}")
    return values


def _one_of(column: Column, values: Sequence[Any]) -> Column:
    # Each by itself: Spark then casts each to the column's type, and not all to one that holds them all.
    return reduce(Column.__or__, (column.eqNullSafe(F.lit(each)) for each in values), F.lit(False))


def _column(name: str) -> Column:
    """A column by its very name: dots in it are no way into a struct."""
    return F.col("`" + name.replace("`", "``") + "`")


# What is wrong with a file


def failure(error: BaseException, datasets: Mapping[str, str]) -> QoError | None:
    """What to raise for an error of Spark that is about a committed file; None: it is about something else.

    Frames read when their rows are wanted, so this is for whoever asks for them. ``datasets``: names by dataset id,
    which is part of where files are. A file that is gone may be back: FileMissing is retried. One that holds
    something else than it should, does so in the next attempt, too: UsageError.
    """
    found = trouble(full_text(error))
    if found is None:
        return None
    name = next((name for id_, name in datasets.items() if f"/{id_}/" in found.uri), None)
    return _said(found, name)


def _said(found: Trouble, name: str | None) -> QoError:
    of = f" of {name!r}" if name is not None else ""
    if found.wrong is Wrong.MISSING:
        hint = (
            "if its version serves no more, qo collect --retired has deleted it, and what serves now has tasks of its "
            "own: cancel this one"
        )
        return FileMissing(f"the file {found.uri}{of} is committed but not there: {found.cause}; {hint}")
    hint = "make the partition again (qo invalidate), or put the file back as it was"
    return UsageError(f"the file {found.uri}{of} cannot be read: {found.cause}; {hint}")
