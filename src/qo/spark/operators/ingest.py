"""ingest: files as they arrive, of another's making, become rows of a dataset.

The files are those of the input, as a file source announces them, or those of ``path``, which is a pattern. Columns are
declared in the job's config, or taken from the first files and kept: from then on they are the columns of the output,
and a file with others is refused. Rows are read strictly; a file with a row that does not fit is refused as a whole,
with the place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import col, count, first, input_file_name
from pyspark.sql.functions import sum as total
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from qo.core.flow.columns import Column, Drift
from qo.core.words import plural
from qo.errors import UsageError
from qo.runner.storage import located
from qo.spark.columns import struct_of
from qo.spark.errors import BadData, from_spark, full_text
from qo.spark.files import exactly, only_path
from qo.spark.operators import staging
from qo.spark.operators.context import Context, Frames

CORRUPT = "_corrupt_record"
SHOWN_MAX = 5
_PLACES = ("partition_key", "start", "end", "cursor")
_OTHER_NAMES, _OTHER_COUNT = "CSV header does not conform", "Number of column in CSV header is not equal"
_UNREADABLE = ("MALFORMED_RECORD", _OTHER_NAMES, _OTHER_COUNT, "CANNOT_CONVERT", "DATA_TYPE_MISMATCH")


def run(context: Context) -> Frames:
    output = context.only_output()
    uris = staging.readable(context, files_of(context))
    schema = _schema(context)
    if not uris:
        if schema is None:
            raise UsageError(
                f"{context.run.work.job} has no file to learn its columns from: declare its 'columns'"
            )
        return {output: context.frame([], schema)}
    context.said["files_read"] = len(uris)
    return {output: read(context, uris, schema)}


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
    if schema is not None and not _is_compared(context):
        return _strict(context, uris, schema)
    found = _found(context, uris)
    if schema is None:
        if not found.fields:
            raise BadData(
                f"{_named(uris)} is empty, and no file before it has told the columns: declare the job's 'columns', or "
                "replay the task when another has"
            )
        return _strict(context, uris, found)
    if not _declared(context) and context.run.work.drift == Drift.ADD:
        schema = _joined(schema, found)
    _compare(context, uris, schema, found)
    return _strict(context, uris, schema)


def _is_compared(context: Context) -> bool:
    """Whether the columns of files are looked at beforehand. The first line of CSV is while it is read."""
    format_ = context.config["format"]
    return format_ == "parquet" or (
        not _declared(context) and (format_ == "json" or context.run.work.drift == Drift.ADD)
    )


def _declared(context: Context) -> bool:
    return bool(context.config.get("columns"))


def _found(context: Context, uris: Sequence[str]) -> StructType:
    """The columns that the files have. Spark counts rows that it cannot read among them."""
    try:
        fields = _reader(context, infer=True).load(list(uris)).schema
    except AnalysisException as error:
        if "UNABLE_TO_INFER_SCHEMA" not in full_text(error):
            raise
        raise BadData(f"{_named(uris)} is empty, and no {context.config['format']} file: write it again") from None
    return StructType([field for field in fields if field.name != CORRUPT])


def _strict(context: Context, uris: Sequence[str], schema: StructType) -> DataFrame:
    context.diagnoses.append(lambda error: _diagnosed(error, context, uris, schema))
    return _reader(context).schema(schema).option("mode", "FAILFAST").load(list(uris))


def _reader(context: Context, *, infer: bool = False) -> DataFrameReader:
    format_, options = str(context.config["format"]), _options(context.config)
    reader = context.spark.read.format(format_)
    if format_ == "csv":
        reader = reader.option("enforceSchema", "false")  # The names in a file's first line must be the columns'.
        reader = reader.option("inferSchema", str(infer).lower())
    if format_ == "parquet" and infer:
        reader = reader.option("mergeSchema", "true")
    return reader.options(**options)


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    given: Mapping[str, Any] = config.get("options") or {}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}


def _schema(context: Context) -> StructType | None:
    """Declared, or else as the output has them already; None: nobody knows yet."""
    if context.config.get("format") == "text":
        return StructType([StructField("value", StringType())])
    declared = context.config.get("columns")
    if declared:
        quoted = (f"{_quoted(str(each['name']))} {each['type']}" for each in declared)
        return cast("StructType", StructType.fromDDL(", ".join(quoted)))
    known = context.run.outputs[0].given.columns
    return struct_of([Column(name=each.name, type=each.type) for each in known]) if known else None


def _joined(known: StructType, inferred: StructType) -> StructType:
    """In the order of the files, with the types that are known, and what is new beside."""
    types = {field.name.lower(): field for field in known}
    found = [types.get(field.name.lower(), field) for field in inferred]
    names = {field.name.lower() for field in inferred}
    return StructType([*found, *(field for field in known if field.name.lower() not in names)])


def _compare(context: Context, uris: Sequence[str], schema: StructType, found: StructType) -> None:
    """Columns go by name: of others, Spark would silently leave out the new, and read the missing as nulls.

    Whoever declares columns has chosen among them. In JSON, what is not there is null, in one row as in all.
    """
    format_ = context.config["format"]
    key = str if format_ == "json" else str.lower  # As Spark finds them.
    new = [] if _declared(context) else list(_missing(found, schema, key))
    if new:
        raise BadData(
            f"{_named(uris)} has new columns {_listed(new)}: declare the job's 'columns', or let its 'drift' add them"
        )
    missing = list(_missing(schema, found, key)) if format_ == "parquet" else []
    if missing:
        raise BadData(f"{_named(uris)} has no column {_listed(missing)}: it has {', '.join(sorted(found.names))}")


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


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _diagnosed(
    error: BaseException, context: Context, uris: Sequence[str], schema: StructType
) -> BaseException | None:
    """Which rows of which files do not fit, and by which column. A second look, for failures only."""
    text = full_text(error)
    if not from_spark(error) or not any(word in text for word in _UNREADABLE):
        return None
    if _OTHER_NAMES in text or _OTHER_COUNT in text:
        return BadData(f"the first line of a file does not name the columns: {_header(text, context, schema)}")
    if context.config["format"] not in ("csv", "json"):
        return None
    shown = StructType([*schema, StructField(CORRUPT, StringType())])
    loose = _reader(context).schema(shown).option("columnNameOfCorruptRecord", CORRUPT).load(list(uris))
    # A record that is bad is kept whole, and the columns that could be read with it.
    bad = loose.withColumn("_file", input_file_name()).cache()
    try:
        counts = (
            bad.filter(col(CORRUPT).isNotNull())
            .groupBy("_file")
            .agg(
                count("*").alias("rows"),
                first(CORRUPT).alias("example"),
                *(
                    total(col(_quoted(field.name)).isNull().cast("int")).alias(f"n{at}")
                    for at, field in enumerate(schema)
                ),
            )
        )
        found = counts.limit(SHOWN_MAX).collect()
    finally:
        bad.unpersist()
    if not found:
        return None
    said = "; ".join(_bad_file(row.asDict(), schema, context.spark) for row in found)
    return BadData(f"rows do not fit the columns: {said}")


def _bad_file(row: Mapping[str, Any], schema: StructType, spark: SparkSession) -> str:
    nulls = [(field, row[f"n{at}"]) for at, field in enumerate(schema)]
    blamed = [
        f"{field.name!r} ({field.dataType.simpleString()})" for field, count in nulls if count == row["rows"]
    ]
    where = f", in column {', '.join(blamed[:SHOWN_MAX])}" if blamed and len(blamed) < len(schema) else ""
    return f"{row['_file']}: {plural(row['rows'], 'row')}{where}, such as {str(row['example'])[:200]!r}"


def _header(text: str, context: Context, schema: StructType) -> str:
    parts = re.findall(r"^\s*((?:Header|Schema|Expected|CSV file): .*)$", text, re.MULTILINE)
    file = next((part.removeprefix("CSV file: ") for part in parts if part.startswith("CSV file: ")), None)
    if _OTHER_COUNT in text and file is not None:
        # Spark says how many there are. People want to know which.
        names = _reader(context).load(exactly(unquote(file))).columns
        parts = [f"Header: {', '.join(names)}", f"Schema: {', '.join(schema.names)}", f"CSV file: {file}"]
        if len(names) > len(schema) and not _declared(context):
            parts.append("Declare the job's 'columns', or let its 'drift' add new ones")
    return ". ".join(part.strip() for part in parts[:4]) or "CSV header does not conform to the schema"


def _named(uris: Sequence[str]) -> str:
    first = only_path(uris[0]) or uris[0]
    return first if len(uris) == 1 else f"{first} and {len(uris) - 1} others"


def _filled(path: str, context: Context) -> str:
    """The path with what the task is about in place of {partition_key}, {start}, {end} or {cursor}."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in _PLACES:
            raise UsageError(f"path has {match[0]}: write {', '.join('{' + each + '}' for each in _PLACES)}")
        given = getattr(context.run.work, match[1])
        if given is None:
            raise UsageError(f"path has {match[0]}, and this task has none: it is about something else")
        text = str(given)
        if ".." in text.split("/") or re.search(r"[*?\[\]{}\\]", text):
            raise UsageError(f"{text!r} cannot stand in a path")  # An event may come from anywhere.
        return text

    return re.sub(r"\{([^{}]*)\}", value, path)
