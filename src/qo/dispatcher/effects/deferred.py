"""Deferred tasks: cancelled because another edition was already at work on the same effects outside.

If the other edition succeeds, they stay cancelled. If it fails, they are replayed: the version of the other edition
does not serve any more, so it will not try again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from qo.core.lifecycle import Replay
from qo.core.pipeline import routing
from qo.core.pipeline.states import CancelCode
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.effects import external_effects
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import rows
from qo.dispatcher.tasks.rows import Row

_tasks = schema.tasks


def undecided(tx: Tx, live: Topology, limit: int) -> list[str]:
    """Return up to ``limit`` deferred tasks that can be decided now.

    Reads all deferred tasks: no more than were running elsewhere when their versions began to serve.
    """
    ids: list[str] = []
    for edition in scans.distinct(tx, scans.DEFERRED_EDITIONS):
        job, after = live.jobs.get(edition), ""
        while job is not None and external_effects.has_effects(job) and len(ids) < limit:
            page = sa.select(_tasks).where(scans.deferred(), _tasks.c.edition_id == edition, _tasks.c.id > after)
            twins: list[Row] = [dict(row) for row in tx.all(page.order_by(_tasks.c.id).limit(limit))]
            others, upto = _counterparts(tx, job, twins), _upto(tx, job, twins)
            ids += [each["id"] for each in twins if _decided(each, others.get(each["id"], ()), upto, tx.now)]
            if len(twins) < limit:
                break
            after = twins[-1]["id"]
    return ids[:limit]


def take_up(tx: Tx, live: Topology, ids: Iterable[str]) -> int:
    """Decide these deferred tasks: replay them, or leave them cancelled for good. Return how many were decided."""
    by_job: dict[str, list[Row]] = {}
    for part in batches(sorted(ids)):
        for row in rows.load_all(tx, part, lock=False).values():
            by_job.setdefault(row["edition_id"], []).append(row)
    decided = 0
    for edition, twins in sorted(by_job.items()):
        job = live.jobs.get(edition)
        if job is not None and external_effects.has_effects(job):
            decided += _take_up(tx, job, twins)
    return decided


@dataclass(frozen=True, slots=True)
class _Decision:
    code: CancelCode | None = None  # Why it stays cancelled.
    due: datetime | None = None  # When it is to run.


_REASONS = {
    CancelCode.EFFECTS_MADE: external_effects.REASON,
    CancelCode.EFFECTS_CALLED_OFF: "its effects were called off at another edition",
}


def _take_up(tx: Tx, job: LiveJob, twins: Sequence[Row]) -> int:
    counterparts = _counterparts(tx, job, twins)
    ids = {each["id"] for each in twins} | {other["id"] for some in counterparts.values() for other in some}
    # From here on none of them moves: a late attempt has completed by now, or never will.
    held = rows.load_all(tx, sorted(ids))
    upto = _upto(tx, job, twins)
    stay: dict[CancelCode, list[str]] = {}
    again: list[tuple[Row, datetime]] = []
    late: list[str] = []
    for twin in (held[each["id"]] for each in twins if each["id"] in held):
        others = [held[each["id"]] for each in counterparts.get(twin["id"], ()) if each["id"] in held]
        decision = _decided(twin, others, upto, tx.now)
        if (
            decision is None
            or twin["status"] != Status.CANCELLED
            or twin["cancel_code"] != CancelCode.EFFECTS_DEFERRED
        ):
            continue
        if decision.code is not None:
            stay.setdefault(decision.code, []).append(twin["id"])
        elif decision.due is not None:
            again.append((twin, decision.due))
            late += [each["id"] for each in others if each["late_lease_id"] is not None]
    for code, some in stay.items():
        _set(tx, some, cancel_code=code, cancel_reason=_REASONS[code])
    _set(tx, late, late_lease_id=None)
    rows.move_all(tx, [rows.Move(twin, Replay(token=tx.ambient.token())) for twin, _ in again])
    for twin, due in again:
        _set(tx, [twin["id"]], available_at=due)
    return sum(map(len, stay.values())) + len(again)


def _decided(twin: Row, others: Sequence[Row], upto: Mapping[str, int], now: datetime) -> _Decision | None:
    """Decide one deferred task; None if it is too early.

    ``upto``: how far each dataset was read. A task that follows a cursor is decided by that alone, and reads the rest.
    """
    follows = _follows(twin)
    effects_made = twin["cursor"] <= upto.get(twin["dataset_id"], -1) if follows else any(map(_is_made, others))
    if effects_made:
        return _Decision(code=CancelCode.EFFECTS_MADE)
    if any(_is_open(each, twin["edition_id"], now) for each in others):
        return None
    if not follows and any(map(_is_called_off, others)):
        return _Decision(code=CancelCode.EFFECTS_CALLED_OFF)
    # It waits as long before its retry as the other one would have.
    return _Decision(
        due=max([now, *(each["available_at"] for each in others if each["status"] == Status.PENDING)])
    )


def _is_open(other: Row, edition_id: str, now: datetime) -> bool:
    """Whether the task may still have its effects: it runs, will run, or has a late attempt.

    A pending task of another edition will not run, since its version does not serve. Until its retry would be due, its
    last attempt may still complete.
    """
    if other["status"] != Status.PENDING:
        return other["status"] == Status.RUNNING
    return other["edition_id"] == edition_id or (
        other["late_lease_id"] is not None and other["available_at"] > now
    )


def _is_called_off(other: Row) -> bool:
    """Whether a person cancelled it."""
    cancelled = other["status"] == Status.CANCELLED and other["cancelled_by"] is not None
    return cancelled and other["cancel_code"] is None


def _is_made(other: Row) -> bool:
    """As ``external_effects._is_done``, for a loaded row."""
    succeeded = other["status"] == Status.CANCELLED and other["worker_id"] is not None
    return succeeded or other["status"] == Status.COMPLETED


def _counterparts(tx: Tx, job: LiveJob, twins: Sequence[Row]) -> dict[str, list[Row]]:
    """Return, by the id of each deferred task, the other tasks with the same effects.

    These are all tasks of the job about the same partition, in any edition. For a task that follows a cursor they are
    those of other editions that work on the same dataset, or wait for a retry.
    """
    editions, candidates = external_effects.editions(tx, job), list[Row]()
    if any(map(_follows, twins)):
        resting = sa.and_(_tasks.c.status == Status.PENDING, _tasks.c.available_at > tx.now)
        others = [each for each in editions if each != job.edition_id]
        candidates += [
            dict(row) for row in external_effects.followers(tx, others, (*external_effects.OPEN, resting))
        ]
    for some in batches({each["partition_key"] for each in twins if not _follows(each)}):
        query = sa.select(_tasks).where(_tasks.c.edition_id.in_(editions), _tasks.c.partition_key.in_(some))
        candidates += [dict(row) for row in tx.all(query)]
    by_place: dict[tuple[str | None, str | None], list[Row]] = {}
    for each in candidates:
        by_place.setdefault(_place(job, each), []).append(each)
    return {
        twin["id"]: [each for each in by_place.get(_place(job, twin), ()) if each["id"] != twin["id"]]
        for twin in twins
    }


def _place(job: LiveJob, row: Row) -> tuple[str | None, str | None]:
    return row["partition_key"], None if routing.joins(job) else row["dataset_id"]


def _follows(row: Row) -> bool:
    return row["partition_key"] is None


def _upto(tx: Tx, job: LiveJob, twins: Iterable[Row]) -> dict[str, int]:
    """Return how far any edition has read the datasets that these tasks follow."""
    followed = sorted({each["dataset_id"] for each in twins if _follows(each)})
    read = {each: external_effects.read_upto(tx, job, each) for each in followed}
    return {dataset: upto for dataset, upto in read.items() if upto is not None}


def _set(tx: Tx, ids: Sequence[str], **values: Any) -> None:
    for some in batches(ids):
        tx.execute(sa.update(_tasks).where(_tasks.c.id.in_(some)).values(**values))
