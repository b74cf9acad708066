"""Removals: a commit which says that a partition is not there any more.

It takes the place of what stood, as any commit does, and stands itself at no revision: it is marked as replaced by
itself. So whoever reads the generation as of an earlier revision finds what was there, and whoever reads it as of a
later one finds nothing; ``commits`` forgets neither. The partition has no row in ``partitions`` from then on, and for
whoever looks for partitions to work on, it is as if it had never come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import EventState, InvalidationReason
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks.rows import Row

_commits, _partitions, _generations = schema.commits, schema.partitions, schema.generations

IS_REMOVAL = _commits.c.replaced_by == _commits.c.revision

# Built once: to build a statement takes longer than to carry it out.
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
    """What is to go from one partition, and the task that stands for the decision."""

    row: Row
    dataset_id: str
    generation_id: str
    partition_key: str
    by: str
    only: frozenset[int] | None = None  # These revisions; None: all that stands.


def last_removals(tx: Tx, generation_id: str, keys: Collection[str]) -> dict[str, int]:
    """By partition, the revision at which it was last removed; whether it has come back since is not asked."""
    revisions: dict[str, int] = {}
    for some in batches(sorted(keys)):
        revisions.update(
            (key, revision) for key, revision in tx.rows(_REMOVED, {"generation": generation_id, "keys": some})
        )
    return revisions


def commit_removals(tx: Tx, removals: Iterable[Removal]) -> list[Removal]:
    """Remove them from their generations, which are held; those of which there was something to remove.

    Whoever has read what is gone hears of it by an invalidation.
    """
    committed: list[Removal] = []
    superseded = Counter[tallies.Counted]()
    for each in removals:
        here = sa.and_(
            _commits.c.generation_id == each.generation_id, _commits.c.partition_key == each.partition_key
        )
        standing = tx.all(
            sa.select(_commits).where(here, _commits.c.replaced_by.is_(None)).order_by(_commits.c.revision)
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
    """What was announced and not routed yet is not there any more; how many events that were."""
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
    sums = {name: -sum(row[name] or 0 for row in removed) for name in ("rows", "bytes")}
    sums["partitions"] = 0 if remaining else -1
    tx.execute(
        sa.update(_generations)
        .where(_generations.c.id == removal.generation_id)
        .values({name: _generations.c[name] + more for name, more in sums.items()} | {"revision": revision})
    )
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
    """The row of the partition goes with it; of one that others have appended to, it says what is left."""
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
