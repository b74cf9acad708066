"""What must be true of a job by itself: fields that belong together, and fields that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from zoneinfo import ZoneInfo

from qo.core.pipeline.dag import Join, Refresh, Source, SourceKind, Strategy, UpdateStrategy, input_name
from qo.pipeline.draft import Written
from qo.pipeline.expectations import expectations
from qo.pipeline.fields import REACTIVE_ONLY, SOURCE_FIELDS, SOURCE_ONLY
from qo.pipeline.problems import Path, Report

# Different in each attempt, so that a row written twice would not be recognised.
UNSTABLE = frozenset(
    {
        "attempt",
        "attempt_id",
        "current_timestamp",
        "lease_id",
        "lease_token",
        "monotonically_increasing_id",
        "now",
        "processed_at",
        "processing_time",
        "rand",
        "random",
        "run_id",
        "task_id",
        "worker_id",
    }
)

_RATE = re.compile(r"rate\([1-9][0-9]{0,5} (?:minute|hour|day)s?\)\Z")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*,/#-]{1,100}\Z")
_CRON_MAX = (59, 23, 31, 12, 7)
_STEP = re.compile(r"[/#][0-9]+")  # Behind these stands no time.


def activation(written: Written, report: Report) -> None:
    """Sources have a source, reactive jobs have inputs, and neither has what is the other's."""
    own, foreign = (SOURCE_ONLY, REACTIVE_ONLY) if written.job.is_source else (REACTIVE_ONLY, SOURCE_ONLY)
    word, other = ("source", "reactive") if written.job.is_source else ("reactive", "source")
    for name in own[0]:
        if name not in written.raw:
            message = f"the {word} job {written.job.name!r} has no {name!r}"
            report.add(written.path, message, f"write '{name}:', or 'activation: {other}'")
    for name in (*foreign[0], *foreign[1]):
        if name in written.raw:
            message = f"{name!r} is for {other} jobs, and {written.job.name!r} is a {word} job"
            report.add((*written.path, name), message, f"remove it, or write 'activation: {other}'", key=True)


def source(written: Written, report: Report) -> None:
    """A source has the fields of its kind."""
    given = written.job.source
    if given is None:
        return
    path: Path = (*written.path, "source")
    required, optional = SOURCE_FIELDS[given.kind]
    for name in required:
        if name not in written.raw["source"]:
            report.add(
                path, f"a {given.kind} source needs {name!r}", f"write '{name}:' beside 'kind: {given.kind}'"
            )
    for name in written.raw["source"]:
        if name not in ("kind", *required, *optional):
            owner = next(kind for kind, (need, may) in SOURCE_FIELDS.items() if name in (*need, *may))
            message = f"{name!r} is for {owner} sources, not for {given.kind}"
            report.add((*path, name), message, f"remove it, or write 'kind: {owner}'", key=True)
    if given.kind is SourceKind.CRON:
        _cron(given, path, report)


def _cron(given: Source, path: Path, report: Report) -> None:
    if given.schedule is not None and not is_schedule(given.schedule):
        hint = "write five fields, such as '0 6 * * *', or rate(5 minutes), rate(1 hour), rate(1 day)"
        report.add((*path, "schedule"), f"{given.schedule[:80]!r} is not a schedule", hint)
    if given.timezone is not None and not _is_zone(given.timezone):
        message = f"there is no time zone {given.timezone!r}"
        report.add((*path, "timezone"), message, "write one such as UTC or Europe/Berlin")


def is_schedule(text: str) -> bool:
    """Whether it looks like one. When it comes round is for the scheduler to say."""
    if _RATE.match(text):
        return True
    fields = text.split()
    return len(fields) == len(_CRON_MAX) and all(
        _CRON_FIELD.match(field)
        and all(int(number) <= most for number in re.findall(r"[0-9]+", _STEP.sub("", field)))
        for field, most in zip(fields, _CRON_MAX, strict=True)
    )


def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def updating(written: Written, report: Report) -> None:
    """Rows are appended once only if something stable tells them apart."""
    job = written.job
    if job.update_strategy is UpdateStrategy.APPEND and "unique_key" not in written.raw:
        hint = "write 'unique_key: [...]' with columns of the data, or 'update_strategy: replace'"
        path = (*written.path, "update_strategy")
        report.add(path, f"{job.name!r} appends, and has no unique_key: a retry would add its rows twice", hint)
    if job.update_strategy is not UpdateStrategy.APPEND and "unique_key" in written.raw:
        hint = "remove it, or write 'update_strategy: append'"
        report.add((*written.path, "unique_key"), "'unique_key' is for jobs that append", hint, key=True)
    for index, column in enumerate(job.unique_key):
        if column.lower() in UNSTABLE:
            message = f"{column!r} is another one in each attempt, so it tells no row from its repetition"
            report.add((*written.path, "unique_key", index), message, "name columns that come from the data")


def inputs(written: Written, report: Report) -> None:
    """Inputs have different names, one of them starts tasks, and joining needs something to join."""
    job = written.job
    seen: set[str] = set()
    for index, each in enumerate(job.inputs):
        path: Path = (*written.path, "inputs", index)
        name = input_name(each)
        if name in seen:
            report.add(
                path, f"{job.name!r} has two inputs named {name!r}", "write 'as: another_name' beside 'from'"
            )
        seen.add(name)
        if each.from_.dataset is not None and "output" in written.raw["inputs"][index]["from"]:
            hint = "remove it: a dataset is one output already"
            report.add((*path, "from", "output"), "'output' belongs to a job", hint, key=True)
    triggers = sum(each.trigger for each in job.inputs)
    if job.inputs and triggers == 0:
        message = f"no input of {job.name!r} starts it"
        report.add((*written.path, "inputs"), message, "remove 'trigger: false' from one of them")
    if job.join is Join.ALL and (job.execution_strategy is not Strategy.PER_PARTITION or triggers < 2):
        hint = "write 'execution_strategy: PerPartition' and two inputs that trigger, or remove it"
        report.add((*written.path, "join"), "'join: all' waits for a partition of several inputs", hint)


def refreshing(written: Written, report: Report) -> None:
    """Only what was made partition by partition, from an input that does not trigger, is made again by a refresh."""
    job = written.job
    for index, each in enumerate(job.inputs):
        if each.refresh is not Refresh.ON_CHANGE:
            continue
        path: Path = (*written.path, "inputs", index, "refresh")
        name = input_name(each)
        if each.trigger:
            message = f"'refresh: on_change' is for inputs with 'trigger: false', and {name!r} triggers"
            report.add(path, message, "remove it: a change of an input that triggers is worked on anyway")
        if job.execution_strategy is Strategy.PER_UPDATE:
            message = f"'refresh: on_change' makes partitions again, and {job.name!r} works by cursor"
            hint = (
                "write 'execution_strategy: PerPartition', or remove it and use qo invalidate on what it follows"
            )
            report.add(path, message, hint)
        if job.outputs == 0:
            message = f"'refresh: on_change' makes datasets again, and {job.name!r} makes none"
            report.add(path, message, "remove it: effects outside are not repeated")


RULES: tuple[Callable[[Written, Report], None], ...] = (
    activation,
    source,
    updating,
    inputs,
    refreshing,
    expectations,
)
