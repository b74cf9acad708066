"""Invalidations: committed data changed after others had read it, so they read it again.

The invalidation of a partition creates a task for each direct reader (``engine.loops.invalidation``). What these
replace is invalidated in turn, so a change spreads as far as it has effects. The invalidation of a range, or of a whole
generation, is first split into one for each partition it touches.

A reader is done when its task has ended in any way, or when no live version has its edition. An invalidation is done
when all its readers are. Replaying a task opens both again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.event import NUMBER_MAX, PARTITION_KEY, Event
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import InvalidationReason
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.loop_names import LoopName
from qo.errors import NotFound, UsageError

REASONS = tuple(each for each in InvalidationReason if each is not InvalidationReason.REMOVED)  # Those of callers.


_rows, _readers = schema.invalidations, schema.invalidation_readers

_READER = sa.update(_readers).where(
    _readers.c.invalidation_id == sa.bindparam("of"), _readers.c.edition_id == sa.bindparam("edition")
)


def invalidate(
    tx: Tx,
    dataset_id: str,
    generation_id: str,
    *,
    partition_key: str | None = None,
    start: int | None = None,
    end: int | None = None,
    row_filter: Mapping[str, Any] | None = None,
    reason: str = InvalidationReason.MANUAL,
    by: str | None = None,
    source_task_id: str | None = None,
    key: str | None = None,
) -> str:
    """Invalidate a partition, a half-open range or, if neither is given, a whole generation; return its id.

    ``key``: a call with the same key again is the same invalidation. Raises UsageError, NotFound.
    """
    _check(tx, dataset_id, generation_id, partition_key, start, end, reason)
    id_ = tx.ambient.task_id() if key is None else derive_id("invalidation", generation_id, "by", key)
    row = {
        "id": id_,
        "dataset_id": dataset_id,
        "generation_id": generation_id,
        "partition_key": partition_key,
        "start": start,
        "end": end,
        "row_filter": dict(row_filter) if row_filter else None,
        "revision": None,
        "reason": reason,
        "source_task_id": source_task_id,
        "created_at": tx.now,
        "created_by": by,
    }
    tx.insert_absent(_rows, [row], returning=_rows.c.id)
    return id_


@dataclass(frozen=True, slots=True)
class Replaced:
    """A commit that replaced others."""

    event: Event  # Of what it committed.
    where: Mapping[str, Any]  # What was there: a partition, or a half-open range of cursors.
    revision: int
    task_id: str


def replaced_partition(event: Event, revision: int, task_id: str) -> Replaced:
    where = {"partition_key": event.partition_key, "start": event.start, "end": event.end}
    return Replaced(event, where, revision, task_id)


def replaced(tx: Tx, commits: Sequence[Replaced]) -> None:
    """Invalidate what these commits replaced."""
    rows = [
        {
            # The revision makes the id, so one commit invalidates once.
            "id": derive_id("invalidation", each.event.generation_id, each.revision),
            "dataset_id": each.event.dataset_id,
            "generation_id": each.event.generation_id,
            "revision": each.revision,
            "reason": InvalidationReason.REPLACED,
            "source_task_id": each.task_id,
            "created_at": tx.now,
            **each.where,
        }
        for each in commits
    ]
    if rows:
        tx.insert_absent(_rows, rows, returning=_rows.c.id)
        tx.loops_to_wake.add(LoopName.INVALIDATION)


def ended(tx: Tx, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Close the readers of invalidations whose tasks have ended, and the invalidations that have no other."""
    if readers := _readers_of(tasks):
        close_readers = _READER.where(_readers.c.processed_at.is_(None)).values(processed_at=tx.now)
        tx.execute(close_readers, [{"of": id_, "edition": edition} for id_, edition in readers])
        _close_all(tx, (id_ for id_, _ in readers))


def reopened(tx: Tx, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Reopen the invalidations of tasks that had ended and are pending again."""
    if readers := _readers_of(tasks):
        tx.execute(
            _READER.values(processed_at=None), [{"of": id_, "edition": edition} for id_, edition in readers]
        )
        for id_ in sorted({id_ for id_, _ in readers}):
            tx.execute(sa.update(_rows).where(_rows.c.id == id_).values(processed_at=None))


def forsaken(tx: Tx, live: Topology) -> list[str]:
    """Return the editions with open readers that no live version has."""
    return [each for each in scans.distinct(tx, scans.OPEN_READERS) if each not in live.jobs]


def give_up(tx: Tx, edition_id: str, limit: int = 500) -> int:
    """Close up to ``limit`` open readers of an edition that is ``forsaken``, and return how many.

    Their tasks stay as they are: if the edition becomes live again, they still run.
    """
    waiting = sa.select(_readers.c.invalidation_id).where(
        _readers.c.edition_id == edition_id, sa.text("invalidation_readers.processed_at IS NULL")
    )
    page = waiting.order_by(_readers.c.invalidation_id).limit(limit)
    ids = tx.execute(tx.lock(page, skip=True)).scalars().all()
    ended(tx, [{"invalidation_id": id_, "edition_id": edition_id} for id_ in ids])
    return len(ids)


def _readers_of(tasks: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return invalidation and edition of each task, sorted, so that two transactions do not deadlock."""
    made_for = {(each["invalidation_id"], each["edition_id"]) for each in tasks}
    return sorted(each for each in made_for if each[0] is not None)


def _close_all(tx: Tx, ids: Iterable[str]) -> None:
    for id_ in sorted(set(ids)):
        close(tx, id_)


def close(tx: Tx, invalidation_id: str) -> bool:
    """Mark an invalidation as processed if it was spread and all its readers are done; return whether it was."""
    # Locked, so that of two readers that finish at once the second sees the first.
    tx.one(tx.lock(sa.select(_rows.c.id).where(_rows.c.id == invalidation_id)))
    open_ = sa.select(_readers.c.edition_id).where(
        _readers.c.invalidation_id == invalidation_id, _readers.c.processed_at.is_(None)
    )
    if tx.one(open_.limit(1)) is not None:
        return False
    spread = sa.and_(_rows.c.id == invalidation_id, _rows.c.spread_at.is_not(None), _rows.c.processed_at.is_(None))
    return tx.execute(sa.update(_rows).where(spread).values(processed_at=tx.now)).rowcount == 1


def _check(
    tx: Tx,
    dataset_id: str,
    generation_id: str,
    partition_key: str | None,
    start: int | None,
    end: int | None,
    reason: str,
) -> None:
    if reason not in REASONS:
        raise UsageError(f"{reason!r} is no reason to invalidate: write one of {', '.join(REASONS)}")
    if partition_key is not None and not PARTITION_KEY.match(partition_key):
        raise UsageError(f"{partition_key!r} is not a partition key")
    if (start is None) != (end is None):
        raise UsageError("a range needs both ends: give start and end, or neither")
    if start is not None and end is not None and not 0 <= start < end <= NUMBER_MAX:
        raise UsageError(f"the range [{start}, {end}) is empty or out of bounds: end must be greater than start")
    table = schema.generations
    owner = tx.value(sa.select(table.c.dataset_id).where(table.c.id == generation_id))
    if owner != dataset_id:
        raise NotFound(f"dataset {dataset_id} has no generation {generation_id}")
