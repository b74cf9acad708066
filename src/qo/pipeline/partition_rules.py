"""Rules for kinds of partitions: they are declared with what they need, and where partitions are made."""

from __future__ import annotations

from qo.core.pipeline.partitions import PartitionKind, Partitions, check_key, is_zone
from qo.errors import UsageError
from qo.pipeline.draft import JobDraft
from qo.pipeline.problems import Path, Report
from qo.pipeline.sources import SOURCES


def check_partitions(job_draft: JobDraft, report: Report) -> None:
    """Check that a job with declared partitions makes any, and that the declaration has the fields of its kind."""
    if job_draft.job.partitions is not None:
        _check_maker(job_draft, report)
        _check_fields(job_draft.job.partitions, (*job_draft.path, "partitions"), report)


def _check_maker(job_draft: JobDraft, report: Report) -> None:
    job, path = job_draft.job, (*job_draft.path, "partitions")
    if job.outputs == 0:
        message = f"'partitions' says what is in the outputs of a job, and {job.name!r} has none"
        report.add(path, message, "remove it", key=True)
    if job.source is not None and SOURCES[job.source.kind].emits_cursors:
        message = f"{job.name!r} is a {job.source.kind} source: it announces cursors, not partitions"
        report.add(path, message, "remove it", key=True)


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
    elif partitions.start is not None:
        _check_start(partitions, (*path, "start"), report)


def _check_start(partitions: Partitions, path: Path, report: Report) -> None:
    if partitions.kind is PartitionKind.TEXT:
        message = "partitions of text have no order, so none is the first"
        report.add(path, message, "remove it", key=True)
    try:
        check_key(partitions, partitions.start)
    except UsageError as error:
        message, _, hint = str(error).partition(": ")
        report.add(path, message, hint)
