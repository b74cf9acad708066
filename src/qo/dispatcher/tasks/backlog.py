"""Bulk changes of the open tasks of whole editions: withheld at a cutover, cancelled at a rollback, revived.

Each statement writes what ``core.lifecycle.decide`` would write task by task; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.states import CancelCode
from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches

_tasks = schema.tasks
COUNT_MAX = 10_000  # Counting stops here.
_GIVEN_UP = {VersionStatus.ROLLED_BACK: "rolled back", VersionStatus.ABANDONED: "abandoned"}


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Who cancels tasks, and why."""

    by: str
    reason: str  # For people.
    code: CancelCode | None = None  # For the dispatcher, if it may undo or reconsider the cancellation.


@dataclass(frozen=True, slots=True)
class Stopped:
    cancelled: int = 0
    requested: int = 0  # Running tasks that were asked to stop.
    more: bool = False  # More tasks are left, and are cancelled later.


def version_given_up(dag: str, number: int, status: VersionStatus, by: str) -> Cancellation:
    """Return the cancellation of the tasks of a version that was rolled back or abandoned; ``revive`` undoes it."""
    return Cancellation(by, f"version {number} of {dag} was {_GIVEN_UP[status]}", CancelCode.VERSION_GIVEN_UP)


def editions(tx: Tx, version_id: str) -> frozenset[str]:
    """Return the editions of all jobs of a version."""
    return frozenset(
        tx.execute(sa.select(schema.jobs.c.edition_id).where(schema.jobs.c.version_id == version_id)).scalars()
    )


def own_editions(tx: Tx, version_id: str) -> frozenset[str]:
    """Return the editions of a version that no live version has."""
    jobs, versions = schema.jobs, schema.dag_versions
    mine = sa.select(jobs.c.edition_id, jobs.c.dag).where(jobs.c.version_id == version_id).subquery()
    shared = (
        sa.select(jobs.c.edition_id)
        .join(versions, versions.c.id == jobs.c.version_id)
        .join(mine, mine.c.edition_id == jobs.c.edition_id)
        .where(versions.c.status.in_(sorted(LIVE)))
    )
    return editions(tx, version_id) - frozenset(tx.execute(shared).scalars())


def withhold(tx: Tx, of: Collection[str]) -> int:
    """Withhold pending tasks, and return how many: a wake-up that is on its way then finds nothing to claim."""
    released = scans.in_flight_ids(tx, _logical_ids(tx, of), of).get(Status.PENDING, [])
    return sum(
        tx.execute(
            sa.update(_tasks)
            .where(_tasks.c.id.in_(some), _tasks.c.status == Status.PENDING, _tasks.c.released_at.is_not(None))
            .values(released_at=None)
        ).rowcount
        for some in batches(released)
    )


def cancel(tx: Tx, of: Collection[str], cancellation: Cancellation, *, token: str) -> Stopped:
    """Cancel pending tasks, and ask running ones to stop."""
    values = _cancelled(tx, cancellation, token)
    cancelled = requested = 0
    for condition in _edition_conditions(of):
        cancelled += _cancel_pending(tx, condition, values)
        running = (
            sa.update(_tasks)
            .where(condition, _tasks.c.status == Status.RUNNING, _tasks.c.cancel_requested.is_(False))
            .values(**values)
        )
        requested += tx.execute(running).rowcount
    return Stopped(cancelled, requested)


def cancel_in_flight(tx: Tx, of: Collection[str], cancellation: Cancellation, *, token: str) -> Stopped:
    """As ``cancel``, but only tasks that run or whose wake-up is on its way."""
    values = _cancelled(tx, cancellation, token)
    ids = scans.in_flight_ids(tx, _logical_ids(tx, of), of)
    cancelled = sum(
        _cancel_pending(tx, _tasks.c.id.in_(some), values) for some in batches(sorted(ids.get(Status.PENDING, ())))
    )
    requested = 0
    for some in batches(sorted(ids.get(Status.RUNNING, ()))):
        running = sa.and_(_tasks.c.status == Status.RUNNING, _tasks.c.cancel_requested.is_(False))
        requested += tx.execute(sa.update(_tasks).where(_tasks.c.id.in_(some), running).values(**values)).rowcount
    return Stopped(cancelled, requested)


def cancel_these(tx: Tx, ids: Sequence[str], cancellation: Cancellation, *, token: str) -> int:
    """Cancel those of the tasks that are pending, and return how many."""
    values = _cancelled(tx, cancellation, token)
    return sum(_cancel_pending(tx, _tasks.c.id.in_(some), values) for some in batches(ids))


def cancel_some(
    tx: Tx, edition_id: str, which: sa.ColumnElement[bool], cancellation: Cancellation, *, token: str
) -> int:
    """Cancel the pending tasks of one edition that meet a condition, and return how many."""
    condition = sa.and_(_tasks.c.edition_id == edition_id, which)
    return _cancel_pending(tx, condition, _cancelled(tx, cancellation, token))


def _cancelled(tx: Tx, cancellation: Cancellation, token: str) -> dict[str, Any]:
    return {
        "token": token,
        "updated_at": _later(tx),
        "cancel_requested": True,
        "cancelled_by": cancellation.by,
        "cancel_code": cancellation.code,
        "cancel_reason": cancellation.reason,
    }


def _cancel_pending(tx: Tx, condition: sa.ColumnElement[bool], values: Mapping[str, Any]) -> int:
    ended = {
        "status": Status.CANCELLED,
        "completed_at": _later(tx),
        "lease_id": None,
        "lease_expires_at": None,
        "worker_id": None,
        "late_lease_id": None,
    }
    pending = sa.update(_tasks).where(condition, _tasks.c.status == Status.PENDING).values(**values, **ended)
    return tx.execute(pending).rowcount


def revive(tx: Tx, of: Collection[str], *, token: str) -> int:
    """Revive all tasks of these editions: see ``_revive``."""
    return sum(_revive(tx, condition, token) for condition in _edition_conditions(of))


def revive_these(tx: Tx, ids: Sequence[str], *, token: str) -> int:
    """Revive those of the tasks that were given up: see ``_revive``."""
    return sum(_revive(tx, _tasks.c.id.in_(some), token) for some in batches(ids))


def _revive(tx: Tx, condition: sa.ColumnElement[bool], token: str) -> int:
    """Undo ``version_given_up`` for these tasks, and return how many are pending again.

    A task that is still running loses the request to stop. If its worker has seen the request already, the task ends
    as cancelled all the same and a person can replay it.
    """
    withdrawn: dict[str, Any] = {
        "token": token,
        "updated_at": _later(tx),
        "cancel_requested": False,
        "cancelled_by": None,
        "cancel_code": None,
        "cancel_reason": None,
    }
    again = {
        "status": Status.PENDING,
        "available_at": tx.now,
        "completed_at": None,
        "lease_id": None,
        "lease_expires_at": None,
        "worker_id": None,
        "retry_count": 0,
        "deliveries": 0,
        "late_lease_id": None,
        "released_at": None,
    }
    given_up = sa.and_(condition, scans.given_up())
    cancelled = sa.update(_tasks).where(given_up, _tasks.c.status == Status.CANCELLED)
    revived = tx.execute(cancelled.values(**withdrawn, **again)).rowcount
    running = sa.update(_tasks).where(given_up, _tasks.c.status == Status.RUNNING)
    tx.execute(running.values(**withdrawn))
    return revived


def counts(tx: Tx, editions: Collection[str]) -> dict[str, dict[str, int]]:
    """Count tasks by edition and status, each up to COUNT_MAX, from the index alone."""
    by_edition: dict[str, dict[str, int]] = {}
    for some in batches(sorted(editions)):
        for row in tx.execute(_counted(some)):
            if row.n:
                by_edition.setdefault(row.edition_id, {})[row.status] = row.n
    return by_edition


def _counted(editions: Collection[str]) -> sa.Select[Any, Any, Any]:
    wanted_editions = (
        sa.select(schema.jobs.c.edition_id).where(schema.jobs.c.edition_id.in_(editions)).distinct().subquery()
    )
    statuses = sa.union_all(*(sa.select(sa.literal(str(status)).label("status")) for status in Status)).subquery()
    pair = (wanted_editions.c.edition_id, statuses.c.status)
    own = sa.and_(_tasks.c.edition_id == pair[0], _tasks.c.status == pair[1])
    # In the order of the index: for a few rows in any order PostgreSQL would rather read the whole table.
    some = sa.select(_tasks.c.created_at).where(own).order_by(_tasks.c.created_at).limit(COUNT_MAX)
    counted = some.correlate(wanted_editions, statuses).subquery()
    count = sa.select(sa.func.count()).select_from(counted).correlate(wanted_editions, statuses).scalar_subquery()
    # PostgreSQL plans for all statuses alike, as if each were common, and may read the whole table for one that no
    # task has. So the next place in the index is looked at first: no other index has that order.
    place = (_tasks.c.edition_id, _tasks.c.status)
    following = sa.select(own).where(sa.tuple_(*place) >= sa.tuple_(*pair)).order_by(*place).limit(1)
    n = sa.case((following.correlate(wanted_editions, statuses).scalar_subquery(), count), else_=0)
    return sa.select(wanted_editions.c.edition_id, statuses.c.status, n.label("n")).select_from(
        wanted_editions.join(statuses, sa.true())
    )


def _later(tx: Tx) -> sa.ColumnElement[Any]:
    # A clock that was set back must not make ``updated_at`` go back.
    now = sa.literal(tx.now, schema.Instant())
    return sa.case((_tasks.c.updated_at > now, _tasks.c.updated_at), else_=now)


def _logical_ids(tx: Tx, of: Collection[str]) -> set[str]:
    ids: set[str] = set()
    for some in batches(sorted(of)):
        query = sa.select(schema.jobs.c.logical_id).where(schema.jobs.c.edition_id.in_(some)).distinct()
        ids.update(tx.execute(query).scalars())
    return ids


def _edition_conditions(of: Collection[str]) -> Iterator[sa.ColumnElement[bool]]:
    for some in batches(sorted(of)):
        yield _tasks.c.edition_id.in_(some)
