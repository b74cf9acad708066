"""The operator that reads topics of Kafka, its configuration, and the rules that its fields must keep together."""

from __future__ import annotations

import re

from qo.pipeline.draft import JobDraft
from qo.pipeline.file_fields import columns
from qo.pipeline.kinds import Choice, Field, Items, Record, Scalar, Table, Text, Whole
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.problems import Path, Report
from qo.pipeline.texts import LINE, LOGICAL

# What a record has beside its value; each becomes a column, after ``prefix``.
RECORD_COLUMNS = ("key", "topic", "partition", "offset", "timestamp")
VALUE_COLUMN, MALFORMED_COLUMN = "value", "malformed"
ROWS_PER_BATCH = 1_000_000

_SERVER = r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}"
_SERVERS = Text("HOST:PORT, several separated by commas", rf"{_SERVER}(?:\s*,\s*{_SERVER})*", 2_000)
_TOPIC = Text("the name of a topic: letters, digits and . _ -", r"[A-Za-z0-9._-]{1,249}", 249)
_START = Text(
    "earliest, latest, or a time with its zone such as 2026-01-31T00:00:00Z",
    r"earliest|latest|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?(?:Z|[+-][0-9]{2}:[0-9]{2})",
)
_PREFIX = Text("letters, digits and _, such as kafka_", r"[A-Za-z_][A-Za-z0-9_]{0,49}")
_OWN_OPTIONS = {
    "subscribe", "subscribepattern", "assign", "startingoffsets", "startingoffsetsbytimestamp", "startingtimestamp",
    "endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp", "failondataloss", "maxoffsetspertrigger",
    "includeheaders", "kafka.bootstrap.servers", "kafka.sasl.mechanism",
}  # fmt: skip
_SECRET_OPTION = re.compile(r"password|jaas|secret|\.key\Z|keystore\.certificate\.chain", re.IGNORECASE)


def _check_kafka(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    _check_value(job_draft, path, report)
    for name in config.get("options", {}):
        at = (*path, "options", name)
        if name.lower() in _OWN_OPTIONS:
            report.add(at, f"{name!r} is no option of its own", "use the field of the config for it", key=True)
        elif _SECRET_OPTION.search(name):
            hint = "name a secret for it under 'secret_options'"
            report.add(at, f"everybody who sees the pipeline can read {name!r}", hint, key=True)
    if ("user" in config) != ("password_secret" in config):
        report.add(path, "a login is a user and a password", "write both of 'user' and 'password_secret'")
    if "mechanism" in config and "user" not in config:
        hint = "write 'user' and 'password_secret', or remove it"
        report.add((*path, "mechanism"), "'mechanism' is for a login", hint, key=True)
    secrets: list[tuple[Path, str]] = [
        (("secret_options", name), value) for name, value in config.get("secret_options", {}).items()
    ]
    if "password_secret" in config:
        secrets.append((("password_secret",), config["password_secret"]))
    for at, secret in secrets:
        if secret not in job_draft.job.secrets:
            hint = f"write 'secrets: [{secret}]'"
            report.add((*path, *at), f"{job_draft.job.name!r} does not list the secret {secret!r}", hint)


def _check_value(job_draft: JobDraft, path: Path, report: Report) -> None:
    config = job_draft.job.config
    declared = config.get("columns")
    value = config.get("value", "string" if declared is None else "json")
    if declared is None:
        if value == "json":
            report.add(path, "a value of JSON needs its 'columns'", "write 'columns: id bigint, item string'")
        if "malformed" in config:
            hint = "write 'columns', or remove it"
            report.add((*path, "malformed"), "'malformed' is for values of JSON", hint, key=True)
        return
    if value != "json":
        report.add(
            (*path, "columns"), f"a value that is a {value} has no columns", "write 'value: json'", key=True
        )
    prefix = config.get("prefix", "")
    names = {f"{prefix}{name}".lower() for name in (*RECORD_COLUMNS, MALFORMED_COLUMN)}
    for at, column in enumerate(declared):
        name = str(column["name"]).lower()
        if name in names:
            message = f"there are two columns {name[:80]!r}: what records have beside their value are columns, too"
            report.add((*path, "columns", at, "name"), message, "keep one, or write 'prefix: kafka_'")
        names.add(name)


KAFKA = OperatorSpec(
    name="kafka",
    runtimes=("spark",),
    run="qo.spark.operators.kafka:run",
    config=Record(
        "kafka",
        "Emits the records of topics of Kafka as rows, as a source of the kind always_on.",
        (
            Field("servers", _SERVERS, "Brokers to begin with, such as kafka-1.example.com:9092.", required=True),
            Field("topics", Items(_TOPIC, at_least=1, at_most=1_000, unique=True), "The topics."),
            Field(
                "pattern",
                LINE,
                "A regular expression of Java that whole names of topics match; also those that are made later.",
            ),
            Field(
                "from",
                _START,
                "Where the source begins: at the earliest or latest record, or at the first one from a time on.",
                default="earliest",
            ),
            Field("key", Choice(("string", "binary", "none")), "What the key becomes.", default="string"),
            Field(
                "value",
                Choice(("string", "binary", "json")),
                "What the value becomes: a column, or with json the declared columns. Unset: json with columns, "
                "else string.",
            ),
            columns("json: the columns, by the names of the fields."),
            Field(
                "malformed",
                Choice(("fail", "keep")),
                "json: what to do about a value that does not fit the columns. fail: fail. keep: the columns are "
                "null, and the column malformed has the text.",
                default="fail",
            ),
            Field("prefix", _PREFIX, "What the names of key, topic, partition, offset and timestamp begin with."),
            Field(
                "expired",
                Choice(("fail", "skip")),
                "What to do about records that are gone before they were read. fail: fail. skip: go on with the "
                "oldest that are there.",
                default="fail",
            ),
            Field(
                "rows_per_batch", Whole(1, 1_000_000_000), "The most records of a batch.", default=ROWS_PER_BATCH
            ),
            Field("trigger_seconds", Whole(0, 86_400), "For how long a batch is gathered.", default=5),
            Field("user", LINE, "The user of a login by name and password."),
            Field("password_secret", LOGICAL, "The name of the secret that holds the password."),
            Field(
                "mechanism",
                Choice(("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
                "How the password is shown to the brokers.",
                default="PLAIN",
            ),
            Field(
                "options",
                Table(Text("the name of an option"), Scalar(), at_most=100),
                "Further options of Spark's reader, such as kafka.security.protocol: SSL.",
            ),
            Field(
                "secret_options",
                Table(Text("the name of an option"), LOGICAL, at_most=20),
                "Options that are secrets, such as kafka.ssl.key.password, by the names of their secrets.",
            ),
        ),
        one_of=("topics", "pattern"),
    ),
    example="servers: HOST:PORT, topics: [clicks]",
    is_source=True,
    validate=_check_kafka,
)
