"""ingest: turns files that others write into rows of a dataset.

The files are those of the input, as a file source announces them, or those of ``path``, which is a pattern. Columns are
declared in the job's config, or taken from the first files: from then on they are the columns of the output, and a file
with others is refused. With ``drift: add`` columns are matched by name: those that a file lacks are null in its rows,
and new ones are added unless the columns are declared. So the order of files does not matter.
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

from qo.agent.dataset_files import resolve_uri
from qo.core.pipeline.columns import Column
from qo.errors import UsageError
from qo.pipeline.operators.spark import PLACEHOLDERS
from qo.spark.engine.error_translation import BadData, full_text
from qo.spark.io.columns import struct_of
from qo.spark.io.files import escape_pattern
from qo.spark.operators import missing_files, staging
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.staging import ObjectGone
from qo.spark.operators.table_files import (
    ADD,
    CORRUPT,
    adds_columns,
    group_by_header,
    has_header,
    is_declared,
    label,
    name_list,
    quote_name,
    read_strictly,
    reader,
)


def run(context: Context) -> Frames:
    output = context.only_output()
    files, schema = files_of(context), _schema(context)
    if missing := missing_files.find_missing(context, files):
        if not missing_files.keeps_rows(context):
            raise missing_files.gone_error(context, missing[0])
        return {output: missing_files.previous_rows(context, missing, schema)}
    uris = _stage(context, files)
    if not uris:
        if schema is None:
            raise UsageError(
                f"{context.run.work.job} has no file to learn its columns from: declare its 'columns'"
            )
        return {output: context.frame([], schema)}
    context.details["files_read"] = len(uris)
    # Missing files that were not looked up are found by Spark: now, or when the rows are read.
    context.diagnoses.append(lambda error: missing_files.missing_file_error(context, error))
    try:
        return {output: read(context, uris, schema)}
    except Exception as error:
        if (gone_error := missing_files.missing_file_error(context, error)) is not None:
            raise gone_error from None
        raise


def _stage(context: Context, files: Sequence[str]) -> list[str]:
    try:
        return staging.stage(context, files)
    except ObjectGone as error:
        raise missing_files.gone_error(context, error.uri) from None


def files_of(context: Context) -> list[str]:
    """Return the files as patterns. Only ``path`` may match several files; names of announced files are escaped."""
    path = context.config.get("path")
    if path is not None:
        return [resolve_uri(_fill_placeholders(str(path), context), escape_pattern(str(Path.cwd())))]
    files = [escape_pattern(uri) for name in context.inputs for uri in context.run.input(name).files]
    if not files and not context.run.work.inputs:
        raise UsageError(f"{context.run.work.job} has neither an input with files nor a 'path' in its config")
    return files


def read(context: Context, uris: Sequence[str], schema: StructType | None) -> DataFrame:
    format_ = str(context.config["format"])
    if format_ == "text":
        return context.spark.read.text(list(uris))
    if has_header(context) and adds_columns(context):
        return _read_by_header(context, uris, schema)
    if schema is not None and not _is_compared(context):
        return read_strictly(context, uris, schema)
    inferred = _infer(context, uris)
    if schema is None:
        _require_columns(uris, inferred)
        return read_strictly(context, uris, inferred)
    if not is_declared(context) and adds_columns(context):
        schema = _merge(schema, inferred)
    _compare(context, uris, schema, inferred)
    return read_strictly(context, uris, schema)


def _is_compared(context: Context) -> bool:
    """Whether the columns of files are compared before reading. The header of CSV is compared while it is read."""
    format_ = context.config["format"]
    return format_ == "parquet" or (not is_declared(context) and (format_ == "json" or adds_columns(context)))


def _read_by_header(context: Context, uris: Sequence[str], current: StructType | None) -> DataFrame:
    """Read CSV by column name. Files with the same header are read together."""
    groups = group_by_header(context, uris)
    if current is not None:
        groups.pop((), None)  # An empty file has no rows.
        if not groups:
            return context.frame([], current)
    schemas = {header: _schema_of_header(context, header, files, current) for header, files in groups.items()}
    every = _all_columns(schemas.values(), current, groups, adds_new=not is_declared(context))
    frames: list[DataFrame] = []
    for header, files in groups.items():
        _note_differences(context, header, every)
        names = {field.name.lower() for field in schemas[header]}
        rows = read_strictly(context, files, schemas[header])
        frames.append(rows.select(*(_column(field, names) for field in every)))
    return reduce(DataFrame.unionAll, frames)


def _column(field: StructField, there: set[str]) -> SparkColumn:
    if field.name.lower() in there:
        return F.col(quote_name(field.name))
    return F.lit(None).cast(field.dataType).alias(field.name)


def _schema_of_header(
    context: Context, header: Sequence[str], files: Sequence[str], current: StructType | None
) -> StructType:
    """Return the columns of these files in their order, with the current types where there are some."""
    types = {field.name.lower(): field for field in current or ()}
    if is_declared(context):
        # Undeclared columns are read all the same, as text: a row that was cut off must not look whole.
        schema = StructType([StructField(name, StringType()) for name in header])
    elif all(name.lower() in types for name in header):
        schema = StructType([types[name.lower()] for name in header])
    else:
        schema = _infer(context, files)
    _require_columns(files, schema)
    if current is not None and not any(name.lower() in types for name in header):
        raise BadData(
            f"{label(files)} has none of the columns {name_list(current.names)}: it has {', '.join(header)}; it is a "
            "file of another kind, or its first line does not name the columns"
        )
    return StructType([types.get(field.name.lower(), field) for field in schema])


def _all_columns(
    schemas: Iterable[StructType],
    current: StructType | None,
    groups: dict[tuple[str, ...], list[str]],
    *,
    adds_new: bool,
) -> StructType:
    """Return the current columns, and the new ones if ``adds_new``."""
    every = {field.name.lower(): field for field in current or ()}
    for schema, files in zip(schemas, groups.values(), strict=True):
        for field in schema if adds_new else ():
            other = every.setdefault(field.name.lower(), field)
            if other.dataType != field.dataType:
                raise BadData(
                    f"column {field.name!r} is {field.dataType.simpleString()} in {label(files)} and "
                    f"{other.dataType.simpleString()} in other files: declare the job's 'columns'"
                )
    return StructType(list(every.values()))


def _note_differences(context: Context, header: Sequence[str], every: StructType) -> None:
    """Record in the task's result which columns are null because a file lacks them, and which were not read."""
    there, expected = {name.lower() for name in header}, {field.name.lower() for field in every}
    for name, columns in {
        "columns_null": [field.name for field in every if field.name.lower() not in there],
        "columns_not_read": [each for each in header if each.lower() not in expected],
    }.items():
        if columns:
            context.details[name] = sorted({*context.details.get(name, ()), *columns})


def _infer(context: Context, uris: Sequence[str]) -> StructType:
    """Return the columns of the files, without the one that Spark adds for rows that it cannot read."""
    try:
        fields = reader(context, infer=True).load(list(uris)).schema
    except AnalysisException as error:
        if "UNABLE_TO_INFER_SCHEMA" not in full_text(error):
            raise
        raise BadData(f"{label(uris)} is empty, and no {context.config['format']} file: write it again") from None
    return StructType([field for field in fields if field.name != CORRUPT])


def _require_columns(uris: Sequence[str], schema: StructType) -> None:
    if not schema.fields:
        raise BadData(
            f"{label(uris)} is empty, and no file before it has shown the columns: declare the job's 'columns', or "
            "replay the task when another has"
        )


def _schema(context: Context) -> StructType | None:
    """Return the declared columns, else those of the output; None if there are none yet."""
    if context.config.get("format") == "text":
        return StructType([StructField("value", StringType())])
    declared = context.config.get("columns")
    if declared:
        fields = (f"{quote_name(str(each['name']))} {each['type']}" for each in declared)
        return cast("StructType", StructType.fromDDL(", ".join(fields)))
    current = context.run.outputs[0].details.columns
    return struct_of([Column(name=each.name, type=each.type) for each in current]) if current else None


def _merge(current: StructType, inferred: StructType) -> StructType:
    """Return the current columns, followed by the new ones."""
    names = {field.name.lower() for field in current}
    return StructType([*current, *(field for field in inferred if field.name.lower() not in names)])


def _compare(context: Context, uris: Sequence[str], schema: StructType, inferred: StructType) -> None:
    """Raise BadData for new or missing columns. Spark would silently leave out new ones, and read nulls for missing.

    With declared columns new ones are not an error. In JSON a missing field is null.
    """
    format_ = context.config["format"]
    key = str if format_ == "json" else str.lower  # As Spark matches names.
    new = [] if is_declared(context) else list(_missing(inferred, schema, key))
    if new and adds_columns(context):
        raise BadData(
            f"{label(uris)} has {name_list(new)}, which cannot be added to what the output has: columns are added "
            "beside others, not within them, and under a name of their own; declare the job's 'columns'"
        )
    if new:
        raise BadData(
            f"{label(uris)} has new columns {name_list(new)}: {ADD} to take them up, or declare the job's 'columns'"
        )
    missing = list(_missing(schema, inferred, key)) if format_ == "parquet" and not adds_columns(context) else []
    if missing:
        raise BadData(
            f"{label(uris)} has no column {name_list(missing)}: it has {', '.join(sorted(inferred.names))}; {ADD} to "
            "read what is missing as null"
        )


def _missing(
    expected: StructType, actual: StructType, key: Callable[[str], str], within: str = ""
) -> Iterator[str]:
    """Yield the names that are expected and missing, at any depth."""
    types = {key(field.name): field.dataType for field in actual}
    for field in expected:
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


def _fill_placeholders(path: str, context: Context) -> str:
    """Return the path with values of the task in place of {partition_key}, {start}, {end} and {cursor}."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in PLACEHOLDERS:
            raise UsageError(f"path has {match[0]}: write {', '.join('{' + each + '}' for each in PLACEHOLDERS)}")
        field = getattr(context.run.work, match[1])
        if field is None:
            raise UsageError(f"path has {match[0]}, and this task has none: remove it from the path")
        text = str(field)
        if ".." in text.split("/") or re.search(r"[*?\[\]{}\\]", text):
            raise UsageError(f"{text!r} cannot stand in a path")  # An event may come from anywhere.
        return text

    return re.sub(r"\{([^{}]*)\}", value, path)
