"""The operators that Spark runs, each with its configuration and the rules that its fields must keep together."""

from __future__ import annotations

import re
from dataclasses import replace

from qo.config.location import ELSEWHERE
from qo.core.pipeline.dag import UpdateStrategy
from qo.pipeline.draft import JobDraft
from qo.pipeline.file_fields import FORMAT, MISSING, OPTIONS, STREAM_FORMAT, columns
from qo.pipeline.kinds import Choice, Field, Items, Record, Text, Whole
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.problems import Report, closest
from qo.pipeline.texts import COLUMN, LINE, LOGICAL, QUERY, URL

# A relative path counts from the directory in which the worker runs, as the modules of operators do.
PLACE = Text("a path, file:PATH or s3://BUCKET/KEY", rf"s3://\S+|(file:)?(?!{ELSEWHERE})\S.*", 2_000)
PLACEHOLDERS = ("partition_key", "start", "end", "cursor")  # Of a path, as {start}.

_QUERY_FIELDS = (
    Field("query", QUERY, "The query. Jobs and published datasets that it names are its inputs."),
    Field("file", LINE, "The file with the query, relative to the pipeline's own."),
)


def _check_ingest(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    if "columns" in config and config["format"] == "text":
        hint = "remove 'columns', or write another format"
        report.add((*path, "columns"), "text has one column, which is called value", hint, key=True)
    if config.get("missing") == "keep" and job_draft.job.update_strategy is UpdateStrategy.APPEND:
        hint = "write 'update_strategy: replace', or 'missing: fail'"
        report.add((*path, "missing"), "rows that were appended cannot be told apart to be kept", hint)
    names: set[str] = set()
    for at, column in enumerate(config.get("columns", ())):
        name = str(column["name"]).lower()
        if name in names:
            report.add((*path, "columns", at, "name"), f"there are two columns {name[:80]!r}", "keep one")
        names.add(name)
    for placeholder in re.findall(r"\{([^{}]*)\}", config.get("path", "")):
        if placeholder not in PLACEHOLDERS:
            hint = closest(placeholder, PLACEHOLDERS)
            report.add((*path, "path"), f"nothing stands for {{{placeholder[:80]}}} in a path", hint)


INGEST = OperatorSpec(
    name="ingest",
    runtimes=("spark",),
    run="qo.spark.operators.ingest:run",
    config=Record(
        "ingest",
        "Turns files that something else has written into rows.",
        (
            Field("format", FORMAT, "The format of the files.", required=True),
            Field(
                "path",
                PLACE,
                "Which files, with {partition_key}, {start}, {end} or {cursor} for those of the task. Unset: "
                "the files of the inputs.",
            ),
            OPTIONS,
            columns("The columns of the files. Unset: learnt from the first files, and kept."),
            MISSING,
        ),
    ),
    example="format: csv",
    validate=_check_ingest,
)

SQL = OperatorSpec(
    name="sql",
    runtimes=("spark",),
    run="qo.spark.operators.sql:run",
    config=Record("sql", "One query over the inputs.", _QUERY_FIELDS, one_of=("query", "file")),
    example="query: SELECT ...",
)


def _check_dedupe(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    if str(config["order_by"]).lower() in {str(key).lower() for key in config["keys"]}:
        message = f"all rows of one key have the same {config['order_by'][:80]!r}, so none of them is the newest"
        report.add((*path, "order_by"), message, "name a column that is not one of 'keys'")


DEDUPE = OperatorSpec(
    name="dedupe",
    runtimes=("spark",),
    keeps_row_per_key=True,
    run="qo.spark.operators.dedupe:run",
    config=Record(
        "dedupe",
        "Keeps one row for each key: the newest.",
        (
            Field(
                "keys",
                Items(COLUMN, at_least=1, at_most=32, unique=True),
                "The columns that make up the key.",
                required=True,
            ),
            Field(
                "order_by",
                COLUMN,
                "The column whose largest value is the newest. A null is older than any value; of several rows with "
                "the largest value, the other columns decide, in the order of their names.",
                required=True,
            ),
        ),
    ),
    example="keys: [id], order_by: updated_at",
    inputs_max=1,
    validate=_check_dedupe,
)

COMPACT = OperatorSpec(
    name="compact",
    runtimes=("spark",),
    run="qo.spark.operators.compact:run",
    config=Record(
        "compact",
        "Writes the same rows into few files of about one size.",
        (Field("target_mb", Whole(1, 16_384), "How big a file should be, in MiB.", default=128),),
    ),
    inputs_max=1,
)

CHECK = OperatorSpec(
    name="check",
    runtimes=("spark",),
    run="qo.spark.operators.check:run",
    config=Record("check", "Passes its input on if that meets the expectations.", ()),
    inputs_max=1,
)

# What each channel of an alert needs, and which fields can be that.
_CHANNELS = {
    "log": ("", ()),
    "webhook": ("'url' or 'url_secret'", ("url", "url_secret")),
    "file": ("'path'", ("path",)),
}


def _check_alert(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, (*job_draft.path, "config")
    channel = job.config.get("channel", "log")
    needed, allowed = _CHANNELS[channel]
    targets = [name for name in ("url", "url_secret", "path") if name in job.config]
    for name in targets:
        if name not in allowed:
            hint = f"remove it, or write 'channel: {'file' if name == 'path' else 'webhook'}'"
            report.add((*path, name), f"{name!r} is not for the channel {channel}", hint, key=True)
    if needed and len([name for name in targets if name in allowed]) != 1:
        report.add(path, f"the channel {channel} needs {needed}", "write exactly one of them")
    secret = job.config.get("url_secret")
    if secret is not None and secret not in job.secrets:
        hint = f"write 'secrets: [{secret}]'"
        report.add((*path, "url_secret"), f"{job.name!r} does not list the secret {secret!r}", hint)


ALERT = OperatorSpec(
    name="alert",
    runtimes=("spark",),
    run="qo.spark.operators.alert:run",
    config=Record(
        "alert",
        "Sends a message for each row that a query finds.",
        (
            *_QUERY_FIELDS,
            Field("channel", Choice(("log", "webhook", "file")), "Where messages go.", default="log"),
            Field("url", URL, "webhook: the address that they are sent to."),
            Field("url_secret", LOGICAL, "webhook: the name of the secret that holds the address."),
            Field("path", PLACE, "file: the directory that gets a file for each."),
            Field("limit", Whole(1, 100_000), "More rows than this are an error.", default=1_000),
        ),
        one_of=("query", "file"),
    ),
    example="query: SELECT ...",
    has_side_effects=True,
    validate=_check_alert,
)


def _check_stream(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    for name in ("path", "columns"):
        if config["source"] == "files" and name not in config:
            report.add(path, f"a stream of files needs its {name!r}", f"write '{name}:' beside 'source: files'")
    for name in ("path", "columns", "format"):
        if config["source"] != "files" and name in config:
            message = f"{name!r} is for 'source: files', not for {config['source']}"
            report.add((*path, name), message, "remove it", key=True)


STREAM = OperatorSpec(
    name="stream",
    runtimes=("spark",),
    run="qo.spark.operators.stream:run",
    config=Record(
        "stream",
        "Emits rows as they arrive, as a source of the kind always_on.",
        (
            Field("source", Choice(("files", "rate")), "Where the rows come from.", required=True),
            Field("path", PLACE, "files: the directory in which they arrive, each complete."),
            Field("format", STREAM_FORMAT, "files: their format.", default="parquet"),
            columns("files: their columns."),
            replace(OPTIONS, help="Options of Spark's reader, such as rowsPerSecond: 10."),
            Field("trigger_seconds", Whole(0, 86_400), "For how long a batch is gathered.", default=5),
        ),
    ),
    example="source: rate",
    is_source=True,
    validate=_check_stream,
)

SPARK = (SQL, INGEST, DEDUPE, COMPACT, CHECK, ALERT, STREAM)
