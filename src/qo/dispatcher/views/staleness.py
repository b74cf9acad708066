"""Which committed data is stale: made from inputs that have changed since.

What a task reads is pinned when it is claimed (``tasks.pins``). A commit that stands is stale if its task, claimed
now, would read something else from one of its inputs:

    partition   the partition was committed again since, or is there now and was not then
    whole       something was committed to the generation since
    cursor      a segment within the range was committed or replaced since
    any         another generation of the dataset is current now: of inputs that other DAGs make

This holds for inputs that trigger and for those read beside them. Data of editions that no live version has is never
called stale, because nobody makes it again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.dataset import StaleCount, StaleInput
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches

COUNT_MAX = 1_000  # A count stops there,
SCAN_MAX = 5_000  # and after so many partitions, the oldest first: these are the likeliest to be stale.

_commits, _tasks, _pins = schema.commits, schema.tasks, schema.task_inputs
_partitions, _wanted = schema.partitions, schema.job_inputs
_now = schema.generations.alias("generation_now")  # What the input reads now.
_read = _partitions.alias("partition_now")  # What became of the partition that was read.
_segments = _commits.alias("segment")
_SEEN = sa.func.coalesce(_pins.c.revision, 0)
# The last change of a range of segments; NULL: none, or it was no range that was read.
_RANGE_NOW = (
    sa.select(sa.func.max(sa.func.coalesce(_segments.c.replaced_by, _segments.c.revision)))
    .where(
        _segments.c.generation_id == _pins.c.generation_id,
        sa.text("segment.cursor IS NOT NULL"),  # As the index has it.
        _segments.c.cursor > sa.func.coalesce(_pins.c.cursor_after, -1),
        _segments.c.cursor <= _pins.c.cursor_upto,
        sa.or_(_segments.c.revision > _SEEN, _segments.c.replaced_by > _SEEN),
    )
    .correlate(_pins)
    .scalar_subquery()
)
_REVISION_NOW = sa.case(
    (_pins.c.cursor_upto.is_not(None), _RANGE_NOW), else_=sa.func.coalesce(_read.c.revision, _now.c.revision)
)
_IS_STALE = sa.or_(
    sa.and_(_pins.c.task_id.is_(None), _now.c.revision.is_not(None)),  # There was nothing to read then.
    _pins.c.generation_id != _now.c.id,
    sa.and_(
        _now.c.revision > _SEEN,
        sa.or_(
            sa.and_(_pins.c.partition_key == "", _pins.c.cursor_upto.is_(None)),
            _read.c.revision > _SEEN,
            sa.and_(_pins.c.cursor_upto.is_not(None), _RANGE_NOW.is_not(None)),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """An input that has changed since something was made from it."""

    position: int
    name: str
    dataset_id: str
    generation_id: str  # That it reads now.
    other_generation: bool  # It has read another one, or none.
    partition_key: str | None  # That was read; None: the whole generation, or a range of it.
    cursor_range: bool
    read_revision: int | None
    revision: int | None  # Of the last change.


@dataclass(frozen=True, slots=True)
class StaleWork:
    """A commit that stands and is stale, what its task was about, and one change that makes it stale."""

    made: int  # The revision of the commit.
    dataset_id: str | None  # What triggered the task.
    generation_id: str | None
    partition_key: str | None
    start: int | None
    end: int | None
    attributes: Mapping[str, Any] | None
    changed_generation: str
    changed_revision: int


def maker(tx: Tx, live: Topology, generation_id: str) -> LiveJob | None:
    """The live job that makes a generation. None: no live version has it."""
    table = schema.generations
    edition = tx.value(sa.select(table.c.edition_id).where(table.c.id == generation_id))
    return live.jobs.get(edition or "")


def stale_partitions(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str]
) -> dict[str, list[Change]]:
    """Those of the partitions of a generation that are stale, by key, with the inputs that make them so."""
    found: dict[str, list[Change]] = {}
    for some in batches(keys):
        rows = tx.all(_changes(live, job, _commits.c.partition_key, _standing(generation_id, some)))
        found |= _by_label(rows)
    return found


def stale_segment(tx: Tx, live: Topology, job: LiveJob, revision: int) -> list[Change]:
    """The inputs that make a commit stale that is no partition."""
    which = sa.and_(_commits.c.revision == revision, _commits.c.replaced_by.is_(None))
    return _by_label(tx.all(_changes(live, job, _commits.c.revision, which))).get(revision, [])


def count_stale(tx: Tx, live: Topology, generation: Mapping[Any, Any]) -> StaleCount | None:
    """How many partitions of a generation are stale, within the bounds above. ``generation``: its row.

    None: no live version makes it.
    """
    job = live.jobs.get(generation["edition_id"])
    if job is None:
        return None
    if not job.inputs:
        return StaleCount(partitions=0)
    oldest = (
        sa.select(_partitions.c.partition_key)
        .where(_partitions.c.generation_id == generation["id"])
        .order_by(_partitions.c.revision)
        .limit(SCAN_MAX)
    )
    found = 0
    # Key by key: asked for all at once, a database would rather read every commit of the generation.
    for some in batches(tx.execute(oldest).scalars()):
        stale = _joined(live, job, sa.select(_commits.c.partition_key))
        which = sa.and_(_standing(generation["id"], some), _IS_STALE)
        found += len(set(tx.execute(stale.where(which)).scalars()))
        if found > COUNT_MAX:
            break
    complete = found <= COUNT_MAX and generation["partitions"] <= SCAN_MAX
    return StaleCount(partitions=min(found, COUNT_MAX), at_least=not complete)


def stale_work(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str], positions: Collection[int]
) -> list[StaleWork]:
    """What stands in these partitions and was made stale by these inputs, oldest first."""
    columns = (
        _commits.c.revision.label("made"),
        _tasks.c.dataset_id,
        _tasks.c.generation_id,
        _tasks.c.partition_key,
        _tasks.c.start,
        _tasks.c.end,
        _tasks.c.attributes,
        _now.c.id.label("changed_generation"),
        sa.func.coalesce(_REVISION_NOW, 0).label("changed_revision"),
        _wanted.c.position,
    )
    found: list[sa.RowMapping] = []
    for some in batches(keys):
        query = _joined(live, job, sa.select(*columns)).join(_tasks, _tasks.c.id == _commits.c.task_id)
        found += tx.all(
            query.where(_standing(generation_id, some), _wanted.c.position.in_(sorted(positions)), _IS_STALE)
        )
    ordered = sorted(found, key=lambda row: (row["made"], row["position"]))
    return [StaleWork(**{name: row[name] for name in StaleWork.__slots__}) for row in ordered]


def stale_readers(
    tx: Tx, live: Topology, job: LiveJob, task_ids: Iterable[str], positions: Collection[int]
) -> set[str]:
    """Those tasks of the job that were claimed and have read one of these inputs as it no longer is."""
    found: set[str] = set()
    for some in batches(task_ids):
        query = _with_pins(live, job, sa.select(_tasks.c.id), _tasks, _tasks.c.id)
        chosen = query.where(_tasks.c.id.in_(some), _wanted.c.position.in_(sorted(positions)), _IS_STALE)
        found.update(tx.execute(chosen).scalars())
    return found


def reads_whole(tx: Tx, generation_id: str, keys: Iterable[str], positions: Collection[int]) -> set[int]:
    """Those of the inputs that something in these partitions was made from as a whole."""
    found: set[int] = set()
    for some in batches(keys):
        query = (
            sa.select(_pins.c.position)
            .join(_commits, _commits.c.task_id == _pins.c.task_id)
            .where(
                _standing(generation_id, some),
                _pins.c.position.in_(sorted(positions)),
                _pins.c.partition_key == "",
                _pins.c.cursor_upto.is_(None),
            )
        )
        found.update(tx.execute(query.distinct()).scalars())
    return found


def explain(
    tx: Tx, found: Mapping[str, Sequence[Change]], labels: Mapping[str, str]
) -> dict[str, list[StaleInput]]:
    """The same in words, by the same keys. ``labels``: what people call the datasets that the job reads."""
    changes = [each for several in found.values() for each in several]
    last = _last_commits(tx, {each.revision for each in changes if each.revision is not None})
    return {
        key: [_reason(each, labels.get(each.dataset_id, each.dataset_id), last) for each in several]
        for key, several in found.items()
    }


@dataclass(frozen=True, slots=True)
class _Last:
    """The commit that was the last change of an input."""

    partition_key: str | None
    cursor: int | None
    again: bool  # It took the place of others.


def _last_commits(tx: Tx, revisions: Collection[int]) -> dict[int, _Last]:
    found: dict[int, _Last] = {}
    for some in batches(sorted(revisions)):
        replacing = sa.select(_commits.c.replaced_by).where(_commits.c.replaced_by.in_(some))
        again = set(tx.execute(replacing.distinct()).scalars())
        query = sa.select(_commits.c.revision, _commits.c.partition_key, _commits.c.cursor)
        for revision, key, cursor in tx.execute(query.where(_commits.c.revision.in_(some))):
            found[revision] = _Last(key, cursor, revision in again)
    return found


def _reason(change: Change, label: str, commits: Mapping[int, _Last]) -> StaleInput:
    last = commits.get(change.revision or 0)
    key = change.partition_key if last is None else last.partition_key
    return StaleInput(
        input=change.name,
        dataset=label,
        other_generation=change.other_generation,
        partition_key=key,
        read_revision=change.read_revision,
        revision=change.revision,
        text=f"{change.name} has changed since ({_what_happened(change, label, last)})",
    )


def _what_happened(change: Change, label: str, last: _Last | None) -> str:
    if change.other_generation:
        return f"another generation of {label} is current" if change.read_revision is not None else "it was empty"
    if last is None:
        return f"{label} is at revision {change.revision}"
    what = last.partition_key if last.partition_key is not None else f"cursor {last.cursor}"
    again = " again" if last.again else ""
    return f"{what} was committed{again} as revision {change.revision}"


def _standing(generation_id: str, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        _commits.c.generation_id == generation_id,
        _commits.c.partition_key.in_(keys),
        _commits.c.replaced_by.is_(None),
    )


def _changes(
    live: Topology, job: LiveJob, label: sa.Column[Any], which: sa.ColumnElement[bool]
) -> sa.Select[*tuple[Any, ...]]:
    """A row for each commit and each input that makes it stale."""
    columns = (
        label.label("label"),
        _wanted.c.position,
        _wanted.c.name,
        _wanted.c.dataset_id,
        _now.c.id.label("generation_id"),
        sa.case((_pins.c.generation_id == _now.c.id, False), else_=True).label("other_generation"),
        _pins.c.partition_key,
        _pins.c.cursor_upto,
        _pins.c.revision.label("read_revision"),
        _REVISION_NOW.label("revision"),
    )
    return _joined(live, job, sa.select(*columns)).where(which, _IS_STALE)


def _by_label(rows: Iterable[sa.RowMapping]) -> dict[Any, list[Change]]:
    """One change for each input, in their order. Of a partition to which several tasks have appended, one commit that
    is stale makes all of it so."""
    found: dict[Any, dict[int, Change]] = {}
    for row in rows:
        changes, change = found.setdefault(row["label"], {}), _change(row)
        known = changes.get(change.position)
        if known is None or (known.revision or 0) < (change.revision or 0):
            changes[change.position] = change
    return {label: [changes[at] for at in sorted(changes)] for label, changes in sorted(found.items())}


def _change(row: sa.RowMapping) -> Change:
    return Change(
        position=row["position"],
        name=row["name"],
        dataset_id=row["dataset_id"],
        generation_id=row["generation_id"],
        other_generation=row["other_generation"],
        partition_key=row["partition_key"] or None,
        cursor_range=row["cursor_upto"] is not None,
        read_revision=row["read_revision"],
        revision=row["revision"],
    )


def _joined(live: Topology, job: LiveJob, query: sa.Select[*tuple[Any, ...]]) -> sa.Select[*tuple[Any, ...]]:
    """Commits with what their tasks have read of each input of the job, and how that is now."""
    return _with_pins(live, job, query, _commits, _commits.c.task_id)


def _with_pins(
    live: Topology,
    job: LiveJob,
    query: sa.Select[*tuple[Any, ...]],
    source: sa.FromClause,
    task_id: sa.ColumnElement[str],
) -> sa.Select[*tuple[Any, ...]]:
    outside = {
        each.position: live.current[each.dataset_id]
        for each in job.inputs
        if each.generation_id is None and each.dataset_id in live.current
    }
    followed = (
        sa.case(outside, value=_wanted.c.position, else_=_wanted.c.generation_id)
        if outside
        else _wanted.c.generation_id
    )
    pinned = sa.and_(_pins.c.task_id == task_id, _pins.c.position == _wanted.c.position)
    partition = sa.and_(
        _read.c.dataset_id == _pins.c.dataset_id,
        _read.c.generation_id == _pins.c.generation_id,
        _read.c.partition_key == _pins.c.partition_key,
    )
    return query.select_from(
        source.join(_wanted, _wanted.c.job_id == job.id)
        .join(_now, _now.c.id == followed)
        .outerjoin(_pins, pinned)
        .outerjoin(_read, partition)
    )
