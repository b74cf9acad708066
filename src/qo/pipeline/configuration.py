"""The configuration of operators that are known by name: what stands under a job's ``config``.

Of ``module:function`` it is the function's own affair.
"""

from __future__ import annotations

from qo.config.location import ELSEWHERE
from qo.pipeline.fields import COLUMN, LINE, LOGICAL, RANGE_MAX
from qo.pipeline.kinds import Choice, Field, Items, Record, Scalar, Table, Text, Whole

QUERY = Text("a query in Spark SQL", chars_max=60_000)
_TYPES = (
    "string|boolean|byte|tinyint|short|smallint|int|integer|long|bigint|float|real|double|decimal|date|timestamp"
)
TYPE = Text(
    "a type of Spark SQL, such as string, bigint, decimal(10,2) or array<date>",
    rf"(?i:{_TYPES}|timestamp_ntz|binary)|(?i:decimal)\s*\(\s*\d+\s*(,\s*\d+\s*)?\)|(?i:array|map|struct)\s*<.+>",
)
# A path of the machine counts from where the worker runs, as the operators' modules do.
PLACE = Text("a path, file:PATH or s3://BUCKET/KEY", rf"s3://\S+|(file:)?(?!{ELSEWHERE})\S.*", 2_000)
URL = Text("an http:// or https:// address", r"https?://\S+", 2_000)
_QUERIED = (
    Field("query", QUERY, "The query. It knows the inputs as tables of their names."),
    Field("file", LINE, "The file with the query, relative to the pipeline's own."),
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
_OPTIONS = Table(Text("the name of an option"), Scalar(), at_most=100)

# The configuration of operators that are known by name; those of the dispatcher, then those of Spark.
OPERATOR_CONFIG = {
    "range_splitter": Record(
        "range_splitter",
        "Cuts a range into smaller ones.",
        (Field("chunk_size", Whole(1, RANGE_MAX), "How long each range is.", required=True),),
    ),
    "range_aggregator": Record(
        "range_aggregator",
        "Joins cursors that follow each other into ranges of one length.",
        (
            Field("range_size", Whole(1, RANGE_MAX), "How long each range is.", required=True),
            Field("start", Whole(0, RANGE_MAX), "Where the first range begins.", default=0),
        ),
    ),
    "sql": Record("sql", "One query over the inputs.", _QUERIED, one_of=("query", "file")),
    "ingest": Record(
        "ingest",
        "Files of another's making become rows.",
        (
            Field("format", Choice(("csv", "json", "parquet", "text")), "What the files are.", required=True),
            Field(
                "path",
                PLACE,
                "Which files, with {partition_key}, {start}, {end} or {cursor} where the task's own stands. Unset: "
                "those of the inputs.",
            ),
            Field(
                "options",
                _OPTIONS,
                "Options of Spark's reader, such as header: true.",
            ),
            Field(
                "columns",
                _COLUMNS,
                "What is in the files. Unset: learnt from the first ones, and kept.",
            ),
            Field(
                "missing",
                Choice(("fail", "keep")),
                "What to do about a file that is gone. fail: fail. keep: take the rows that were made of it before.",
                default="fail",
            ),
        ),
    ),
    "stream": Record(
        "stream",
        "Rows as they come, for a source of the kind always_on.",
        (
            Field("source", Choice(("files", "rate")), "Where they come from.", required=True),
            Field("path", PLACE, "files: the directory that they arrive in, each whole."),
            Field("format", Choice(("csv", "json", "parquet")), "files: what they are.", default="parquet"),
            Field("columns", _COLUMNS, "files: what is in them."),
            Field("options", _OPTIONS, "Options of Spark's reader, such as rowsPerSecond: 10."),
            Field("trigger_seconds", Whole(0, 86_400), "How long a batch is gathered.", default=5),
        ),
    ),
    "compact": Record(
        "compact",
        "The same rows in few files of about one size.",
        (Field("target_mb", Whole(1, 16_384), "How big a file should be, in MiB.", default=128),),
    ),
    "check": Record("check", "Lets through what meets the expectations.", ()),
    "alert": Record(
        "alert",
        "Tells somebody of each row that a query finds.",
        (
            *_QUERIED,
            Field("channel", Choice(("log", "webhook", "file")), "How to tell.", default="log"),
            Field("url", URL, "webhook: where to send them."),
            Field("url_secret", LOGICAL, "webhook: the name of the secret that holds the address."),
            Field("path", PLACE, "file: the directory that gets a file for each."),
            Field("limit", Whole(1, 100_000), "More rows than this are an error.", default=1_000),
        ),
        one_of=("query", "file"),
    ),
}
