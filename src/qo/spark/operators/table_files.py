"""Files of others as frames: how Spark is asked for them, and which of their rows do not fit.

Rows are read strictly: one that does not fit ends the attempt, and ``diagnose`` then looks for the file, the row and
the column. CSV goes by the names in its first line, which are compared with the columns while it is read; without such
a line it goes by position.
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
from qo.spark.engine.errors import BadData, from_spark, full_text
from qo.spark.io.files import exactly, only_path
from qo.spark.operators.context import Context

CORRUPT = "_corrupt_record"
SHOWN_MAX = 5
ADD = "write 'drift: add'"
_TOO_LONG = "qo: a row has more values than there are columns"
_REST, _UNREAD = "_qo_rest", "_qo_unread"  # Beside the columns, where rows may be short.
_OTHER_HEADER = ("CSV header does not conform", "Number of column in CSV header is not equal")
_UNREADABLE = ("MALFORMED_RECORD", *_OTHER_HEADER, _TOO_LONG, "CANNOT_CONVERT", "DATA_TYPE_MISMATCH")


def reader(context: Context, *, infer: bool = False) -> DataFrameReader:
    format_, options = str(context.config["format"]), _options(context.config)
    made = context.spark.read.format(format_)
    if format_ == "csv":
        made = made.option("enforceSchema", "false")  # The names in a file's first line must be the columns'.
        made = made.option("inferSchema", str(infer).lower())
        # Otherwise values that are not wanted are not counted either, and a row that was cut off looks whole.
        made = made.option("columnPruning", "false")
    if format_ == "parquet" and infer:
        made = made.option("mergeSchema", "true")
    return made.options(**options)


def read_strictly(context: Context, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Exactly these columns, in this order where the format goes by position."""
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
    """Without a header nothing but the number of its values says which columns a row lacks: the last ones."""
    return context.config["format"] == "csv" and not has_header(context) and adds_columns(context)


def adds_columns(context: Context) -> bool:
    return context.run.work.drift == Drift.ADD


def by_header(context: Context, uris: Sequence[str]) -> dict[tuple[str, ...], list[str]]:
    """The files behind the patterns, by the names in their first lines. A look at the beginning of each file."""
    if all(only_path(uri) is not None for uri in uris):
        files = list(uris)
    else:
        anything = StructType([StructField("line", StringType())])
        found = reader(context).schema(anything).load(list(uris)).inputFiles()
        files = [exactly(unquote(each)) for each in sorted(found)]
    groups: dict[tuple[str, ...], list[str]] = {}
    for file in files:
        groups.setdefault(tuple(reader(context).load(file).columns), []).append(file)
    return groups


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def label(uris: Sequence[str]) -> str:
    """For errors."""
    first = only_path(uris[0]) or uris[0]
    return first if len(uris) == 1 else f"{first} and {len(uris) - 1} others"


def _options(config: Mapping[str, Any]) -> dict[str, str]:
    given: Mapping[str, Any] = config.get("options") or {}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}


def _read_short_rows(context: Context, uris: Sequence[str], schema: StructType) -> DataFrame:
    """Rows with fewer values have nulls in the last columns; one with more is an error.

    Spark takes a row with too few values for malformed, unless it was asked for some of the columns only: hence the one
    that is never read. The values themselves are parsed as strictly as ever.
    """
    wider = StructType([*schema, StructField(_REST, StringType()), StructField(_UNREAD, StringType())])
    pruned = reader(context).option("columnPruning", "true").schema(wider).option("mode", "FAILFAST")
    too_long = F.when(F.col(_REST).isNotNull(), F.raise_error(F.lit(_TOO_LONG))).otherwise(F.lit(True))
    columns = [F.col(quoted(field.name)) for field in schema]
    return pruned.load(list(uris)).select(*columns, F.col(_REST)).where(too_long.cast("boolean")).drop(_REST)


# What does not fit


def diagnose(
    error: BaseException, context: Context, uris: Sequence[str], schema: StructType
) -> BaseException | None:
    """Which rows of which files do not fit, and by which column. A second look, for failures only."""
    text = full_text(error)
    if not from_spark(error) or not any(word in text for word in _UNREADABLE):
        return None
    if any(word in text for word in _OTHER_HEADER):
        return BadData(_header_problem(text, context, schema))
    if context.config["format"] not in ("csv", "json"):
        return None
    shown = StructType([*schema, StructField(CORRUPT, StringType())])
    loose = reader(context).schema(shown).option("columnNameOfCorruptRecord", CORRUPT).load(list(uris))
    # A record that is bad is kept whole, and the columns that could be read with it.
    bad = loose.withColumn("_file", F.input_file_name()).cache()
    blamed, is_bad, is_short = _suspicions(context, schema)
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
        found = counts.limit(SHOWN_MAX).collect()
    finally:
        bad.unpersist()
    if not found:
        return None
    problems = "; ".join(_bad_file(row.asDict(), schema) for row in found)
    hint = f"; {ADD} to read what short rows lack as null" if any(row["short"] for row in found) else ""
    return BadData(f"rows do not fit the columns: {problems}{hint}")


def _suspicions(context: Context, schema: StructType) -> tuple[list[SparkColumn], SparkColumn, SparkColumn]:
    """Of a record that Spark could not read: which columns may be at fault, whether it is bad, and whether all that is
    wrong is that it is short."""
    nulls = [F.col(quoted(field.name)).isNull() for field in schema]
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
    """Which columns a file lacks, has beyond, or has elsewhere. Spark says only that they differ."""
    found = re.search(r"^\s*CSV file: (.*)$", text, re.MULTILINE)
    if found is None:
        return "the first line of a file does not name the columns"
    file = unquote(found[1].strip())
    names = reader(context).load(exactly(file)).columns
    there, wanted = {name.lower() for name in names}, {field.name.lower() for field in schema}
    missing = [field.name for field in schema if field.name.lower() not in there]
    new = [name for name in names if name.lower() not in wanted]
    problems: list[str] = []
    ways: list[str] = []
    if missing:
        problems.append(f"has no column {listed(missing)}")
        ways.append(f"{ADD} to read what is missing as null")
    if new and is_declared(context):
        problems.append(f"has columns that the job does not declare: {listed(new)}")
        ways.append(f"declare them, or {ADD} to leave them out")
    elif new:
        problems.append(f"has new columns {listed(new)}")
        ways.append(f"{ADD} to take them up, or declare the job's 'columns'")
    if not problems:
        problems.append("has the columns in another order")
        ways.append(f"{ADD} to find them by name")
    columns = f"it has {', '.join(names)}, and the job {', '.join(schema.names)}"
    return f"{file} {' and '.join(problems)}: {columns}; {'; '.join(ways)}"
