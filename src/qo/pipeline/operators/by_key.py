"""The operators for rows by key: each reads what has changed in its input, and rewrites the buckets that it touches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qo.core.pipeline.dag import Strategy, UpdateStrategy
from qo.pipeline.draft import JobDraft
from qo.pipeline.kinds import Field, Items, Record, Text, Whole
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.problems import Report
from qo.pipeline.texts import COLUMN

# A bucket has a partition in each of two outputs, and a completion names at most 1,000.
BUCKETS_MAX = 500
BUCKETS = 16
REVISION_MAX = 2**63 - 1
CONDITION = Text("a condition in Spark SQL", chars_max=10_000)
DISTANCE = Text(
    'a time such as 90s, 15m, 6h or 30d, or a number (in quotes: "1000")',
    "[1-9][0-9]{0,6}[smhd]|[1-9][0-9]{0,17}",
    18,
)

_KEYS = Field(
    "keys",
    Items(COLUMN, at_least=1, at_most=32, unique=True),
    "The columns that make up the key. Nulls are equal to each other.",
    required=True,
)
_SEQUENCE = Field(
    "sequence_by",
    COLUMN,
    "The column that says which of two rows of a key is later, whenever they arrive: a number, a date, a timestamp or "
    "text. A null is earlier than any value; of several rows with one value a deletion is the later, else the other "
    "columns decide, in the order of their names.",
    required=True,
)
_DELETES = Field("deletes", CONDITION, "Which rows say that their key is deleted, such as op = 'D'.")
_BUCKETS = Field(
    "buckets",
    Whole(1, BUCKETS_MAX),
    "Into how many partitions the keys are spread; one that no key has changed in is not written again.",
    default=BUCKETS,
)
_LEAVE_OUT = Field(
    "leave_out",
    Items(COLUMN, at_least=1, at_most=100, unique=True),
    "Columns of the input that the output does not have, such as op.",
)


def _check_columns(job_draft: JobDraft, report: Report) -> None:
    """Check what 'latest' and 'history' have in common."""
    config, path = job_draft.job.config, (*job_draft.path, "config")
    keys = _lowered(config["keys"])
    sequence = str(config["sequence_by"])
    if sequence.lower() in keys:
        message = f"all rows of one key have the same {sequence[:80]!r}, so none of them is the latest"
        report.add((*path, "sequence_by"), message, "name a column that is not one of 'keys'")
    for at, name in enumerate(config.get("leave_out", ())):
        if name.lower() in {*keys, sequence.lower()}:
            message = f"{name[:80]!r} is needed to merge further rows, and cannot be left out"
            report.add((*path, "leave_out", at), message, "remove it")
    _check_output(job_draft, report)


def _check_output(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, job_draft.path
    if job.update_strategy is UpdateStrategy.APPEND:
        message = f"{job.operator} decides itself which rows it adds and which it replaces"
        report.add((*path, "update_strategy"), message, "remove it, and 'unique_key'")
    if job.cursor_column is not None:
        message = (
            f"'cursor_column' is recorded of each partition, and {job.operator} makes no partitions of its input's"
        )
        report.add((*path, "cursor_column"), message, "remove it", key=True)
    if job.partitions is not None:
        parts = "cursors" if job.operator == CHANGES.name else "buckets"
        message = f"{job.operator} makes {parts}, whatever the partitions of its input are"
        report.add((*path, "partitions"), message, "remove it", key=True)


def _check_latest(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    _check_columns(job_draft, report)
    if "keep_deletes" in config and "deletes" not in config:
        message = (
            "'keep_deletes' says how long deletions are remembered, and nothing says which rows are deletions"
        )
        report.add((*path, "keep_deletes"), message, "write 'deletes:' with a condition, or remove it", key=True)


def _check_history(job_draft: JobDraft, report: Report) -> None:
    config, path = job_draft.job.config, (*job_draft.path, "config")
    _check_columns(job_draft, report)
    never = {*_lowered(config["keys"]), str(config["sequence_by"]).lower()}
    left_out = _lowered(config.get("leave_out", ()))
    for at, name in enumerate(config.get("track", ())):
        if name.lower() in never:
            message = f"{name[:80]!r} identifies a row, so a change of it is no change of the row"
            report.add((*path, "track", at), message, "name other columns")
        elif name.lower() in left_out:
            report.add((*path, "track", at), f"{name[:80]!r} is left out, too", "name it in one of the two")


def _check_changes(job_draft: JobDraft, report: Report) -> None:
    _check_output(job_draft, report)
    between: Sequence[int] = job_draft.job.config.get("between", (0, 1))
    if between[0] >= between[1]:
        path = (*job_draft.path, "config", "between")
        report.add(path, f"revision {between[0]} is not before {between[1]}", "write the earlier revision first")


def _lowered(names: Iterable[Any]) -> set[str]:
    return {str(each).lower() for each in names}  # Spark ignores the case of names, too.


def _outputs_of_latest(config: Mapping[str, Any]) -> int:
    return 2 if "deletes" in config else 1


LATEST = OperatorSpec(
    name="latest",
    runtimes=("spark",),
    keeps_row_per_key=True,
    run="qo.spark.operators.latest:run",
    config=Record(
        "latest",
        "Keeps the latest row of each key, in whatever order rows arrive.",
        (
            _KEYS,
            _SEQUENCE,
            _DELETES,
            Field(
                "keep_deletes",
                DISTANCE,
                "How far behind the newest row of its bucket a deletion is remembered, in units of sequence_by; a row "
                "that is older than that, of a key that is not there, is left out. Unset: for ever.",
            ),
            _BUCKETS,
            _LEAVE_OUT,
        ),
    ),
    example="keys: [id], sequence_by: changed_at",
    inputs_max=1,
    outputs_of=_outputs_of_latest,
    strategy=Strategy.PER_CHANGE,
    emits_partitions=True,
    validate=_check_latest,
)

HISTORY = OperatorSpec(
    name="history",
    runtimes=("spark",),
    run="qo.spark.operators.row_history:run",
    config=Record(
        "history",
        "Keeps every version of the row of each key, with the time from which and until which it was valid.",
        (
            _KEYS,
            _SEQUENCE,
            Field(
                "track",
                Items(COLUMN, at_least=1, at_most=1_000, unique=True),
                "The columns whose change makes a new version. Unset: all but the key and sequence_by.",
            ),
            _DELETES,
            _BUCKETS,
            _LEAVE_OUT,
        ),
    ),
    example="keys: [id], sequence_by: changed_at",
    inputs_max=1,
    strategy=Strategy.PER_CHANGE,
    emits_partitions=True,
    validate=_check_history,
)

CHANGES = OperatorSpec(
    name="changes",
    runtimes=("spark",),
    run="qo.spark.operators.version_changes:run",
    config=Record(
        "changes",
        "What differs between two versions of its input, as rows: added, removed and changed.",
        (
            _KEYS,
            Field(
                "between",
                Items(Whole(0, REVISION_MAX), at_least=2, at_most=2),
                "Two revisions to compare, the earlier first. Unset: the one that was read last, and the current one.",
            ),
        ),
    ),
    example="keys: [id]",
    inputs_max=1,
    strategy=Strategy.PER_CHANGE,
    validate=_check_changes,
)

BY_KEY = (LATEST, HISTORY, CHANGES)
