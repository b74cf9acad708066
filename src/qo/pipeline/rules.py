"""Rules for a job by itself: fields that need or exclude each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qo.core.pipeline.dag import BackpressureMode, Join, Refresh, Strategy, UpdateStrategy, input_name
from qo.core.words import with_article
from qo.pipeline.draft import JobDraft
from qo.pipeline.fields import REACTIVE_ONLY, SOURCE_ONLY
from qo.pipeline.partition_rules import check_partitions
from qo.pipeline.problems import Path, Report
from qo.pipeline.query_inputs import takes_query
from qo.pipeline.sources import SOURCES

# Columns that differ in each attempt, so that a row written twice would not be recognised.
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


def check_activation(job_draft: JobDraft, report: Report) -> None:
    """Check that sources have a source, reactive jobs have inputs, and neither has fields of the other."""
    own, foreign = (SOURCE_ONLY, REACTIVE_ONLY) if job_draft.job.is_source else (REACTIVE_ONLY, SOURCE_ONLY)
    word, other = ("source", "reactive") if job_draft.job.is_source else ("reactive", "source")
    instead = "inputs" if job_draft.job.is_source else "source"
    for name in own[0]:
        if name == "inputs" and takes_query(job_draft.job.operator):
            continue  # Its query says what it reads.
        if name not in job_draft.raw:
            message = f"the {word} job {job_draft.job.name!r} has no {name!r}"
            report.add(job_draft.path, message, f"write '{name}:', or '{instead}:'")
    for name in (*foreign[0], *foreign[1]):
        if name in job_draft.raw:
            message = f"{name!r} is for {other} jobs, and {job_draft.job.name!r} is a {word} job"
            report.add((*job_draft.path, name), message, f"remove it, or write 'activation: {other}'", key=True)


def check_source(job_draft: JobDraft, report: Report) -> None:
    """Check that a source has the fields of its kind."""
    source_ = job_draft.job.source
    if source_ is None:
        return
    path: Path = (*job_draft.path, "source")
    spec = SOURCES[source_.kind]
    fields: Mapping[str, Any] = job_draft.raw["source"]
    for field in spec.config.fields:
        if field.required and field.name not in fields:
            hint = f"write '{field.name}:' beside 'kind: {source_.kind}'"
            report.add(path, f"{with_article(source_.kind)} source needs {field.name!r}", hint)
    for name in fields:
        if name != "kind" and name not in spec.config.by_name:
            owner = next(kind for kind, other in SOURCES.items() if name in other.config.by_name)
            message = f"{name!r} is for {owner} sources, not for {source_.kind}"
            report.add((*path, name), message, f"remove it, or write 'kind: {owner}'", key=True)
    if spec.config.one_of and sum(name in fields for name in spec.config.one_of) != 1:
        choices = " or ".join(map(repr, spec.config.one_of))
        report.add(
            path, f"{with_article(source_.kind)} source needs either {choices}", "write exactly one of them"
        )
    if spec.validate is not None:
        spec.validate(source_, path, report)


def check_backpressure(job_draft: JobDraft, report: Report) -> None:
    """Check that only sources that can announce several things at once are declared to."""
    job = job_draft.job
    if job.backpressure_mode is not BackpressureMode.COALESCE:
        return
    if job.source is None or not SOURCES[job.source.kind].coalesces:
        kinds = ", ".join(kind for kind, spec in SOURCES.items() if spec.coalesces)
        message = f"'coalesce' is for sources of the kinds {kinds}, and {job.name!r} is none"
        report.add((*job_draft.path, "backpressure_mode"), message, "write hold or ignore")


def check_update_strategy(job_draft: JobDraft, report: Report) -> None:
    """Check that a job that appends has a stable key, without which a retry would append its rows twice."""
    job = job_draft.job
    if job.update_strategy is UpdateStrategy.APPEND and "unique_key" not in job_draft.raw:
        hint = "write 'unique_key: [...]' with columns of the data, or 'update_strategy: replace'"
        path = (*job_draft.path, "update_strategy")
        report.add(path, f"{job.name!r} appends, and has no unique_key: a retry would add its rows twice", hint)
    if job.update_strategy is not UpdateStrategy.APPEND and "unique_key" in job_draft.raw:
        hint = "remove it, or write 'update_strategy: append'"
        report.add((*job_draft.path, "unique_key"), "'unique_key' is for jobs that append", hint, key=True)
    for index, column in enumerate(job.unique_key):
        if column.lower() in UNSTABLE:
            message = f"{column!r} differs in each attempt, so a row that is written twice is not recognised"
            report.add((*job_draft.path, "unique_key", index), message, "name columns that come from the data")


def check_inputs(job_draft: JobDraft, report: Report) -> None:
    """Check that inputs have different names, that one of them triggers, and that a join has inputs to join."""
    job = job_draft.job
    names: set[str] = set()
    for index, each in enumerate(job.inputs):
        path: Path = (*job_draft.path, "inputs", index)
        name = input_name(each)
        if name in names:
            report.add(
                path, f"{job.name!r} has two inputs named {name!r}", "write 'as: another_name' beside 'from'"
            )
        names.add(name)
        if each.from_.dataset is not None and "output" in job_draft.raw["inputs"][index]["from"]:
            hint = "remove it: a dataset is one output already"
            report.add((*path, "from", "output"), "'output' belongs to a job", hint, key=True)
    triggers = sum(each.trigger for each in job.inputs)
    if job.inputs and triggers == 0:
        message = f"no input of {job.name!r} starts it"
        report.add((*job_draft.path, "inputs"), message, "remove 'trigger: false' from one of them")
    if job.join is Join.ALL and (job.execution_strategy is not Strategy.PER_PARTITION or triggers < 2):
        hint = "write 'execution_strategy: PerPartition' and two inputs that trigger, or remove it"
        report.add((*job_draft.path, "join"), "'join: all' waits for a partition of several inputs", hint)


def check_refresh(job_draft: JobDraft, report: Report) -> None:
    """Check that only jobs that work by partition refresh, and only for inputs that do not trigger."""
    job = job_draft.job
    for index, each in enumerate(job.inputs):
        if each.refresh is not Refresh.ON_CHANGE:
            continue
        path: Path = (*job_draft.path, "inputs", index, "refresh")
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


RULES: tuple[Callable[[JobDraft, Report], None], ...] = (
    check_activation,
    check_source,
    check_backpressure,
    check_update_strategy,
    check_inputs,
    check_refresh,
    check_partitions,
)
