"""Describe which versions were deployed, activated and removed since the last snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.live_versions import Live, LivePipeline, LiveVersion

EndStatuses = Mapping[tuple[str, int], VersionStatus]  # The statuses of versions that are no longer live.


def describe_changes(before: Live, after: Live, end_statuses: EndStatuses) -> list[str]:
    """Return a line for each change."""
    lines: list[str] = []
    for dag, current in after.items():
        previous = before.get(dag, LivePipeline())
        lines += [f"{dag}: {text}" for text in _changes(dag, previous, current, end_statuses)]
    return lines


def _changes(dag: str, previous: LivePipeline, current: LivePipeline, end_statuses: EndStatuses) -> Iterator[str]:
    if current.active is not None and _number(previous.active) != current.active.number:
        yield _describe_takeover(dag, previous.active, current.active, end_statuses)
    removed = (
        previous.beside if previous.beside is not None and previous.beside.number not in current.numbers else None
    )
    if current.beside is not None and current.beside.number not in previous.numbers:
        suffix = f"; version {removed.number} is abandoned for it" if removed is not None else ""
        yield _describe_deploy(dag, current.beside, current.active) + suffix
    elif removed is not None and end_statuses.get((dag, removed.number)) is VersionStatus.ABANDONED:
        yield f"version {removed.number} is abandoned"


def _describe_takeover(
    dag: str, previous: LiveVersion | None, current: LiveVersion, end_statuses: EndStatuses
) -> str:
    if previous is None:
        return f"version {current.number} is new and active (deployed by {current.by})"
    if end_statuses.get((dag, previous.number)) is VersionStatus.ROLLED_BACK:
        return f"version {current.number} is active again: version {previous.number} was rolled back"
    back = f"qo dag rollback {dag} goes back"
    return f"version {current.number} is active, in place of {previous.number} (deployed by {current.by}); {back}"


def _describe_deploy(dag: str, new: LiveVersion, active: LiveVersion | None) -> str:
    if new.status is VersionStatus.READY:
        how = f"qo dag activate {dag} {new.number} activates it"
        return f"version {new.number} (deployed by {new.by}) is ready; {how}"
    beside = "" if active is None else f" beside version {active.number}, which keeps serving"
    return f"version {new.number} (deployed by {new.by}) is built{beside}"


def _number(version: LiveVersion | None) -> int | None:
    return None if version is None else version.number
