"""Reads files that others wrote, and finds the rows that do not fit.

Rows are read strictly: one that does not fit ends the attempt, and ``diagnose`` then looks for the file, the row and
the column. Columns of CSV go by the names in its header, which are compared while it is read, and by position without a
header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, DataFrameReader
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from qo.core.pipeline.columns import Drift
from qo.core.words import plural
from qo.spark.engine.error_translation import BadData, from_spark, full_text
from qo.spark.io.files import escape_pattern, literal_path
from qo.spark.operators.operator_context import Context

CORRUPT = "_corrupt_record"
SHOWN_MAX = 5
ADD = "write 'drift: add'"
_TOO_LONG = "qo: a row has more values than there are columns"
_REST, _UNREAD = "_qo_rest", "_qo_unread"  # Extra columns, where rows may be short.
_OTHER_HEADER = ("CSV header does not conform", "Number of column in CSV header is not equal")
_UNREADABLE = ("MALFORMED_RECORD", *_OTHER_HEADER, _TOO_LONG, "CANNOT_CONVERT", "DATA_TYPE_MISMATCH")


def reader(context: Context, *, infer: bool = False) -> DataFrameReader:
    format_, options = str(context.config["format"]), _options(context.config)
    frame_reader = context.spark.read.format(format_)
    if format_ == "csv":
        frame_reader = frame_reader.option("enforceSchema", "false")  # The header must name the columns.
        frame_reader = frame_reader.option("inferSchema", str(infer).lower())
        # With pruning, values of unused columns are not counted, and a row that was cut off looks whole.
        frame_reader = frame_reader.option("columnPruning", "false")
    if format_ == "parquet" and infer:
        frame_reader = frame_reader.option("mergeSchema", "true")
    return frame_reader.options(**options)


def read_strictly(context: Context, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Read exactly these columns, in this order where the format goes by position."""
    short = allows_short_rows(context)
    context.diagnoses.append(lambda error: diagnose(error, context, uris, schema))
    if short:
        return _read_short_rows(context, uris, schema)
    return reader(context).schema(schema).option("mode", "FAILFAST").load(list(uris))


def has_header(context: Context) -> bool:
    return context.config["format"] == "csv" and _options(context.config).get("header") == "true"


def is_declared(context: Context) -> bool:
    return bool(context.config.get("columns"))


def allows_short_rows(context: Context) -> bool:
    """Whether a row may lack its last columns. Only without a header: there is no other way to tell which it lacks."""
    return context.config["format"] == "csv" and not has_header(context) and adds_columns(context)


def adds_columns(context: Context) -> bool:
    return context.run.work.drift == Drift.ADD


def group_by_header(context: Context, uris: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """Return the files that match the patterns, grouped by header. Reads the beginning of each file."""
    if all(literal_path(uri) is not None for uri in uris):
        files = list(uris)
    else:
        anything = StructType([StructField("line", StringType())])
        matches = reader(context).schema(anything).load(list(uris)).inputFiles()
        files = [escape_pattern(unquote(each)) for each in sorted(matches)]
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        groups.setdefault(tuple(reader(context).load(file).columns), []).append(file)
    return groups


def quote_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def name_list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def label(uris: Sequence[str]) -> str:
    """Return a short text for these files in errors."""
    first = literal_path(uris[0]) or uris[0]
    return first if len(uris) == 1 else f"{first} and {len(uris) - 1} others"


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    options: Mapping[str, Any] = config.get("options") or {}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}


def _read_short_rows(context: Context, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Read rows with fewer values as nulls in the last columns; one with more values is an error.

    Spark takes a row with too few values for malformed, unless it reads only some of the columns: hence the column that
    is never read. The values themselves are parsed as strictly as ever.
    """
    wider = StructType([*schema, StructField(_REST, StringType()), StructField(_UNREAD, StringType())])
    pruned = reader(context).option("columnPruning", "true").schema(wider).option("mode", "FAILFAST")
    too_long = F.when(F.col(_REST).isNotNull(), F.raise_error(F.lit(_TOO_LONG))).otherwise(F.lit(True))
    columns = [F.col(quote_name(field.name)) for field in schema]
    return pruned.load(list(uris)).select(*columns, F.col(_REST)).where(too_long.cast("boolean")).drop(_REST)


def diagnose(
    error: BaseException, context: Context, uris: Sequence[str], schema: StructType
) -> BaseException | None:
    """Return an error that names the files, rows and columns that do not fit; None if something else is wrong.

    It reads the files again, after a failure only.
    """
    text = full_text(error)
    if not from_spark(error) or not any(word in text for word in _UNREADABLE):
        return None
    if any(word in text for word in _OTHER_HEADER):
        return BadData(_header_problem(text, context, schema))
    if context.config["format"] not in ("csv", "json"):
        return None
    with_record = StructType([*schema, StructField(CORRUPT, StringType())])
    loose = reader(context).schema(with_record).option("columnNameOfCorruptRecord", CORRUPT).load(list(uris))
    # Of a bad record, Spark keeps the whole text, and the columns that it could read.
    bad = loose.withColumn("_file", F.input_file_name()).cache()
    blamed, is_bad, is_short = _symptoms(context, schema)
    try:
        counts = (
            bad.filter(F.col(CORRUPT).isNotNull() & is_bad)
            .groupBy("_file")
            .agg(
                F.count("*").alias("rows"),
                F.first(CORRUPT).alias("example"),
                F.max(is_short).alias("short"),
                *(F.sum(each.cast("int")).alias(f"n{at}") for at, each in enumerate(blamed)),
            )
        )
        examples = counts.limit(SHOWN_MAX).collect()
    finally:
        bad.unpersist()
    if not examples:
        return None
    problems = "; ".join(_bad_file(row.asDict(), schema) for row in examples)
    hint = f"; {ADD} to read what short rows lack as null" if any(row["short"] for row in examples) else ""
    return BadData(f"rows do not fit the columns: {problems}{hint}")


def _symptoms(context: Context, schema: StructType) -> tuple[list[SparkColumn], SparkColumn, SparkColumn]:
    """Return conditions on a record that Spark could not read.

    For each column, whether it may be at fault; then whether the record is bad, and whether it is merely short.
    """
    nulls = [F.col(quote_name(field.name)).isNull() for field in schema]
    if context.config["format"] != "csv" or has_header(context):
        return nulls, F.lit(True), F.lit(False)
    options = _options(context.config)
    texts = StructType([StructField(f"t{at}", StringType()) for at in range(len(schema) + 1)])
    values = F.from_csv(F.col(CORRUPT), texts.toDDL(), options)
    unread = [null & values[f"t{at}"].isNotNull() for at, null in enumerate(nulls)]
    wrong = values[f"t{len(schema)}"].isNotNull()
    for each in unread:
        wrong = wrong | each
    if allows_short_rows(context):
        return unread, wrong, F.lit(False)
    return nulls, F.lit(True), ~wrong


def _bad_file(row: Mapping[str, Any], schema: StructType) -> str:
    blames = [(field, row[f"n{at}"]) for at, field in enumerate(schema)]
    blamed = [
        f"{field.name!r} ({field.dataType.simpleString()})" for field, count in blames if count == row["rows"]
    ]
    where = f", in column {', '.join(blamed[:SHOWN_MAX])}" if blamed and len(blamed) < len(schema) else ""
    return f"{row['_file']}: {plural(row['rows'], 'row')}{where}, such as {str(row['example'])[:200]!r}"


def _header_problem(text: str, context: Context, schema: StructType) -> str:
    """Return which columns a file lacks, adds, or has in another order. Spark says only that they differ."""
    match = re.search(r"^\s*CSV file: (.*)$", text, re.MULTILINE)
    if match is None:
        return "the first line of a file does not name the columns"
    file = unquote(match[1].strip())
    names = reader(context).load(escape_pattern(file)).columns
    there, expected = {name.lower() for name in names}, {field.name.lower() for field in schema}
    missing = [field.name for field in schema if field.name.lower() not in there]
    new = [name for name in names if name.lower() not in expected]
    problems: list[str] = []
    advice: list[str] = []
    if missing:
        problems.append(f"has no column {name_list(missing)}")
        advice.append(f"{ADD} to read what is missing as null")
    if new and is_declared(context):
        problems.append(f"has columns that the job does not declare: {name_list(new)}")
        advice.append(f"declare them, or {ADD} to leave them out")
    elif new:
        problems.append(f"has new columns {name_list(new)}")
        advice.append(f"{ADD} to take them up, or declare the job's 'columns'")
    if not problems:
        problems.append("has the columns in another order")
        advice.append(f"{ADD} to find them by name")
    columns = f"it has {', '.join(names)}, and the job {', '.join(schema.names)}"
    return f"{file} {' and '.join(problems)}: {columns}; {'; '.join(advice)}"
