"""jdbc: rows of a table or query of a database, by Spark's own reader.

Whole, or by a column that grows: then an attempt reads what lies above the position that was committed with the rows
before it, up to the largest value at its beginning, and that is the position that is committed with its own rows. So
each row is read again after an attempt that failed, and never once more after one that was committed. A task that runs
again reads what it had read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

from qo.core.pipeline.jdbc_url import driver_of, find_password, scheme_of
from qo.errors import ConfigError, Unavailable, UsageError
from qo.spark.engine.error_translation import BadData, from_spark, full_text, short_text
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.table_files import name_list, quote_name
from qo.worker.observe.secrets import redact_secrets, register_secret

FETCH_ROWS = 10_000  # At a time: some drivers take all rows otherwise, or ten.
# What databases say of themselves being away, and not of the query.
_AWAY = re.compile(
    r"SQLState\W+08|Connection\w* (?:to \S+ )?refused|ConnectException|UnknownHostException|SocketTimeout|"
    r"connection attempt failed|Communications link failure|the database system is (?:starting|shutting)|"
    r"terminating connection|I/O error occurred while sending|too many (?:clients|connections)",
    re.IGNORECASE,
)
_NO_DRIVER = re.compile(
    r"No suitable driver|ClassNotFoundException|JDBC_DRIVER_NOT_FOUND|CLASS_NOT_FOUND", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Range:
    """The rows of one attempt: above ``after``, up to ``upto``; both as texts. ``after`` None: from the first."""

    after: str | None
    upto: str


def run(context: Context) -> Frames:
    output = context.only_output()
    reader = _Reader(context)
    cursor = context.config.get("cursor")
    try:
        frame = reader.read()
        frame = frame if cursor is None else _read_range(context, reader, frame, str(cursor))
    except Exception as error:
        if (problem := _explain(context, error)) is None:
            raise
        raise problem from None
    # Rows are read when they are written.
    context.diagnoses.append(lambda error: _explain(context, error))
    return {output: frame} if frame is not None else {}


class _Reader:
    """Reads the table or query of a job. Its credentials are options of Spark's reader, which shows them nowhere."""

    def __init__(self, context: Context) -> None:
        config, run = context.config, context.run
        url = str(config["url"]) if "url" in config else run.secret(str(config["url_secret"]))
        if (scheme := scheme_of(url)) is None:
            raise ConfigError(
                "the secret of 'url_secret' is no URL of JDBC: it begins as jdbc:postgresql://HOST/NAME"
            )
        if (password := find_password(url)) is not None:
            register_secret(password)
        self._context = context
        self._options = {"url": url, "fetchsize": str(FETCH_ROWS), "preferTimestampNTZ": "true"}
        if (driver := driver_of(scheme)) is not None:
            self._options["driver"] = driver.class_name
        if "user" in config:
            self._options["user"] = str(config["user"])
        if "password_secret" in config:
            self._options["password"] = run.secret(str(config["password_secret"]))
        self._options |= {name: str(value) for name, value in config.get("options", {}).items()}
        self._source = f"({_query(context)}) qo"

    def read(self) -> DataFrame:
        options = self._options | self._split_options()
        return self._load(options, self._source)

    def largest(self, cursor: str, kind: DataType) -> str | None:
        """Return the largest value of a column, as a text; None without rows."""
        source = f"(SELECT MAX({self._quote(cursor)}) AS qo_upto FROM {self._source}) qo_upto"
        top = self._load(self._options, source)
        name = top.columns[0]
        return top.select(_as_text(F.col(quote_name(name)), kind)).collect()[0][0]

    def _split_options(self) -> dict[str, str]:
        split = self._context.config.get("split")
        if split is None:
            return {}
        column, parts = str(split["column"]), int(split["parts"])
        lower, upper = split.get("lower"), split.get("upper")
        if lower is None or upper is None:
            quoted = self._quote(column)
            edges = f"(SELECT MIN({quoted}) AS qo_low, MAX({quoted}) AS qo_high FROM {self._source}) qo_edges"
            row: Any = self._load(self._options, edges).collect()[0]
            lower, upper = row[0] if lower is None else lower, row[1] if upper is None else upper
        if lower is None or upper is None:
            return {}  # There are no rows.
        return {
            "partitionColumn": self._quote(column),
            "lowerBound": str(lower),
            "upperBound": str(upper),
            "numPartitions": str(parts),
        }

    def _quote(self, column: str) -> str:
        """Return a column as the database has it: a plain name without quotes, so that its case does not matter."""
        return column if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", column) else '"' + column.replace('"', '""') + '"'

    def _load(self, options: dict[str, str], source: str) -> DataFrame:
        return self._context.spark.read.format("jdbc").options(**options, dbtable=source).load()


def _query(context: Context) -> str:
    config, work = context.config, context.run.work
    if "table" in config:
        return f"SELECT * FROM {config['table']}"

    def value(match: re.Match[str]) -> str:
        field = getattr(work, match[1])
        if field is None:
            raise UsageError(f"'query' has {match[0]}, and this task has none: remove it from the query")
        return str(field)  # Keys have no quotes in them, the others are numbers.

    return re.sub(r"\{(partition_key|start|end|cursor)\}", value, str(config["query"])).strip().rstrip(";")


def _read_range(context: Context, reader: _Reader, frame: DataFrame, cursor: str) -> DataFrame | None:
    """Return the rows of this attempt; None if there are none. Their position is committed with them."""
    fields = {each.name.lower(): each for each in frame.schema}
    field = fields.get(cursor.lower())
    if field is None:
        raise UsageError(
            f"'cursor' names no column {cursor!r}: there are {name_list(frame.columns)}; correct the config of "
            f"{context.run.work.job}"
        )
    kind = field.dataType
    if not isinstance(kind, NumericType | DateType | TimestampType | TimestampNTZType | StringType):
        raise UsageError(
            f"the column {cursor!r} is {kind.simpleString()}, which has no order: name another 'cursor'"
        )
    output = context.run.outputs[0]
    newest, own = output.positions()
    ranges = [Range(each["after"], each["upto"]) for each in own]
    position = None if newest is None else str(newest["position"])
    if not ranges:
        upto = reader.largest(cursor, kind)
        if upto is None or (upto == position and not context.config.get("overlap")):
            output.skip()
            return None
        ranges = [Range(position, upto)]
        position = upto
    output.stats["position"] = {"after": ranges[0].after, "upto": ranges[0].upto, "position": position}
    context.details["read"] = [{"above": each.after, "up_to": each.upto} for each in ranges]
    column, overlap = F.col(quote_name(field.name)), int(context.config.get("overlap") or 0)
    return frame.where(reduce(Column.__or__, (_condition(column, kind, each, overlap) for each in ranges)))


def _condition(column: Column, kind: DataType, range_: Range, overlap: int) -> Column:
    below = column <= _from_text(range_.upto, kind)
    if range_.after is None:
        return below
    edge = _from_text(range_.after, kind)
    return below & (column > (_lower(edge, kind, overlap) if overlap else edge))


def _lower(edge: Column, kind: DataType, overlap: int) -> Column:
    match kind:
        case TimestampType() | TimestampNTZType():
            return edge - F.expr(f"INTERVAL {overlap} SECONDS")
        case DateType():
            return F.date_sub(edge, overlap)
        case StringType():
            raise UsageError(
                "'overlap' is for columns of times, dates and numbers, and 'cursor' is a text: remove it"
            )
        case _:
            return edge - F.lit(overlap)


def _as_text(column: Column, kind: DataType) -> Column:
    # Independent of the time zone of the session.
    return (F.unix_micros(column) if isinstance(kind, TimestampType) else column).cast("string")


def _from_text(text: str, kind: DataType) -> Column:
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(F.lit(int(text)))
    return F.lit(text).cast(kind)


def _explain(context: Context, error: BaseException) -> Exception | None:
    """Return what to raise for an error of the database or its driver; None if it is about something else.

    Whether the database is away, or the query wrong, only its texts tell. No password is in the message.
    """
    if not from_spark(error):
        return None
    whole, text = full_text(error), redact_secrets(short_text(error))
    if _NO_DRIVER.search(whole):
        return ConfigError(f"Spark has no driver for the database: {_driver_hint(context)}")
    if _AWAY.search(whole):
        return Unavailable(f"the database does not answer: {text}")
    if "java.sql" in whole or "SQLException" in whole or "JDBC" in whole:
        return BadData(f"the database refused: {text}")
    return None


def _driver_hint(context: Context) -> str:
    config = context.config
    url = str(config["url"]) if "url" in config else context.run.secret(str(config["url_secret"]))
    driver = driver_of(scheme_of(url) or "")
    jar = "its Maven coordinates" if driver is None else driver.coordinates
    return (
        f"name its jar with the setting spark.packages (QO_SPARK_PACKAGES={jar}), or as spark.jars in spark.conf"
    )
