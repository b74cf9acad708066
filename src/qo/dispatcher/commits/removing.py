"""Removals: commits by which a partition does not exist any more.

A removal replaces the current commits, as any commit does, and is marked as replaced by itself, so it is current at no
revision. A reader as of an earlier revision finds what was there, and a reader as of a later one finds nothing. The
partition has no row in ``partitions`` from then on: to loops that look for partitions it never existed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import EventState, InvalidationReason
from qo.dispatcher.commits import generation_sums
from qo.dispatcher.commits.generation_sums import Sums
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks.rows import Row

_commits, _partitions = schema.commits, schema.partitions

IS_REMOVAL = _commits.c.replaced_by == _commits.c.revision

# Building a statement takes longer than executing it, so these are built once.
_REMOVED = Prepared(
    sa.select(_commits.c.partition_key, sa.func.max(_commits.c.revision))
    .where(
        _commits.c.generation_id == sa.bindparam("generation"),
        _commits.c.partition_key.in_(sa.bindparam("keys", expanding=True, type_=sa.String)),
        IS_REMOVAL,
    )
    .group_by(_commits.c.partition_key)
)


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed from one partition, and the task that records the decision."""

    row: Row
    dataset_id: str
    generation_id: str
    partition_key: str
    by: str
    only: frozenset[int] | None = None  # These revisions; None: all current ones.


def last_removals(tx: Tx, generation_id: str, keys: Collection[str]) -> dict[str, int]:
    """Return the revision at which each partition was last removed, also if it has come back since."""
    revisions: dict[str, int] = {}
    for some in batches(sorted(keys)):
        revisions.update(
            (key, revision) for key, revision in tx.rows(_REMOVED, {"generation": generation_id, "keys": some})
        )
    return revisions


def commit_removals(tx: Tx, removals: Iterable[Removal]) -> list[Removal]:
    """Commit removals to their generations, which are held, and return those that removed something.

    What they remove is invalidated for its readers.
    """
    committed: list[Removal] = []
    superseded = Counter[tallies.Counted]()
    for each in removals:
        here = sa.and_(
            _commits.c.generation_id == each.generation_id, _commits.c.partition_key == each.partition_key
        )
        standing = tx.all(
            schema.select_commits().where(here, _commits.c.replaced_by.is_(None)).order_by(_commits.c.revision)
        )
        removed = [row for row in standing if each.only is None or row["revision"] in each.only]
        if removed:
            remaining = [row for row in standing if row not in removed]
            _remove(tx, each, removed, remaining)
            committed.append(each)
            if not remaining and (n := _supersede_events(tx, each)):
                superseded[each.dataset_id, tallies.EVENTS, EventState.PENDING] -= n
                superseded[each.dataset_id, tallies.EVENTS, EventState.SUPERSEDED] += n
    tallies.add(tx, superseded)
    return committed


def _supersede_events(tx: Tx, removal: Removal) -> int:
    """Supersede the events of a removed partition that are not routed yet, and return how many."""
    table = schema.events
    pending = sa.and_(
        table.c.dataset_id == removal.dataset_id,
        table.c.generation_id == removal.generation_id,
        table.c.partition_key == removal.partition_key,
        table.c.state == EventState.PENDING,
    )
    reason = "its partition was removed before it was routed"
    return tx.execute(sa.update(table).where(pending).values(state=EventState.SUPERSEDED, reason=reason)).rowcount


def _remove(
    tx: Tx, removal: Removal, removed: Sequence[sa.RowMapping], remaining: Sequence[sa.RowMapping]
) -> None:
    # The last one knows the extent of the partition.
    start, end = removed[-1]["start"], removed[-1]["end"]
    [(revision, *_)] = tx.execute(
        sa.insert(_commits).returning(_commits.c.revision),
        [
            {
                "dataset_id": removal.dataset_id,
                "generation_id": removal.generation_id,
                "partition_key": removal.partition_key,
                "start": start,
                "end": end,
                "rows": 0,
                "bytes": 0,
                "task_id": removal.row["id"],
                "attempt": removal.row["attempt"],
                "committed_at": tx.now,
            }
        ],
    )
    replaced = [revision, *(row["revision"] for row in removed)]
    for some in batches(replaced):
        tx.execute(sa.update(_commits).where(_commits.c.revision.in_(some)).values(replaced_by=revision))
    _point(tx, removal, revision, remaining)
    sums = Sums()
    sums.add_revision(removal.generation_id, revision)
    for name in ("rows", "bytes"):
        sums[removal.generation_id, name] = -sum(row[name] or 0 for row in removed)
    sums[removal.generation_id, "partitions"] = 0 if remaining else -1
    generation_sums.add(tx, sums)
    tx.insert(
        schema.invalidations,
        [
            {
                "id": derive_id("invalidation", removal.generation_id, revision),
                "dataset_id": removal.dataset_id,
                "generation_id": removal.generation_id,
                "partition_key": removal.partition_key,
                "start": start,
                "end": end,
                "revision": revision,
                "reason": InvalidationReason.REMOVED,
                "source_task_id": removal.row["id"],
                "created_at": tx.now,
                "created_by": removal.by,
            }
        ],
    )
    tx.loops_to_wake.add(LoopName.INVALIDATION)


def _point(tx: Tx, removal: Removal, revision: int, remaining: Sequence[sa.RowMapping]) -> None:
    """Delete the row of the partition, or update it if other appends remain."""
    place = sa.and_(
        _partitions.c.dataset_id == removal.dataset_id,
        _partitions.c.generation_id == removal.generation_id,
        _partitions.c.partition_key == removal.partition_key,
    )
    if not remaining:
        tx.execute(sa.delete(_partitions).where(place))
        return
    last: dict[str, Any] = {name: remaining[-1][name] for name in ("location", "files", "schema_hash", "task_id")}
    sums = {name: sum(row[name] or 0 for row in remaining) for name in ("rows", "bytes")}
    values = last | sums | {"revision": revision, "committed_at": tx.now}
    tx.execute(sa.update(_partitions).where(place).values(values))
