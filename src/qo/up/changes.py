"""Which versions have come, taken over and gone since the last look, whoever did it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

_versions = schema.dag_versions


@dataclass(frozen=True, slots=True)
class LiveVersion:
    number: int
    status: VersionStatus
    by: str  # Who deployed it.


@dataclass(frozen=True, slots=True)
class LivePipeline:
    """The version that serves, and the one that is staged or ready beside it."""

    active: LiveVersion | None = None
    beside: LiveVersion | None = None


Live = Mapping[str, LivePipeline]  # By the name of the pipeline.
Fates = Mapping[tuple[str, int], VersionStatus]  # What became of versions that were live before.


def live_pipelines(tx: Tx) -> dict[str, LivePipeline]:
    query = sa.select(_versions.c.dag, _versions.c.number, _versions.c.status, _versions.c.created_by)
    found: dict[str, dict[bool, LiveVersion]] = {}
    for row in tx.execute(query.where(_versions.c.status.in_(sorted(LIVE)))):
        version = LiveVersion(row.number, VersionStatus(row.status), row.created_by)
        found.setdefault(row.dag, {})[version.status is VersionStatus.ACTIVE] = version
    return {dag: LivePipeline(own.get(True), own.get(False)) for dag, own in sorted(found.items())}


def fates(tx: Tx, before: Live, after: Live) -> dict[tuple[str, int], VersionStatus]:
    """Of versions that were live before and are not any more."""
    found: dict[tuple[str, int], VersionStatus] = {}
    for dag, pipeline in before.items():
        now = _numbers(after.get(dag, LivePipeline()))
        for number in sorted(_numbers(pipeline) - now):
            status = tx.value(
                sa.select(_versions.c.status).where(_versions.c.dag == dag, _versions.c.number == number)
            )
            if status is not None:
                found[dag, number] = VersionStatus(status)
    return found


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
    gone = was.beside if was.beside is not None and was.beside.number not in _numbers(now) else None
    if now.beside is not None and now.beside.number not in _numbers(was):
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


def _numbers(pipeline: LivePipeline) -> set[int]:
    return {each.number for each in (pipeline.active, pipeline.beside) if each is not None}
