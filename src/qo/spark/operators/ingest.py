"""ingest: files as they arrive, of another's making, become rows of a dataset.

The files are those of the input, as a file source announces them, or those of ``path``, which is a pattern. Columns are
declared in the job's config, or taken from the first files and kept: from then on they are the columns of the output,
and a file with others is refused. With ``drift: add`` columns are found by name: those that a file lacks are null in
its rows, and new ones are taken up unless the columns are declared. So the order in which files come changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import cast

from pyspark.errors import AnalysisException
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from qo.agent.dataset_files import located
from qo.core.pipeline.columns import Column
from qo.errors import UsageError
from qo.pipeline.operators.spark import PLACEHOLDERS
from qo.spark.engine.errors import BadData, full_text
from qo.spark.io.columns import struct_of
from qo.spark.io.files import exactly
from qo.spark.operators import landing, staging
from qo.spark.operators.context import Context, Frames
from qo.spark.operators.staging import ObjectGone
from qo.spark.operators.table_files import (
    ADD,
    CORRUPT,
    adds_columns,
    by_header,
    has_header,
    is_declared,
    label,
    listed,
    quoted,
    read_strictly,
    reader,
)


def run(context: Context) -> Frames:
    output = context.only_output()
    files, schema = files_of(context), _schema(context)
    if gone := landing.missing_files(context, files):
        if not landing.keeps_rows(context):
            raise landing.gone_error(context, gone[0])
        return {output: landing.kept_rows(context, gone, schema)}
    uris = _readable(context, files)
    if not uris:
        if schema is None:
            raise UsageError(
                f"{context.run.work.job} has no file to learn its columns from: declare its 'columns'"
            )
        return {output: context.frame([], schema)}
    context.said["files_read"] = len(uris)
    # Where Spark is elsewhere, or in a bucket, it finds out itself; at once, or when the rows are wanted.
    context.diagnoses.append(lambda error: landing.missing_file_error(context, error))
    try:
        return {output: read(context, uris, schema)}
    except Exception as error:
        if (gone_error := landing.missing_file_error(context, error)) is not None:
            raise gone_error from None
        raise


def _readable(context: Context, files: Sequence[str]) -> list[str]:
    try:
        return staging.readable(context, files)
    except ObjectGone as error:
        raise landing.gone_error(context, error.uri) from None


def files_of(context: Context) -> list[str]:
    """As patterns. Of these only ``path`` may match more than a file: names of files that landed are names."""
    path = context.config.get("path")
    if path is not None:
        return [located(_filled(str(path), context), exactly(str(Path.cwd())))]
    found = [exactly(uri) for name in context.inputs for uri in context.run.input(name).files]
    if not found and not context.run.work.inputs:
        raise UsageError(f"{context.run.work.job} has neither an input with files nor a 'path' in its config")
    return found


def read(context: Context, uris: Sequence[str], schema: StructType | None) -> DataFrame:
    format_ = str(context.config["format"])
    if format_ == "text":
        return context.spark.read.text(list(uris))
    if has_header(context) and adds_columns(context):
        return _read_by_header(context, uris, schema)
    if schema is not None and not _is_compared(context):
        return read_strictly(context, uris, schema)
    found = _infer(context, uris)
    if schema is None:
        _require_columns(uris, found)
        return read_strictly(context, uris, found)
    if not is_declared(context) and adds_columns(context):
        schema = _joined(schema, found)
    _compare(context, uris, schema, found)
    return read_strictly(context, uris, schema)


def _is_compared(context: Context) -> bool:
    """Whether the columns of files are looked at beforehand. The first line of CSV is while it is read."""
    format_ = context.config["format"]
    return format_ == "parquet" or (not is_declared(context) and (format_ == "json" or adds_columns(context)))


# CSV whose columns are found by name


def _read_by_header(context: Context, uris: Sequence[str], known: StructType | None) -> DataFrame:
    """Files with the same first line are read together, each value by the name above it."""
    groups = by_header(context, uris)
    if known is not None:
        groups.pop((), None)  # An empty file has no rows.
        if not groups:
            return context.frame([], known)
    schemas = {header: _schema_of_header(context, header, files, known) for header, files in groups.items()}
    every = _all_columns(schemas.values(), known, groups, takes_new=not is_declared(context))
    frames: list[DataFrame] = []
    for header, files in groups.items():
        _note_differences(context, header, every)
        names = {field.name.lower() for field in schemas[header]}
        rows = read_strictly(context, files, schemas[header])
        frames.append(rows.select(*(_column(field, names) for field in every)))
    return reduce(DataFrame.unionAll, frames)


def _column(field: StructField, there: set[str]) -> SparkColumn:
    if field.name.lower() in there:
        return F.col(quoted(field.name))
    return F.lit(None).cast(field.dataType).alias(field.name)


def _schema_of_header(
    context: Context, header: Sequence[str], files: Sequence[str], known: StructType | None
) -> StructType:
    """The columns of these files in their order, with the types that are known."""
    types = {field.name.lower(): field for field in known or ()}
    if is_declared(context):
        # What nobody asked for is read all the same, as text: a row that was cut off must not look whole.
        found = StructType([StructField(name, StringType()) for name in header])
    elif all(name.lower() in types for name in header):
        found = StructType([types[name.lower()] for name in header])
    else:
        found = _infer(context, files)
    _require_columns(files, found)
    if known is not None and not any(name.lower() in types for name in header):
        raise BadData(
            f"{label(files)} has none of the columns {listed(known.names)}: it has {', '.join(header)}; it is a file "
            "of another kind, or its first line does not name the columns"
        )
    return StructType([types.get(field.name.lower(), field) for field in found])


def _all_columns(
    schemas: Iterable[StructType],
    known: StructType | None,
    groups: dict[tuple[str, ...], list[str]],
    *,
    takes_new: bool,
) -> StructType:
    """Those that are known, and unless they are declared, those that are new."""
    every = {field.name.lower(): field for field in known or ()}
    for schema, files in zip(schemas, groups.values(), strict=True):
        for field in schema if takes_new else ():
            other = every.setdefault(field.name.lower(), field)
            if other.dataType != field.dataType:
                raise BadData(
                    f"column {field.name!r} is {field.dataType.simpleString()} in {label(files)} and "
                    f"{other.dataType.simpleString()} in other files: declare the job's 'columns'"
                )
    return StructType(list(every.values()))


def _note_differences(context: Context, header: Sequence[str], every: StructType) -> None:
    """For the task's result: columns that are null because a file lacks them, and those that were left out."""
    there, wanted = {name.lower() for name in header}, {field.name.lower() for field in every}
    for name, columns in {
        "columns_null": [field.name for field in every if field.name.lower() not in there],
        "columns_not_read": [each for each in header if each.lower() not in wanted],
    }.items():
        if columns:
            context.said[name] = sorted({*context.said.get(name, ()), *columns})


# Columns


def _infer(context: Context, uris: Sequence[str]) -> StructType:
    """The columns that the files have. Spark counts rows that it cannot read among them."""
    try:
        fields = reader(context, infer=True).load(list(uris)).schema
    except AnalysisException as error:
        if "UNABLE_TO_INFER_SCHEMA" not in full_text(error):
            raise
        raise BadData(f"{label(uris)} is empty, and no {context.config['format']} file: write it again") from None
    return StructType([field for field in fields if field.name != CORRUPT])


def _require_columns(uris: Sequence[str], found: StructType) -> None:
    if not found.fields:
        raise BadData(
            f"{label(uris)} is empty, and no file before it has told the columns: declare the job's 'columns', or "
            "replay the task when another has"
        )


def _schema(context: Context) -> StructType | None:
    """Declared, or else as the output has them already; None: nobody knows yet."""
    if context.config.get("format") == "text":
        return StructType([StructField("value", StringType())])
    declared = context.config.get("columns")
    if declared:
        named = (f"{quoted(str(each['name']))} {each['type']}" for each in declared)
        return cast("StructType", StructType.fromDDL(", ".join(named)))
    known = context.run.outputs[0].given.columns
    return struct_of([Column(name=each.name, type=each.type) for each in known]) if known else None


def _joined(known: StructType, inferred: StructType) -> StructType:
    """Those that are known, and what is new behind them."""
    names = {field.name.lower() for field in known}
    return StructType([*known, *(field for field in inferred if field.name.lower() not in names)])


def _compare(context: Context, uris: Sequence[str], schema: StructType, found: StructType) -> None:
    """Columns go by name: of others, Spark would silently leave out the new, and read the missing as nulls.

    Whoever declares columns has chosen among them. In JSON, what is not there is null, in one row as in all.
    """
    format_ = context.config["format"]
    key = str if format_ == "json" else str.lower  # As Spark finds them.
    new = [] if is_declared(context) else list(_missing(found, schema, key))
    if new and adds_columns(context):
        raise BadData(
            f"{label(uris)} has {listed(new)}, which cannot be added to what the output has: columns are added beside "
            "others, not within them, and under a name of their own; declare the job's 'columns'"
        )
    if new:
        raise BadData(
            f"{label(uris)} has new columns {listed(new)}: {ADD} to take them up, or declare the job's 'columns'"
        )
    missing = list(_missing(schema, found, key)) if format_ == "parquet" and not adds_columns(context) else []
    if missing:
        raise BadData(
            f"{label(uris)} has no column {listed(missing)}: it has {', '.join(sorted(found.names))}; {ADD} to read "
            "what is missing as null"
        )


def _missing(wanted: StructType, given: StructType, key: Callable[[str], str], within: str = "") -> Iterator[str]:
    """What is wanted and not given, at any depth."""
    types = {key(field.name): field.dataType for field in given}
    for field in wanted:
        if key(field.name) not in types:
            yield f"{within}{field.name}"
            continue
        inner, other = _inner(field.dataType), _inner(types[key(field.name)])
        if isinstance(inner, StructType) and isinstance(other, StructType):
            yield from _missing(inner, other, key, f"{within}{field.name}.")


def _inner(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return _inner(kind.elementType)
    return _inner(kind.valueType) if isinstance(kind, MapType) else kind


def _filled(path: str, context: Context) -> str:
    """The path with what the task is about in place of {partition_key}, {start}, {end} or {cursor}."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in PLACEHOLDERS:
            raise UsageError(f"path has {match[0]}: write {', '.join('{' + each + '}' for each in PLACEHOLDERS)}")
        given = getattr(context.run.work, match[1])
        if given is None:
            raise UsageError(f"path has {match[0]}, and this task has none: it is about something else")
        text = str(given)
        if ".." in text.split("/") or re.search(r"[*?\[\]{}\\]", text):
            raise UsageError(f"{text!r} cannot stand in a path")  # An event may come from anywhere.
        return text

    return re.sub(r"\{([^{}]*)\}", value, path)
