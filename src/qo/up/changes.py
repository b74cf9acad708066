"""Which versions have come, taken over and gone since the last look, whoever did it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.views.live_versions import Live, LivePipeline, LiveVersion

Fates = Mapping[tuple[str, int], VersionStatus]  # What became of versions that were live before.


def describe_changes(before: Live, after: Live, fates: Fates) -> list[str]:
    """A line for each change; nothing where nothing has changed."""
    lines: list[str] = []
    for dag, now in after.items():
        was = before.get(dag, LivePipeline())
        lines += [f"{dag}: {text}" for text in _changes(dag, was, now, fates)]
    return lines


def _changes(dag: str, was: LivePipeline, now: LivePipeline, fates: Fates) -> Iterator[str]:
    if now.active is not None and _number(was.active) != now.active.number:
        yield _takeover(dag, was.active, now.active, fates)
    gone = was.beside if was.beside is not None and was.beside.number not in now.numbers else None
    if now.beside is not None and now.beside.number not in was.numbers:
        given_up = f"; version {gone.number} is given up for it" if gone is not None else ""
        yield _deploy(dag, now.beside, now.active) + given_up
    elif gone is not None and fates.get((dag, gone.number)) is VersionStatus.ABANDONED:
        yield f"version {gone.number} is abandoned"


def _takeover(dag: str, was: LiveVersion | None, now: LiveVersion, fates: Fates) -> str:
    if was is None:
        return f"version {now.number} is new and active (deployed by {now.by})"
    if fates.get((dag, was.number)) is VersionStatus.ROLLED_BACK:
        return f"version {now.number} is active again: version {was.number} was rolled back"
    back = f"qo dag rollback {dag} goes back"
    return f"version {now.number} is active, in place of {was.number} (deployed by {now.by}); {back}"


def _deploy(dag: str, new: LiveVersion, active: LiveVersion | None) -> str:
    if new.status is VersionStatus.READY:
        how = f"qo dag activate {dag} {new.number} lets it take over"
        return f"version {new.number} (deployed by {new.by}) is ready; {how}"
    beside = "" if active is None else f" beside version {active.number}, which goes on serving"
    return f"version {new.number} (deployed by {new.by}) is built{beside}"


def _number(version: LiveVersion | None) -> int | None:
    return None if version is None else version.number
