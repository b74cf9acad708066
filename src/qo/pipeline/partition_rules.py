"""Rules for kinds of partitions: they are declared with what they need and where partitions are made, and those of a
job can be made of those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from qo.core.pipeline.dag import Complete, Job, Strategy, UpdateStrategy, input_name
from qo.core.pipeline.part_maps import PARTS_MAX, PartMap, can_map, is_too_wide, map_inputs
from qo.core.pipeline.partitions import PartitionKind, Partitions, check_key, is_zone
from qo.core.pipeline.plan import resolve_partitions, source_partitions
from qo.core.pipeline.url_pattern import url_problem
from qo.core.words import with_article
from qo.errors import UsageError
from qo.pipeline.draft import DagDraft, JobDraft
from qo.pipeline.problems import Path, Report
from qo.pipeline.sources import SOURCES

_WITHIN_A_DAY = (PartitionKind.MINUTE, PartitionKind.HOUR, PartitionKind.DAY)
_READ_BACK = (("window", 1), ("offset", 0))


def check_partitions(job_draft: JobDraft, report: Report) -> None:
    """Check that a job with declared partitions makes any, and that the declaration has the fields of its kind."""
    source = job_draft.job.source
    if source is not None and source.offset and job_draft.job.partitions is None:
        message = f"'offset' counts partitions, and those of {job_draft.job.name!r} are not declared"
        hint = "write 'partitions: {kind: day}' beside 'source:', or remove it"
        report.add((*job_draft.path, "source", "offset"), message, hint, key=True)
    if source is not None and source.url is not None:
        _check_url(job_draft, source.url, report)
    if job_draft.job.partitions is not None:
        _check_maker(job_draft, report)
        _check_fields(job_draft.job.partitions, (*job_draft.path, "partitions"), report)


def _check_url(job_draft: JobDraft, url: str, report: Report) -> None:
    job, path = job_draft.job, (*job_draft.path, "source")
    partitions = job.partitions
    if partitions is None or not partitions.in_time or partitions.start is None:
        message = f"'url' has one file for each partition, and it is not declared which there are of {job.name!r}"
        report.add((*path, "url"), message, "write 'partitions: {kind: day, start: ...}' beside 'source:'")
    elif (problem := url_problem(url, partitions.kind)) is not None:
        report.add((*path, "url"), *problem)
    if job.source is not None and job.source.key is not None:
        report.add((*path, "key"), "with 'url', the key is that of the partition", "remove it", key=True)


def _check_maker(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, (*job_draft.path, "partitions")
    if job.outputs == 0:
        message = f"'partitions' says what is in the outputs of a job, and {job.name!r} has none"
        report.add(path, message, "remove it", key=True)
    emits_cursors = job.source is not None and SOURCES[job.source.kind].emits_cursors
    if emits_cursors and job.source is not None and job.partitions is not None and not job.partitions.in_time:
        message = f"{job.name!r} is a {job.source.kind} source: it announces times, and no {job.partitions.kind}"
        report.add(path, message, "write a kind of time, such as 'kind: day', or remove it", key=True)


def _check_fields(partitions: Partitions, path: Path, report: Report) -> None:
    kind, zone = partitions.kind, partitions.timezone
    if partitions.range is not None and kind is not PartitionKind.INTEGER:
        message = f"'range' is for partitions of the kind integer, not {kind}"
        report.add((*path, "range"), message, "remove it", key=True)
    if zone is not None and not partitions.in_time:
        message = f"'timezone' is for partitions of time, not of the kind {kind}"
        report.add((*path, "timezone"), message, "remove it", key=True)
    elif zone is not None and not is_zone(zone):
        hint = "write one such as UTC or Europe/Berlin"
        report.add((*path, "timezone"), f"there is no time zone {zone!r}", hint)
    else:
        if partitions.start is not None:
            _check_start(partitions, (*path, "start"), report)
        _check_gaps(partitions, path, report)


def _check_gaps(partitions: Partitions, path: Path, report: Report) -> None:
    if partitions.weekdays is not None and partitions.kind not in _WITHIN_A_DAY:
        message = f"'weekdays' is for partitions of a day or less, not of the kind {partitions.kind}"
        report.add((*path, "weekdays"), message, "remove it, or name keys under 'without'", key=True)
    if partitions.without and partitions.kind is PartitionKind.TEXT:
        message = "of partitions of text none is expected"
        report.add((*path, "without"), message, "remove it", key=True)
    for index, each in enumerate(partitions.without):
        try:
            check_key(partitions, each)
        except UsageError as error:
            message, _, hint = str(error).partition(": ")
            report.add((*path, "without", index), message, hint)


def _check_start(partitions: Partitions, path: Path, report: Report) -> None:
    if partitions.kind is PartitionKind.TEXT:
        message = "partitions of text have no order, so none is the first"
        report.add(path, message, "remove it", key=True)
    try:
        check_key(partitions, partitions.start)
    except UsageError as error:
        message, _, hint = str(error).partition(": ")
        report.add(path, message, hint)


def check_maps(draft: DagDraft, report: Report) -> None:
    """Check that the partitions of each job can be made of those of its inputs, as they are declared."""
    dag = draft.dag()
    resolved = resolve_partitions(dag)
    for job_draft in draft.jobs:
        job, path = job_draft.job, job_draft.path
        if report.full or job.name not in resolved:
            return
        own = resolved[job.name]
        sources = source_partitions(dag, job, resolved)
        job = structs.replace(job, partitions=own)
        _check_expectations(job, path, report)
        if _has_unfit_inputs(job, sources, path, report):
            continue
        maps = map_inputs(job, sources)
        wide = [position for position, map_ in maps.items() if is_too_wide(map_)]
        for position in wide:
            _report_width(job, maps[position], (*path, "inputs", position), report)
        is_composite = any(job.inputs[position].trigger for position in maps)
        _check_completeness(job_draft, own, report, is_composite=is_composite)
        if is_composite and not wide:
            _check_composite(job, maps, path, report)


def _has_unfit_inputs(job: Job, sources: Sequence[Partitions | None], path: Path, report: Report) -> bool:
    """Report inputs that are read back, or of another kind, where partitions have no order in common."""
    own, problems = job.partitions, 0
    for position, (each, source) in enumerate(zip(job.inputs, sources, strict=True)):
        at: Path = (*path, "inputs", position)
        reads_back = [name for name, default in _READ_BACK if getattr(each, name) != default]
        if reads_back and (own is None or own.kind is PartitionKind.TEXT):
            message = f"{reads_back[0]!r} counts partitions, and those of {job.name!r} have no order"
            report.add(
                (*at, reads_back[0]), message, "declare 'partitions: {kind: ...}' where they come from", key=True
            )
            problems += 1
        elif reads_back and job.execution_strategy is not Strategy.PER_PARTITION:
            message = f"{reads_back[0]!r} counts partitions, and {job.name!r} works by cursor"
            report.add((*at, reads_back[0]), message, "write 'execution_strategy: PerPartition'", key=True)
            problems += 1
        elif (
            own is not None
            and source is not None
            and (each.trigger or reads_back)
            and job.execution_strategy is Strategy.PER_PARTITION
            and PartitionKind.TEXT not in (own.kind, source.kind)
            and not can_map(own, source)
        ):
            name = input_name(each)
            message = f"{with_article(own.kind)} of {job.name!r} cannot be made of {source.kind}s of {name!r}"
            report.add(at, message, "read it with 'trigger: false', or have both in time or both in numbers")
            problems += 1
    return problems > 0


def _check_expectations(job: Job, path: Path, report: Report) -> None:
    """Check that rows are compared only with partitions that say what is in them."""
    is_known = job.partitions is not None and job.partitions.kind is not PartitionKind.TEXT
    for index, each in enumerate(job.expectations):
        if each.in_partition is not None and not (is_known and job.execution_strategy is Strategy.PER_PARTITION):
            message = (
                f"'in_partition' compares rows with their partition, and {job.name!r} does not say what is in one"
            )
            hint = "write 'partitions: {kind: day}' where they come from, and work by partition"
            report.add((*path, "expectations", index, "in_partition"), message, hint, key=True)


def _report_width(job: Job, map_: PartMap, path: Path, report: Report) -> None:
    message = (
        f"one {map_.target.kind} of {job.name!r} would go with more than {PARTS_MAX:,} parts of the kind "
        f"{map_.source.kind}"
    )
    report.add(path, message, "make partitions of a kind in between first, such as hours of minutes")


def _check_completeness(
    job_draft: JobDraft, own: Partitions | None, report: Report, *, is_composite: bool
) -> None:
    job, path = job_draft.job, job_draft.path
    for name in ("complete", "deadline"):
        if name in job_draft.raw and not is_composite:
            message = (
                f"{name!r} is for jobs whose partitions are made of others, and those of {job.name!r} are not"
            )
            hint = "remove it, or declare 'partitions' of another kind than its inputs have, a 'window' or an 'offset'"
            report.add((*path, name), message, hint, key=True)
            return
    if job.deadline is not None and (own is None or not own.in_time):
        report.add((*path, "deadline"), "partitions of numbers never end", "remove it", key=True)
    if job.complete is Complete.ANNOUNCED and job.deadline is None:
        message = f"{job.name!r} is made of what is announced, and nothing says until when"
        report.add((*path, "complete"), message, "write 'deadline:' beside it, such as 6h")


def _check_composite(job: Job, maps: Mapping[int, PartMap], path: Path, report: Report) -> None:
    if job.update_strategy is UpdateStrategy.APPEND:
        message = (
            f"partitions of {job.name!r} are made of others, and made again as a whole when one of these changes"
        )
        report.add((*path, "update_strategy"), message, "write 'update_strategy: replace'")
    waits_for_all = job.complete is Complete.ALL and job.deadline is None
    for position, map_ in maps.items():
        each = job.inputs[position]
        looks_back = map_.window > 1 or map_.offset < 0
        if each.trigger and looks_back and waits_for_all and map_.source.start is None:
            at: Path = (*path, "inputs", position, "window" if map_.window > 1 else "offset")
            message = (
                f"{job.name!r} waits for partitions before the first of {input_name(each)!r}, which nobody names"
            )
            hint = "write 'start:' under the 'partitions' of what it reads, or 'complete: any', or a 'deadline:'"
            report.add(at, message, hint, key=True)
