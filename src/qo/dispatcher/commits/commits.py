"""Commits: files that an attempt wrote become part of a dataset, atomically.

No file is moved or rewritten. A partition points to the prefix of the attempt that wrote it; the commit that it pointed
to before stays in ``commits``, marked as replaced, for tasks that are still reading it.

Partitions of one generation are committed side by side: a transaction locks the rows of those that it commits. Whoever
reads a generation as a whole first waits for the commits under way (``state.commit_locks``), so that nothing appears
below the revision that it reads.

Many partitions are committed by as many statements as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.columns import Drift
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.commits import (
    generation_sums,
    later_parts,
    lineage_records,
    partition_rows,
    removing,
    replacing,
    shared_files,
)
from qo.dispatcher.commits.dataset_columns import Shapes
from qo.dispatcher.commits.generation_sums import Sums
from qo.dispatcher.commits.outputs import Write
from qo.dispatcher.commits.partition_rows import Locked
from qo.dispatcher.events import invalidations
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import ROWS_MAX, Tx, batches
from qo.dispatcher.state.loop_names import LoopName
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks.rows import Row

_commits, _partitions = schema.commits, schema.partitions

# Building a statement takes longer than executing it, so these are built once.
_NEW = Prepared(
    sa.insert(_commits).returning(_commits.c.revision, _commits.c.generation_id, _commits.c.partition_key)
)
_CURRENT = Prepared(
    sa.select(_partitions.c.partition_key, _partitions.c.rows, _partitions.c.bytes).where(
        _partitions.c.dataset_id == sa.bindparam("dataset"),
        _partitions.c.generation_id == sa.bindparam("generation"),
        _partitions.c.partition_key.in_(sa.bindparam("keys", expanding=True)),
        _partitions.c.revision > 0,
    )
)
_REPLACED = Prepared(sa.update(_commits).where(_commits.c.revision == sa.bindparam("gone")))
_POINTER = [each.name for each in _partitions.c if each.name != "revision"]
_Place = partition_rows.Place
_Hashes = Mapping[_Place, str | None]  # What the columns of each are known by.


@dataclass(frozen=True, slots=True)
class Entry:
    """One output to be committed, and the attempt that wrote it."""

    row: Row
    attempt: int
    write: Write
    append: bool = False  # Add to the partition instead of replacing it.
    drift: Drift = Drift.FAIL

    @property
    def place(self) -> _Place:
        return self.write.event.generation_id, self.write.event.partition_key or ""


def lock(tx: Tx, writes: Sequence[Write]) -> None:
    """Lock the generations of these writes, before anything of them is read."""
    alone = {each.event.generation_id for each in writes if concerns_all(each)}
    commit_locks.acquire(tx, alone=alone, shared={each.event.generation_id for each in writes})


def concerns_all(write: Write) -> bool:
    """Whether a write concerns more of its generation than its own partition."""
    # Segments have an order; rows that are appended once were compared with all that was committed.
    return write.event.partition_key is None or write.body.based_on is not None


def commit(tx: Tx, entries: Sequence[Entry]) -> list[Entry]:
    """Commit entries to their generations, which are locked, and return those that were committed, in order.

    Replacing a partition invalidates it. An entry is left out if what it would replace was made from later inputs: its
    task is then the slower of two.
    """
    if not entries:
        return []
    # If one of them is refused, the whole transaction is rolled back.
    shapes, accepted = _accept_columns(tx, entries)
    hashes_left = iter(accepted)
    committed: list[Entry] = []
    sums, groups = Sums(), list(_side_by_side(entries))
    is_once = tx.on_postgres and len(groups) == 1 and entries[0].write.event.partition_key is not None
    if tx.on_postgres and not is_once:
        _lock_places(tx, entries)
    for some in groups:
        hashes = dict(zip((each.place for each in some), islice(hashes_left, len(some)), strict=True))
        if some[0].write.event.partition_key is None:
            _segment(tx, some[0], sums, hashes)
            committed += some
        elif is_once:
            locked = _create_places(tx, some, hashes)
            committed += _partition_all(tx, some, locked.current, sums, hashes, locked.revisions)
        else:
            committed += _partition_all(tx, some, _current(tx, some), sums, hashes, {})
    generation_sums.add(tx, sums)
    shapes.keep(sums.first)
    lineage_records.keep(tx, {each.place[0]: each.write.body for each in committed}, sums.first)
    if any(each.write.event.dataset_id in topology.load(tx).compared for each in committed):
        tx.loops_to_wake.add(LoopName.REFRESH)
    return committed


def _accept_columns(tx: Tx, entries: Sequence[Entry]) -> tuple[Shapes, list[str | None]]:
    """Check the columns of all entries, and return the hash of each."""
    shapes = Shapes(tx)
    hashes = _accept_all(shapes, entries)
    if tx.on_postgres and (grown := shapes.grown()):
        # Somebody else may be about to add columns, too: decide on what is there after that.
        commit_locks.lock_columns(tx, grown)
        shapes = Shapes(tx)
        hashes = _accept_all(shapes, entries)
    return shapes, hashes


def _accept_all(shapes: Shapes, entries: Sequence[Entry]) -> list[str | None]:
    return [
        shapes.accept(each.place[0], each.write.body.columns, each.drift, each.write.body.columns_seen)
        for each in entries
    ]


def _lock_places(tx: Tx, entries: Sequence[Entry]) -> None:
    """Lock the rows of the partitions, on PostgreSQL."""
    fields = {"task_id": entries[0].row["id"], "committed_at": tx.now}
    by_partition = [each for each in entries if each.write.event.partition_key is not None]
    partition_rows.lock(tx, {each.place: each.write.event.dataset_id for each in by_partition}, fields)


def _create_places(tx: Tx, entries: Sequence[Entry], hashes: _Hashes) -> Locked:
    """Lock the rows of different partitions, on PostgreSQL, and create those that do not exist yet as they stay."""
    stored = {each.place: _stored(tx, each, hashes) for each in entries}
    return partition_rows.create(tx, {each.place: _pointer(each, stored, None, {}) for each in entries})


def _side_by_side(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Split entries, in order, into groups that touch each partition once: later ones must see earlier ones."""
    group: dict[_Place, Entry] = {}
    for each in entries:
        alone = each.write.event.partition_key is None
        if group and (alone or each.place in group or len(group) == ROWS_MAX):
            yield list(group.values())
            group = {}
        if alone:
            yield [each]
        else:
            group[each.place] = each
    if group:
        yield list(group.values())


def _segment(tx: Tx, entry: Entry, sums: Sums, hashes: _Hashes) -> None:
    replaced = replacing.segments(tx, entry.row, entry.place[0])
    [(revision, _, _)] = tx.rows(_NEW, _stored(tx, entry, hashes))
    sums.add_revision(entry.place[0], revision)
    _replace(tx, [(each["revision"], revision) for each in replaced])
    _sum_up(sums, entry, replaced, "segments", 1 - len(replaced))
    if replaced:
        cursors = [each["cursor"] for each in replaced]
        where = {"start": min(cursors), "end": max(cursors) + 1}
        invalidations.replaced(tx, [invalidations.Replaced(entry.write.event, where, revision, entry.row["id"])])


def _partition_all(
    tx: Tx,
    entries: Sequence[Entry],
    current: Mapping[_Place, Row],
    sums: Sums,
    hashes: _Hashes,
    created: Mapping[_Place, int],
) -> list[Entry]:
    """Commit entries of different partitions, and return those that were committed.

    ``current``: what is there. ``created``: the revisions of partitions whose rows are written already.
    """
    # A partition that was never committed replaces nothing.
    standing = _standing(tx, [each for each in entries if each.place in current])
    # A partition that comes back after a removal is read again by its readers.
    removed = _removed(tx, [each for each in entries if each.place not in current])
    outdated = _outdated(tx, entries, standing)
    valid = [each for each in entries if each.place not in outdated]
    revisions = _insert(tx, valid, hashes, created)
    for (generation, _), revision in revisions.items():
        sums.add_revision(generation, revision)
    shared_files.record(tx, {revisions[each.place]: each.write.borrowed for each in valid if each.write.borrowed})
    _replace(tx, [(old["revision"], revisions[at]) for at in revisions for old in standing.get(at, ())])
    for each in valid:
        _sum_up(sums, each, standing.get(each.place, ()), "partitions", each.place not in current)
    stored = {each.place: _stored(tx, each, hashes) for each in valid}
    pointers = [
        _pointer(each, stored, current.get(each.place), standing) | {"revision": revisions[each.place]}
        for each in valid
        if each.place not in created
    ]
    tx.upsert(_partitions, *pointers)
    invalidations.replaced(
        tx,
        [
            invalidations.replaced_partition(each.write.event, revisions[each.place], each.row["id"])
            for each in valid
            if each.place in current or each.place in removed
        ],
    )
    return valid


def _current(tx: Tx, entries: Sequence[Entry]) -> dict[_Place, Row]:
    rows: dict[_Place, Row] = {}
    for (dataset, generation), keys in _by_generation(entries).items():
        values = {"dataset": dataset, "generation": generation, "keys": keys}
        rows |= {(generation, row["partition_key"]): row for row in tx.mappings(_CURRENT, values)}
    return rows


def _removed(tx: Tx, entries: Sequence[Entry]) -> set[_Place]:
    removed = {
        (generation, key)
        for (_, generation), keys in _by_generation(entries).items()
        for key in removing.last_removals(tx, generation, keys)
    }
    # Claims that find them removed must be visible before they come back: they are read again then.
    commit_locks.lock_absent(tx, {generation for generation, _ in removed}, shared=False)
    return removed


def _standing(tx: Tx, entries: Sequence[Entry]) -> dict[_Place, list[sa.RowMapping]]:
    """Return the commits that these replace. An append replaces only what the same work had appended before."""
    by_place: dict[_Place, list[sa.RowMapping]] = {}
    for (_, generation), keys in _by_generation(each for each in entries if not each.append).items():
        for row in tx.all(replacing.stands(generation).where(_commits.c.partition_key.in_(keys))):
            by_place.setdefault((generation, row["partition_key"]), []).append(row)
    for each in entries:
        if each.append:
            by_place[each.place] = list(replacing.appended(tx, each.row, *each.place))
    return by_place


def _outdated(tx: Tx, entries: Sequence[Entry], standing: Mapping[_Place, Sequence[sa.RowMapping]]) -> set[_Place]:
    """Return the places whose current commit comes from newer inputs than the entry.

    Its task has read a later state of a common input, or the current generation where ours has read another.
    """
    others = {
        each.place: {old["task_id"] for old in standing.get(each.place, ())} - {each.row["id"]} for each in entries
    }
    if not any(others.values()):
        return set()
    live = topology.load(tx)
    composed = {
        (each.row["id"], other)
        for each in entries
        if (job := live.jobs.get(each.row["edition_id"])) is not None and job.maps
        for other in others[each.place]
    }
    later_read = dict.fromkeys(later_parts.find_later(tx, live, composed), True) if composed else {}
    alone = {(each.row["id"], other) for each in entries for other in others[each.place]} - composed
    for some in batches(alone):
        values = {"ours": sorted({one for one, _ in some}), "theirs": sorted({other for _, other in some})}
        for one, other, ours in tx.rows(_LATER_READS, values):
            later_read[one, other] = later_read.get((one, other), True) and not ours
    return {
        each.place
        for each in entries
        if any(later_read.get((each.row["id"], other)) for other in others[each.place])
    }


def _later_reads() -> sa.Select[*tuple[Any, ...]]:
    """Select pairs of tasks of which one has read a later state of an input than the other."""
    mine, theirs = schema.task_inputs.alias("mine"), schema.task_inputs.alias("theirs")
    later = sa.and_(
        theirs.c.generation_id == mine.c.generation_id,
        # One may have read the whole dataset because the partition did not exist yet.
        sa.or_(
            theirs.c.partition_key == mine.c.partition_key,
            theirs.c.partition_key == "",
            mine.c.partition_key == "",
        ),
        theirs.c.revision > sa.func.coalesce(mine.c.revision, 0),
    )
    # Within one edition only datasets of other DAGs differ; of these the current generation is the right one.
    differ = theirs.c.generation_id != mine.c.generation_id
    ours_is_current = sa.and_(differ, _is_current(mine.c.generation_id)).label("ours")
    theirs_is_later = sa.or_(later, sa.and_(differ, _is_current(theirs.c.generation_id))).label("theirs")
    return (
        sa.select(mine.c.task_id, theirs.c.task_id, ours_is_current)
        .join(theirs, theirs.c.position == mine.c.position)
        .where(
            mine.c.task_id.in_(sa.bindparam("ours", expanding=True)),
            theirs.c.task_id.in_(sa.bindparam("theirs", expanding=True)),
            sa.or_(theirs_is_later, ours_is_current),
        )
        .distinct()
    )


def _is_current(generation: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Whether the serving version has the generation."""
    pointers, versions = schema.version_generations, schema.dag_versions
    serving = sa.select(pointers.c.version_id).join(versions, versions.c.id == pointers.c.version_id)
    return sa.exists(
        serving.where(pointers.c.generation_id == generation, versions.c.status == VersionStatus.ACTIVE)
    )


_LATER_READS = Prepared(_later_reads())


def _insert(tx: Tx, entries: Sequence[Entry], hashes: _Hashes, created: Mapping[_Place, int]) -> dict[_Place, int]:
    """Insert commits, and return the revision of each. ``created``: those that have one already."""
    rows = {each.place: _stored(tx, each, hashes) for each in entries}
    with_revision = [row | {"revision": created[place]} for place, row in rows.items() if place in created]
    others = [row for place, row in rows.items() if place not in created]
    inserted = [row for some in (with_revision, others) if some for row in tx.rows(_NEW, *some)]
    return {(generation, key): revision for revision, generation, key in inserted}


def _stored(tx: Tx, entry: Entry, hashes: _Hashes) -> dict[str, Any]:
    event, body = entry.write.event, entry.write.body
    return {
        "dataset_id": event.dataset_id,
        "generation_id": event.generation_id,
        "partition_key": event.partition_key,
        "start": event.start,
        "end": event.end,
        "cursor": event.cursor,
        "location": body.location,
        "files": body.files or None,
        "rows": body.rows,
        "bytes": body.bytes,
        "schema_hash": hashes[entry.place],
        "stats": body.stats or None,
        "file_stats": body.file_stats,
        "task_id": entry.row["id"],
        "attempt": entry.attempt,
        "committed_at": tx.now,
    }


def _pointer(
    entry: Entry,
    rows: Mapping[_Place, Mapping[str, Any]],
    before: Row | None,
    standing: Mapping[_Place, Sequence[sa.RowMapping]],
) -> dict[str, Any]:
    """Return the new row of the partition, without its revision."""
    stored = {name: rows[entry.place][name] for name in _POINTER}
    for name in ("rows", "bytes"):
        had = 0 if before is None else before[name] or 0
        stored[name] = had + _grown(entry, standing.get(entry.place, ()), name)
    return stored


def _grown(entry: Entry, replaced: Sequence[sa.RowMapping], name: str) -> int:
    return (getattr(entry.write.body, name) or 0) - sum(each[name] or 0 for each in replaced)


def _replace(tx: Tx, revisions: Sequence[tuple[int, int]]) -> None:
    """Mark revisions as replaced by others."""
    tx.do(_REPLACED, *({"gone": old, "replaced_by": new} for old, new in revisions))


def _sum_up(sums: Sums, entry: Entry, replaced: Sequence[sa.RowMapping], kind: str, more: int) -> None:
    generation = entry.write.event.generation_id
    sums[generation, kind] += more
    for name in ("rows", "bytes"):
        sums[generation, name] += _grown(entry, replaced, name)


def _by_generation(entries: Iterable[Entry]) -> dict[tuple[str, str], list[str]]:
    """Return the partition keys of entries, by dataset and generation."""
    keys: dict[tuple[str, str], list[str]] = {}
    for each in entries:
        event = each.write.event
        keys.setdefault((event.dataset_id, event.generation_id), []).append(event.partition_key or "")
    return keys
