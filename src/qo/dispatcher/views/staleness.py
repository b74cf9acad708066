"""Staleness: which committed data was made from inputs that have changed since.

The inputs of a task are pinned when it is claimed (``attempts.pins``). A current commit is stale if its task, claimed
now, would read something else from one of its inputs:

    partition   the partition was committed again since, or is new since
    whole       something was committed to the generation since
    cursor      a segment within the range was committed or replaced since
    any         another generation of the dataset is current now (inputs that other DAGs write)

This holds for triggering and for side inputs. Data of editions without a live version never counts as stale, because
nobody remakes it.
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

COUNT_MAX = 1_000  # A count of stale partitions stops there, …
SCAN_MAX = 5_000  # … or after this many partitions, oldest first: these are the likeliest to be stale.

_commits, _tasks, _pins = schema.commits, schema.tasks, schema.task_inputs
_partitions, _job_inputs = schema.partitions, schema.job_inputs
_now = schema.generations.alias("generation_now")  # The generation that the input reads now.
_read = _partitions.alias("partition_now")  # The current state of the partition that was read.
_segments = _commits.alias("segment")
_READ_REVISION = sa.func.coalesce(_pins.c.revision, 0)
# The last change of a range of segments; NULL: there was none, or the input was not read by range.
_RANGE_NOW = (
    sa.select(sa.func.max(sa.func.coalesce(_segments.c.replaced_by, _segments.c.revision)))
    .where(
        _segments.c.generation_id == _pins.c.generation_id,
        sa.text("segment.cursor IS NOT NULL"),  # The condition of the index.
        _segments.c.cursor > sa.func.coalesce(_pins.c.cursor_after, -1),
        _segments.c.cursor <= _pins.c.cursor_upto,
        sa.or_(_segments.c.revision > _READ_REVISION, _segments.c.replaced_by > _READ_REVISION),
    )
    .correlate(_pins)
    .scalar_subquery()
)
_REVISION_NOW = sa.case(
    (_pins.c.cursor_upto.is_not(None), _RANGE_NOW), else_=sa.func.coalesce(_read.c.revision, _now.c.revision)
)
_IS_STALE = sa.or_(
    sa.and_(_pins.c.task_id.is_(None), _now.c.revision.is_not(None)),  # The input was empty then.
    _pins.c.generation_id != _now.c.id,
    sa.and_(
        _now.c.revision > _READ_REVISION,
        sa.or_(
            sa.and_(_pins.c.partition_key == "", _pins.c.cursor_upto.is_(None)),
            _read.c.revision > _READ_REVISION,
            sa.and_(_pins.c.cursor_upto.is_not(None), _RANGE_NOW.is_not(None)),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """An input that has changed since it was read."""

    position: int
    name: str
    dataset_id: str
    generation_id: str  # The one that it reads now.
    other_generation: bool  # Another generation was read, or none.
    partition_key: str | None  # The one that was read; None: the whole generation, or a range of it.
    cursor_range: bool
    read_revision: int | None
    revision: int | None  # Of the last change.


@dataclass(frozen=True, slots=True)
class StaleWork:
    """A current commit that is stale, the subject of its task, and one change that makes it stale."""

    output_revision: int
    dataset_id: str | None  # Of the input that triggered the task.
    generation_id: str | None
    partition_key: str | None
    start: int | None
    end: int | None
    attributes: Mapping[str, Any] | None
    changed_generation: str
    changed_revision: int


def live_writer(tx: Tx, live: Topology, generation_id: str) -> LiveJob | None:
    """Return the live job that writes a generation; None if no live version has it."""
    table = schema.generations
    edition = tx.value(sa.select(table.c.edition_id).where(table.c.id == generation_id))
    return live.jobs.get(edition or "")


def stale_partitions(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str]
) -> dict[str, list[Change]]:
    """Return the changed inputs of each stale one of these partitions, by key."""
    changes: dict[str, list[Change]] = {}
    for some in batches(keys):
        rows = tx.all(_changes(live, job, _commits.c.partition_key, _is_current(generation_id, some)))
        changes |= _by_label(rows)
    return changes


def stale_segment(tx: Tx, live: Topology, job: LiveJob, revision: int) -> list[Change]:
    """Return the changed inputs of a commit that is not a partition."""
    which = sa.and_(_commits.c.revision == revision, _commits.c.replaced_by.is_(None))
    return _by_label(tx.all(_changes(live, job, _commits.c.revision, which))).get(revision, [])


def count_stale(tx: Tx, live: Topology, generation: Mapping[Any, Any]) -> StaleCount | None:
    """Count the stale partitions of a generation (given by its row), within the bounds above.

    Returns None if no live version writes it.
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
    count = 0
    # In batches of keys: for all at once, a database might read every commit of the generation.
    for some in batches(tx.execute(oldest).scalars()):
        stale = _with_commit_inputs(live, job, sa.select(_commits.c.partition_key))
        which = sa.and_(_is_current(generation["id"], some), _IS_STALE)
        count += len(set(tx.execute(stale.where(which)).scalars()))
        if count > COUNT_MAX:
            break
    complete = count <= COUNT_MAX and generation["partitions"] <= SCAN_MAX
    return StaleCount(partitions=min(count, COUNT_MAX), at_least=not complete)


def stale_work(
    tx: Tx, live: Topology, job: LiveJob, generation_id: str, keys: Iterable[str], positions: Collection[int]
) -> list[StaleWork]:
    """Return the current commits of these partitions that these inputs have made stale, oldest first."""
    columns = (
        _commits.c.revision.label("output_revision"),
        _tasks.c.dataset_id,
        _tasks.c.generation_id,
        _tasks.c.partition_key,
        _tasks.c.start,
        _tasks.c.end,
        _tasks.c.attributes,
        _now.c.id.label("changed_generation"),
        sa.func.coalesce(_REVISION_NOW, 0).label("changed_revision"),
        _job_inputs.c.position,
    )
    rows: list[sa.RowMapping] = []
    for some in batches(keys):
        query = _with_commit_inputs(live, job, sa.select(*columns)).join(_tasks, _tasks.c.id == _commits.c.task_id)
        rows += tx.all(
            query.where(_is_current(generation_id, some), _job_inputs.c.position.in_(sorted(positions)), _IS_STALE)
        )
    ordered = sorted(rows, key=lambda row: (row["output_revision"], row["position"]))
    return [StaleWork(**{name: row[name] for name in StaleWork.__slots__}) for row in ordered]


def stale_readers(
    tx: Tx, live: Topology, job: LiveJob, task_ids: Iterable[str], positions: Collection[int]
) -> set[str]:
    """Return those claimed tasks of the job that have read an outdated state of one of these inputs."""
    stale: set[str] = set()
    for some in batches(task_ids):
        query = _with_pins(live, job, sa.select(_tasks.c.id), _tasks, _tasks.c.id)
        matching = query.where(_tasks.c.id.in_(some), _job_inputs.c.position.in_(sorted(positions)), _IS_STALE)
        stale.update(tx.execute(matching).scalars())
    return stale


def reads_whole(tx: Tx, generation_id: str, keys: Iterable[str], positions: Collection[int]) -> set[int]:
    """Return the positions of inputs that some of these partitions were made from as a whole."""
    whole: set[int] = set()
    for some in batches(keys):
        query = (
            sa.select(_pins.c.position)
            .join(_commits, _commits.c.task_id == _pins.c.task_id)
            .where(
                _is_current(generation_id, some),
                _pins.c.position.in_(sorted(positions)),
                _pins.c.partition_key == "",
                _pins.c.cursor_upto.is_(None),
            )
        )
        whole.update(tx.execute(query.distinct()).scalars())
    return whole


def explain(
    tx: Tx, changes_by_key: Mapping[str, Sequence[Change]], labels: Mapping[str, str]
) -> dict[str, list[StaleInput]]:
    """Describe changes in words, by the same keys. ``labels``: the names of the datasets that the job reads."""
    changes = [each for several in changes_by_key.values() for each in several]
    last = _last_commits(tx, {each.revision for each in changes if each.revision is not None})
    return {
        key: [_reason(each, labels.get(each.dataset_id, each.dataset_id), last) for each in several]
        for key, several in changes_by_key.items()
    }


@dataclass(frozen=True, slots=True)
class _LastCommit:
    """The last change of an input."""

    partition_key: str | None
    cursor: int | None
    again: bool  # It replaced an earlier commit.


def _last_commits(tx: Tx, revisions: Collection[int]) -> dict[int, _LastCommit]:
    commits: dict[int, _LastCommit] = {}
    for some in batches(sorted(revisions)):
        replacing = sa.select(_commits.c.replaced_by).where(_commits.c.replaced_by.in_(some))
        again = set(tx.execute(replacing.distinct()).scalars())
        query = sa.select(_commits.c.revision, _commits.c.partition_key, _commits.c.cursor)
        for revision, key, cursor in tx.execute(query.where(_commits.c.revision.in_(some))):
            commits[revision] = _LastCommit(key, cursor, revision in again)
    return commits


def _reason(change: Change, label: str, commits: Mapping[int, _LastCommit]) -> StaleInput:
    last = commits.get(change.revision or 0)
    key = change.partition_key if last is None else last.partition_key
    return StaleInput(
        input=change.name,
        dataset=label,
        other_generation=change.other_generation,
        partition_key=key,
        read_revision=change.read_revision,
        revision=change.revision,
        text=f"{change.name} has changed since ({_describe_change(change, label, last)})",
    )


def _describe_change(change: Change, label: str, last: _LastCommit | None) -> str:
    if change.other_generation:
        return f"another generation of {label} is current" if change.read_revision is not None else "it was empty"
    if last is None:
        return f"{label} is at revision {change.revision}"
    what = last.partition_key if last.partition_key is not None else f"cursor {last.cursor}"
    again = " again" if last.again else ""
    return f"{what} was committed{again} as revision {change.revision}"


def _is_current(generation_id: str, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    return sa.and_(
        _commits.c.generation_id == generation_id,
        _commits.c.partition_key.in_(keys),
        _commits.c.replaced_by.is_(None),
    )


def _changes(
    live: Topology, job: LiveJob, label: sa.Column[Any], which: sa.ColumnElement[bool]
) -> sa.Select[*tuple[Any, ...]]:
    """Select a row for each commit and each input that makes it stale."""
    columns = (
        label.label("label"),
        _job_inputs.c.position,
        _job_inputs.c.name,
        _job_inputs.c.dataset_id,
        _now.c.id.label("generation_id"),
        sa.case((_pins.c.generation_id == _now.c.id, False), else_=True).label("other_generation"),
        _pins.c.partition_key,
        _pins.c.cursor_upto,
        _pins.c.revision.label("read_revision"),
        _REVISION_NOW.label("revision"),
    )
    return _with_commit_inputs(live, job, sa.select(*columns)).where(which, _IS_STALE)


def _by_label(rows: Iterable[sa.RowMapping]) -> dict[Any, list[Change]]:
    """Return one change per input, in order of position. If several tasks have appended to a partition, one stale
    commit makes the whole partition stale."""
    by_label: dict[Any, dict[int, Change]] = {}
    for row in rows:
        changes, change = by_label.setdefault(row["label"], {}), _change(row)
        earlier = changes.get(change.position)
        if earlier is None or (earlier.revision or 0) < (change.revision or 0):
            changes[change.position] = change
    return {label: [changes[at] for at in sorted(changes)] for label, changes in sorted(by_label.items())}


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


def _with_commit_inputs(
    live: Topology, job: LiveJob, query: sa.Select[*tuple[Any, ...]]
) -> sa.Select[*tuple[Any, ...]]:
    """Join commits with what their tasks have read of each input of the job, and with its current state."""
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
        sa.case(outside, value=_job_inputs.c.position, else_=_job_inputs.c.generation_id)
        if outside
        else _job_inputs.c.generation_id
    )
    pinned = sa.and_(_pins.c.task_id == task_id, _pins.c.position == _job_inputs.c.position)
    partition = sa.and_(
        _read.c.dataset_id == _pins.c.dataset_id,
        _read.c.generation_id == _pins.c.generation_id,
        _read.c.partition_key == _pins.c.partition_key,
    )
    return query.select_from(
        source.join(_job_inputs, _job_inputs.c.job_id == job.id)
        .join(_now, _now.c.id == followed)
        .outerjoin(_pins, pinned)
        .outerjoin(_read, partition)
    )
