"""The operator that reads databases, its configuration, and the rules that its fields must keep together."""

from __future__ import annotations

import re

from qo.core.pipeline.dag import UpdateStrategy
from qo.core.pipeline.jdbc_url import find_password, scheme_of
from qo.pipeline.draft import JobDraft
from qo.pipeline.file_fields import OPTIONS
from qo.pipeline.kinds import Field, Record, Scalar, Text, Whole
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.problems import Path, Report, closest
from qo.pipeline.texts import COLUMN, LINE, LOGICAL

_NAME = r'(?:[A-Za-z_][A-Za-z0-9_$]*|"[^"]+"|`[^`]+`|\[[^\]]+\])'
_TABLE = Text("a table, or schema.table", rf"{_NAME}(?:\.{_NAME}){{0,2}}", 400)
_QUERY = Text("a query of the database", r"\s*(?i:select|with)\b[\s\S]*", 60_000)
_PLACEHOLDERS = ("partition_key", "start", "end", "cursor")
_OWN_OPTIONS = {
    "url", "user", "password", "dbtable", "query", "driver",
    "partitioncolumn", "lowerbound", "upperbound", "numpartitions",
}  # fmt: skip


def _check_jdbc(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, (*job_draft.path, "config")
    config = job.config
    if ("table" in config) == ("query" in config):
        report.add(path, "jdbc reads either a table or a query", "write one of 'table' and 'query'")
    _check_credentials(job_draft, path, report)
    for placeholder in re.findall(r"\{([a-z_]*)\}", config.get("query", "")):
        if placeholder not in _PLACEHOLDERS:
            hint = closest(placeholder, _PLACEHOLDERS)
            report.add((*path, "query"), f"nothing stands for {{{placeholder[:80]}}} in a query", hint)
    for name in config.get("options", {}):
        if name.lower() in _OWN_OPTIONS:
            hint = "use the field of the config for it; passwords are secrets"
            report.add((*path, "options", name), f"{name!r} is no option of its own", hint, key=True)
    _check_cursor(job_draft, path, report)


def _check_credentials(job_draft: JobDraft, path: Path, report: Report) -> None:
    job = job_draft.job
    url = job.config.get("url")
    if url is not None and scheme_of(url) is None:
        hint = "write it as in jdbc:postgresql://HOST/NAME"
        report.add((*path, "url"), f"{url.partition('?')[0][:80]!r} is no URL of JDBC", hint)
    elif url is not None and find_password(url) is not None:
        hint = "write 'password_secret', or 'url_secret' for all of it, and list it under the job's 'secrets'"
        report.add(
            (*path, "url"), "there is a password in 'url', which everybody who sees the pipeline can read", hint
        )
    for field in ("url_secret", "password_secret"):
        secret = job.config.get(field)
        if secret is not None and secret not in job.secrets:
            hint = f"write 'secrets: [{secret}]'"
            report.add((*path, field), f"{job.name!r} does not list the secret {secret!r}", hint)


def _check_cursor(job_draft: JobDraft, path: Path, report: Report) -> None:
    job = job_draft.job
    appends = job.update_strategy is UpdateStrategy.APPEND
    if "cursor" in job.config and not appends:
        message = "each task reads what is new by 'cursor', and would replace what is there"
        report.add((*path, "cursor"), message, "write 'update_strategy: append' and 'unique_key: [...]'", key=True)
    if "cursor" not in job.config and "overlap" in job.config:
        report.add(
            (*path, "overlap"), "'overlap' is for reading by a cursor", "write 'cursor', or remove it", key=True
        )


JDBC = OperatorSpec(
    name="jdbc",
    runtimes=("spark",),
    run="qo.spark.operators.jdbc:run",
    config=Record(
        "jdbc",
        "Reads a table or a query of a database.",
        (
            Field("url", LINE, "Its URL without a password, such as jdbc:postgresql://HOST/NAME."),
            Field("url_secret", LOGICAL, "The name of the secret that holds the URL."),
            Field("user", LINE, "The user, unless the URL has it."),
            Field("password_secret", LOGICAL, "The name of the secret that holds the password."),
            Field("table", _TABLE, "The table."),
            Field(
                "query",
                _QUERY,
                "A query instead, with {partition_key}, {start}, {end} or {cursor} of the task.",
            ),
            Field(
                "cursor",
                COLUMN,
                "A column that grows: each task reads what lies above the largest committed value. Unset: all.",
            ),
            Field(
                "overlap",
                Whole(1, 31_536_000),
                "How far below that value rows are read once more, because some come late: seconds of "
                "times, days of dates, else a number. Those that are committed, by unique_key, are left out.",
            ),
            Field(
                "split",
                Record(
                    "split",
                    "Reads several parts at a time.",
                    (
                        Field("column", COLUMN, "A number, date or time, best with an index.", required=True),
                        Field("parts", Whole(2, 1_000), "How many parts, each on a connection.", required=True),
                        Field(
                            "lower", Scalar(), "Where the second part begins, about. Unset: the smallest value."
                        ),
                        Field("upper", Scalar(), "Where the last part ends, about. Unset: the largest value."),
                    ),
                ),
                "How the rows are read side by side. Unset: on one connection.",
            ),
            Field("options", OPTIONS.kind, "Further options of Spark's reader, such as queryTimeout: 60."),
        ),
        one_of=("url", "url_secret"),
    ),
    example="url_secret: shop_db, table: orders",
    validate=_check_jdbc,
)
