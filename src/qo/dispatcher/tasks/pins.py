"""Which committed data an attempt reads, decided once, when it is claimed.

The decision is the record of lineage (``task_inputs``): a generation, as it was at one revision. The pieces follow
from it and from ``commits``, which forgets nothing, so a partition that is replaced while the task runs is still
read as it was, and asking again gives the same answer.

    partition   what is committed under the key of the task
    cursor      the segments after one cursor, up to another
    whole       everything that is committed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.flow.plan import PlannedInput
from qo.core.flow.topology import LiveJob, Topology
from qo.dispatcher.contract.task import InputMode, Piece, WorkInput
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound, UsageError

PIECES_MAX = 1000  # So many travel with the claim; the rest is asked for.

_commits, _inputs, _partitions = schema.commits, schema.task_inputs, schema.partitions


def record(tx: Tx, row: Row, job: LiveJob, topology: Topology) -> None:
    """Decide what the attempt reads, in place of what an earlier one read."""
    generations = {each.position: _generation(row, each, topology) for each in job.inputs}
    _still(tx, {each for each in generations.values() if each is not None})
    latest = tx.value(sa.select(sa.func.max(_commits.c.revision)))
    tx.execute(sa.delete(_inputs).where(_inputs.c.task_id == row["id"]))
    tx.insert(
        _inputs,
        [
            _pin(tx, row, job, each, generation, latest)
            for each in job.inputs
            if (generation := generations[each.position]) is not None
        ],
    )


def read(tx: Tx, row: Row, job: LiveJob, limit: int = PIECES_MAX) -> list[WorkInput]:
    """What was decided, with the first pieces of each input."""
    pinned = tx.all(sa.select(_inputs).where(_inputs.c.task_id == row["id"]).order_by(_inputs.c.position))
    planned = {each.position: each for each in job.inputs}
    return [_work_input(tx, pin, planned[pin["position"]], limit) for pin in pinned if pin["position"] in planned]


def page(
    tx: Tx, task_id: str, position: int, after: str | None, limit: int = PIECES_MAX
) -> tuple[list[Piece], str | None]:
    """Further pieces of one input, and where to go on; None: that was all. ``after``: None begins at the first.

    Raises NotFound for an input that the task does not have, UsageError for a place that was never given out.
    """
    pin = tx.one(sa.select(_inputs).where(_inputs.c.task_id == task_id, _inputs.c.position == position))
    if pin is None:
        raise NotFound(f"task {task_id} reads no input {position}: claim it first, or ask for another position")
    return pieces(tx, pin, after, limit)


def pieces(tx: Tx, pin: sa.RowMapping, after: str | None, limit: int) -> tuple[list[Piece], str | None]:
    """In order of partition key, then of cursor; so many at most, and the place of the last if there are more."""
    if pin["revision"] is None:
        return [], None
    kind, key, revision = _place(after)
    found: list[sa.RowMapping] = []
    if kind == "p" and pin["cursor_upto"] is None:
        found += _partition_rows(tx, pin, key, revision, limit + 1)
    if len(found) <= limit and not pin["partition_key"]:
        cursor = int(key) if kind == "c" else None
        found += _segment_rows(tx, pin, cursor, revision, limit + 1 - len(found))
    last = found[limit - 1] if len(found) > limit else None
    return [_piece(each) for each in found[:limit]], None if last is None else _place_of(last)


def _generation(row: Row, each: PlannedInput, topology: Topology) -> str | None:
    """None: nothing was ever current there, so there is nothing to read."""
    own = row["generation_id"] if _triggers(row, each) else None
    return each.generation_id or own or topology.current.get(each.dataset_id)


def _triggers(row: Row, each: PlannedInput) -> bool:
    """Whether the task was started by something new on this input."""
    return each.trigger and each.dataset_id == row["dataset_id"]


def _still(tx: Tx, generations: set[str]) -> None:
    """Let nothing be committed to them until the claim is written.

    Otherwise who replaces a partition meanwhile would not find out that we have read the old one, and a commit
    under way could appear below the revision that we take for the latest.
    """
    table = schema.generations
    query = sa.select(table.c.id).where(table.c.id.in_(generations)).order_by(table.c.id)
    if generations and tx.on_postgres:
        tx.all(tx.lock(query, shared=True))


def _pin(
    tx: Tx, row: Row, job: LiveJob, each: PlannedInput, generation: str, latest: int | None
) -> dict[str, Any]:
    triggered = _triggers(row, each)
    pin: dict[str, Any] = {
        "task_id": row["id"],
        "position": each.position,
        "partition_key": "",
        "dataset_id": each.dataset_id,
        "generation_id": generation,
        "revision": latest,
        "cursor_after": None,
        "cursor_upto": None,
    }
    if row["partition_key"] is not None:
        revision = _partition_revision(tx, each.dataset_id, generation, row["partition_key"])
        if revision is not None or triggered:
            return pin | {"partition_key": row["partition_key"], "revision": revision}
    if triggered and row["cursor"] is not None:
        after, upto = _cursor_range(tx, row, job, generation)
        pin |= {"cursor_after": after, "cursor_upto": upto}
    return pin


def _partition_revision(tx: Tx, dataset_id: str, generation_id: str, key: str) -> int | None:
    return tx.value(
        sa.select(_partitions.c.revision).where(
            _partitions.c.dataset_id == dataset_id,
            _partitions.c.generation_id == generation_id,
            _partitions.c.partition_key == key,
        )
    )


def _cursor_range(tx: Tx, row: Row, job: LiveJob, generation_id: str) -> tuple[int | None, int]:
    if row["invalidation_id"] is not None:
        # Read once more, whatever has been read since.
        return (row["start"] - 1 if row["start"] else None), row["cursor"]
    known = schema.cursors
    last = tx.value(
        sa.select(known.c.value).where(
            known.c.edition_id == row["edition_id"], known.c.generation_id == generation_id
        )
    )
    if last is None and job.job.outputs == 0:
        last = _before(tx, job.edition_id, generation_id)
    return last, row["cursor"]


def _before(tx: Tx, edition_id: str, generation_id: str) -> int | None:
    """How far a generation had come when the edition was first deployed: effects outside are not made for history."""
    return tx.value(
        sa.select(sa.func.max(_commits.c.cursor)).where(
            _commits.c.generation_id == generation_id,
            _commits.c.cursor.is_not(None),
            _commits.c.committed_at < first_deployed(tx, edition_id),
        )
    )


def first_deployed(tx: Tx, edition_id: str) -> Any:
    """When the first version that has the edition was deployed."""
    versions, jobs = schema.dag_versions, schema.jobs
    return tx.value(
        sa.select(sa.func.min(versions.c.created_at))
        .join(jobs, jobs.c.version_id == versions.c.id)
        .where(jobs.c.edition_id == edition_id)
    )


def _work_input(tx: Tx, pin: sa.RowMapping, planned: PlannedInput, limit: int) -> WorkInput:
    found, more = pieces(tx, pin, None, limit)
    return WorkInput(
        position=pin["position"],
        name=planned.name,
        dataset_id=pin["dataset_id"],
        generation_id=pin["generation_id"],
        mode=_mode(pin),
        where=dict(planned.where),
        cursor_after=pin["cursor_after"],
        cursor_upto=pin["cursor_upto"],
        pieces=found,
        more=more is not None,
        after=more,
    )


def _mode(pin: sa.RowMapping) -> InputMode:
    if pin["partition_key"]:
        return InputMode.PARTITION
    return InputMode.CURSOR if pin["cursor_upto"] is not None else InputMode.WHOLE


def _as_of(pin: sa.RowMapping) -> list[sa.ColumnElement[bool]]:
    """What was committed, and not replaced, at the pinned revision."""
    upto = pin["revision"]
    return [
        _commits.c.generation_id == pin["generation_id"],
        _commits.c.revision <= upto,
        sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > upto),
    ]


def _partition_rows(tx: Tx, pin: sa.RowMapping, key: str, revision: int, limit: int) -> Sequence[sa.RowMapping]:
    query = sa.select(_commits).where(*_as_of(pin), _commits.c.partition_key.is_not(None))
    if pin["partition_key"]:
        query = query.where(_commits.c.partition_key == pin["partition_key"])
    if key:
        place = sa.tuple_(_commits.c.partition_key, _commits.c.revision)
        query = query.where(place > sa.tuple_(sa.literal(key), sa.literal(revision)))
    return tx.all(query.order_by(_commits.c.partition_key, _commits.c.revision).limit(limit))


def _segment_rows(
    tx: Tx, pin: sa.RowMapping, cursor: int | None, revision: int, limit: int
) -> Sequence[sa.RowMapping]:
    query = sa.select(_commits).where(
        *_as_of(pin), _commits.c.cursor.is_not(None), _commits.c.partition_key.is_(None)
    )
    if pin["cursor_upto"] is not None:
        query = query.where(_commits.c.cursor <= pin["cursor_upto"])
    if pin["cursor_after"] is not None:
        query = query.where(_commits.c.cursor > pin["cursor_after"])
    if cursor is not None:
        place = sa.tuple_(_commits.c.cursor, _commits.c.revision)
        query = query.where(place > sa.tuple_(sa.literal(cursor), sa.literal(revision)))
    return tx.all(query.order_by(_commits.c.cursor, _commits.c.revision).limit(limit))


def _piece(row: sa.RowMapping) -> Piece:
    return Piece(
        partition_key=row["partition_key"],
        start=row["start"],
        end=row["end"],
        cursor=row["cursor"],
        revision=row["revision"],
        location=row["location"],
        files=row["files"] or [],
        rows=row["rows"],
        bytes=row["bytes"],
    )


def _place_of(row: sa.RowMapping) -> str:
    """Where a row stands: p for partitions, which come first, c for segments."""
    if row["partition_key"] is not None:
        return f"p/{row['revision']}/{row['partition_key']}"
    return f"c/{row['revision']}/{row['cursor']}"


def _place(after: str | None) -> tuple[str, str, int]:
    if after is None:
        return "p", "", 0
    kind, _, rest = after.partition("/")
    revision, _, key = rest.partition("/")
    if kind not in ("p", "c") or not revision.isdecimal() or not key or (kind == "c" and not key.isdecimal()):
        raise UsageError(f"{after!r} is no place in a list of pieces: pass on what the last answer gave")
    return kind, key, int(revision)
