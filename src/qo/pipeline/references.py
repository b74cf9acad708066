"""Rules for all jobs together: names are unique, references exist, and there are no cycles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from qo.core.pipeline.dag import From, Input, Strategy
from qo.core.pipeline.plan import in_order, upstream
from qo.core.words import with_article
from qo.pipeline.draft import DagDraft, JobDraft
from qo.pipeline.fields import JOBS_MAX, OUTPUTS_ALL_MAX
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.problems import Path, Report, closest
from qo.pipeline.sink_rules import check_sinks
from qo.pipeline.sources import SOURCES


def check_references(draft: DagDraft, known_datasets: Mapping[str, str] | None, report: Report) -> None:
    by_name = _check_names(draft, report)
    _check_size(draft, report)
    _check_webhooks(draft, report)
    for job_draft in draft.jobs:
        for index, each in enumerate(job_draft.job.inputs):
            path: Path = (*job_draft.path, "inputs", index, "from")
            if report.full:
                return  # Looking for similar names is slow.
            if each.from_.job is not None:
                _check_output(each.from_, path, by_name, draft.names, report)
            else:
                _check_dataset(each, path, draft, known_datasets, report)
    for name, publish in draft.publish.items():
        _check_output(publish.from_, ("publish", name, "from"), by_name, draft.names, report)
    check_sinks(draft, report)
    _check_cycles(draft, by_name, report)
    _check_events(draft, by_name, report)


def _check_names(draft: DagDraft, report: Report) -> Mapping[str, JobDraft]:
    by_name: dict[str, JobDraft] = {}
    for job_draft in draft.jobs:
        first = by_name.setdefault(job_draft.job.name, job_draft)
        if first is not job_draft:
            line = report.spot.at(first.path).line
            message = f"there are two jobs named {job_draft.job.name!r} (the first on line {line})"
            report.add((*job_draft.path, "name"), message, "give one of them another name")
    return by_name


def _check_size(draft: DagDraft, report: Report) -> None:
    outputs = sum(job_draft.job.outputs for job_draft in draft.jobs)
    if outputs > OUTPUTS_ALL_MAX and len(draft.jobs) <= JOBS_MAX:  # Too many jobs have been reported already.
        message = f"the jobs have {outputs} outputs together, and a pipeline has at most {OUTPUTS_ALL_MAX}"
        report.add(("jobs",), message, "split the pipeline into several")


def _check_webhooks(draft: DagDraft, report: Report) -> None:
    owners: dict[str, str] = {}
    for job_draft in draft.jobs:
        source = job_draft.job.source
        if source is None or source.webhook_path is None:
            continue
        owner = owners.setdefault(source.webhook_path.strip("/"), job_draft.job.name)
        if owner != job_draft.job.name:
            message = f"the path {source.webhook_path!r} belongs to {owner!r} already"
            report.add((*job_draft.path, "source", "webhook_path"), message, "write another path")


def _check_output(
    reference: From, path: Path, by_name: Mapping[str, JobDraft], names: frozenset[str], report: Report
) -> None:
    if reference.job is None or reference.job not in names:
        report.add((*path, "job"), f"there is no job {reference.job!r}", closest(reference.job or "", names))
        return
    producer = by_name.get(reference.job)
    if producer is None or reference.output < producer.job.outputs:
        return
    count = producer.job.outputs
    hint = (
        f"write one from 0 to {count - 1}"
        if count
        else f"give {reference.job!r} an output, or remove the reference"
    )
    message = f"{reference.job!r} has no output {reference.output}: it has {count}, counted from 0"
    report.add((*path, "output"), message, hint)


def _check_dataset(
    each: Input, path: Path, draft: DagDraft, known_datasets: Mapping[str, str] | None, report: Report
) -> None:
    name = each.from_.dataset or ""
    if name in draft.publish or known_datasets is None or name in known_datasets:
        return
    if name in draft.names:
        hint = f"write 'from: {{job: {name}}}' for the job of this pipeline"
    else:
        suggestion = _suggestion(name, {*draft.publish, *known_datasets})
        hint = f"publish it first, or write the name of one that is{suggestion}"
    report.add((*path, "dataset"), f"no pipeline publishes a dataset {name!r}", hint)


def _suggestion(name: str, published: Collection[str]) -> str:
    hint = closest(name, published)
    return f": {hint}" if hint.startswith("did you mean") else ""


def _check_cycles(draft: DagDraft, by_name: Mapping[str, JobDraft], report: Report) -> None:
    dag = draft.dag()
    acyclic = {job.name for job in in_order(dag)}
    feeds = {
        name: sorted({each for one in job_draft.job.inputs if (each := upstream(dag, one)) in by_name and each})
        for name, job_draft in by_name.items()
    }
    cyclic = {
        name: [each for each in feeds[name] if each not in acyclic] for name in by_name if name not in acyclic
    }
    for cycle in _find_cycles(cyclic):
        path = (*by_name[cycle[0]].path, "inputs")
        message = f"the jobs wait for each other: {' -> '.join([*cycle, cycle[0]])}"
        report.add(path, message, "remove one of these inputs, or split a job in two")


def _find_cycles(feeds: Mapping[str, list[str]]) -> Iterator[list[str]]:
    """Yield cycles among jobs that each have another of them upstream, in the direction of the data."""
    visited: set[str] = set()
    for start in sorted(feeds):
        walk: dict[str, None] = {}
        name: str | None = start
        while name is not None and name not in visited:
            visited.add(name)
            walk[name] = None
            name = feeds[name][0] if feeds[name] else None
        if name is not None and name in walk:
            steps = list(walk)
            yield list(reversed(steps[steps.index(name) :]))


def _check_events(draft: DagDraft, by_name: Mapping[str, JobDraft], report: Report) -> None:
    """Check that no job waits for cursors where only partitions are emitted, or the other way round."""
    dag = draft.dag()
    for job_draft in draft.jobs:
        strategy = job_draft.job.execution_strategy
        for index, each in enumerate(job_draft.job.inputs):
            producer = by_name.get(upstream(dag, each) or "")
            if not each.trigger or producer is None:
                continue
            if strategy is Strategy.PER_UPDATE and _emits_partitions(producer):
                emits, instead = f"{producer.job.name!r} emits partitions", Strategy.PER_PARTITION
                waits = "cursors"
            elif strategy is Strategy.PER_PARTITION and (kind := _cursor_kind(producer)) is not None:
                emits, instead = f"{producer.job.name!r} is {kind} and emits cursors", Strategy.PER_UPDATE
                waits = "partitions"
            else:
                continue
            message = f"{emits}, and {job_draft.job.name!r} waits for {waits}"
            hint = f"write 'execution_strategy: {instead}', or 'trigger: false' on this input"
            report.add((*job_draft.path, "inputs", index), message, hint)


def _emits_partitions(producer: JobDraft) -> bool:
    """Return whether a job certainly emits partitions. What others emit is known only when they run."""
    spec = BUILT_IN.get(producer.job.operator)
    emits_partitions = spec is not None and spec.emits_partitions
    announces_them = _announces_partitions(producer)
    return emits_partitions or announces_them or producer.job.execution_strategy is Strategy.PER_PARTITION


def _announces_partitions(producer: JobDraft) -> bool:
    """Return whether a source that emits cursors otherwise emits partitions, because it declares what they are."""
    source, partitions = producer.job.source, producer.job.partitions
    return source is not None and partitions is not None and SOURCES[source.kind].emits_cursors


def _cursor_kind(producer: JobDraft) -> str | None:
    """Return what a job is that emits nothing but cursors; None for any other job."""
    kind = producer.job.source.kind if producer.job.source is not None else None
    if producer.job.partitions is not None:
        return None
    if kind is not None and SOURCES[kind].emits_cursors:
        return f"{with_article(kind)} source"
    by_change = producer.job.execution_strategy is Strategy.PER_CHANGE and not _emits_partitions(producer)
    return f"a job of {producer.job.operator}" if by_change else None
