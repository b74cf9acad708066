"""How files are read: the fields that ``ingest``, ``stream`` and the short form ``files`` of a job have in common."""

from __future__ import annotations

from qo.pipeline.kinds import Choice, Field, Items, Record, Scalar, Table, Text
from qo.pipeline.texts import COLUMN

_TYPES = (
    "string|boolean|byte|tinyint|short|smallint|int|integer|long|bigint|float|real|double|decimal|date|timestamp"
)
TYPE = Text(
    "a type of Spark SQL, such as string, bigint, decimal(10,2) or array<date>",
    rf"(?i:{_TYPES}|timestamp_ntz|binary)|(?i:decimal)\s*\(\s*\d+\s*(,\s*\d+\s*)?\)|(?i:array|map|struct)\s*<.+>",
)
_COLUMNS = Items(
    Record(
        "column",
        "A column of the files.",
        (
            Field("name", COLUMN, "Its name.", required=True),
            Field("type", TYPE, "Its type.", required=True),
        ),
    ),
    at_least=1,
    at_most=10_000,
)
_DDL = Text("columns with their types, such as 'day date, delay int'", chars_max=60_000)

FORMAT = Choice(("csv", "json", "parquet", "text"))
STREAM_FORMAT = Choice(("csv", "json", "parquet"))
OPTIONS = Field(
    "options",
    Table(Text("the name of an option"), Scalar(), at_most=100),
    "Options of Spark's reader, such as header: true.",
)
MISSING = Field(
    "missing",
    Choice(("fail", "keep")),
    "What to do about a file that was deleted. fail: fail. keep: keep the rows that were made from it.",
    default="fail",
)


def columns(help_text: str) -> Field:
    """Return the field of the columns: a list of names and types, or the same as one text."""
    return Field("columns", _COLUMNS, help_text, short=(_DDL,))
