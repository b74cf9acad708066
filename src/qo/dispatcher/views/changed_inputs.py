"""Inputs that have changed since tasks read them: what was pinned at the claim, compared with what is there now.

Each statement looks up rows by the keys that the one before has given, and the comparison is made here. In one
statement with joins, PostgreSQL at times read all partitions for a page of a hundred.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.change_range import Version
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.part_maps import PartMap, reads
from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import change_tasks
from qo.errors import UsageError

_commits, _pins, _partitions = schema.commits, schema.task_inputs, schema.partitions
_READ_REVISION = sa.func.coalesce(_pins.c.revision, 0)
# The last change of a range of segments; NULL: there was none.
_RANGE_NOW = (
    sa.select(sa.func.max(sa.func.coalesce(_commits.c.replaced_by, _commits.c.revision)))
    .where(
        _commits.c.generation_id == _pins.c.generation_id,
        sa.text("commits.cursor IS NOT NULL"),  # The condition of the index.
        _commits.c.cursor > sa.func.coalesce(_pins.c.cursor_after, -1),
        _commits.c.cursor <= _pins.c.cursor_upto,
        sa.or_(_commits.c.revision > _READ_REVISION, _commits.c.replaced_by > _READ_REVISION),
    )
    .correlate(_pins)
    .scalar_subquery()
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
class InputNow:
    """An input of a job, the generation that it reads now, and the last revision of that."""

    planned: PlannedInput
    generation_id: str
    revision: int | None
    map: PartMap | None = None  # If it is read by one.
    # Of a PerChange job: what its whole output is made from, however long ago the single commit was.
    read: Version | None = None


_Place = tuple[str, str, str]  # Of a partition: dataset, generation and key.
_Range = tuple[str, int]  # Of a pin that is a range of segments: task and position.


def load_inputs(tx: Tx, live: Topology, job: LiveJob, positions: Collection[int] | None = None) -> list[InputNow]:
    """Return the inputs of a job that have a generation, in order of position; of these positions, or all."""
    followed = [
        (each, generation)
        for each in sorted(job.inputs, key=lambda one: one.position)
        if (positions is None or each.position in positions)
        and (generation := each.generation_id or live.current.get(each.dataset_id)) is not None
    ]
    table, heads = schema.generations, dict[str, int | None]()
    for some in batches(sorted({generation for _, generation in followed})):
        rows = tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(some)))
        heads |= {id_: revision for id_, revision in rows}
    return [
        InputNow(each, generation, heads[generation], job.maps.get(each.position), _position(tx, job, each))
        for each, generation in followed
        if generation in heads
    ]


def _position(tx: Tx, job: LiveJob, each: PlannedInput) -> Version | None:
    is_read_by_changes = each.trigger and job.job.execution_strategy is Strategy.PER_CHANGE
    return change_tasks.position(tx, job.edition_id, each.dataset_id) if is_read_by_changes else None


def find_changes(tx: Tx, inputs: Sequence[InputNow], task_ids: Iterable[str]) -> dict[str, list[Change]]:
    """Return what has changed of these inputs since each of the tasks read them, in order of position.

    Tasks that have read the current state of all of them are not in the answer.
    """
    changes: dict[str, list[Change]] = {}
    for some in batches(sorted(set(task_ids)) if inputs else ()):
        by_task = _load_pins(tx, inputs, some)
        pins = [pin for of_task in by_task.values() for pin in of_task]
        places_read = _mapped_places(tx, inputs, some)
        places = {
            place
            for by_position in places_read.values()
            for of_input in by_position.values()
            for place in of_input
        }
        partitions, ranges = _partition_revisions(tx, pins, places), _range_revisions(tx, inputs, pins)
        for task in some:
            of_task = [
                change
                for each in inputs
                for change in (
                    _changes_of(each, by_task.get(task, ()), partitions, ranges)
                    if each.map is None
                    else _changed_parts(
                        each,
                        by_task.get(task, ()),
                        places_read.get(task, {}).get(each.planned.position, ()),
                        partitions,
                    )
                )
            ]
            if of_task:
                changes[task] = of_task
    return changes


def _mapped_places(
    tx: Tx, inputs: Sequence[InputNow], task_ids: Sequence[str]
) -> dict[str, dict[int, list[_Place]]]:
    """Return the partitions that each task would read now by the maps of its inputs, by position."""
    mapped = [each for each in inputs if each.map is not None]
    if not mapped:
        return {}
    table, places = schema.tasks, dict[str, dict[int, list[_Place]]]()
    for task, key in tx.execute(sa.select(table.c.id, table.c.partition_key).where(table.c.id.in_(task_ids))):
        places[task] = {each.planned.position: _places_of(each, key) for each in mapped}
    return places


def _places_of(each: InputNow, key: str | None) -> list[_Place]:
    if each.map is None or key is None:
        return []
    try:
        parts = reads(each.map, key).parts
    except UsageError:
        return []  # The task is older than the declaration of what its key says.
    return [(each.planned.dataset_id, each.generation_id, part.key) for part in parts]


def _changed_parts(
    now: InputNow, pins: Sequence[sa.RowMapping], places: Sequence[_Place], partitions: Mapping[_Place, int]
) -> list[Change]:
    """Return what has changed of the parts that are read by a map, or is new among them."""
    own = {pin["partition_key"]: pin for pin in pins if pin["position"] == now.planned.position}
    changes: list[Change] = []
    for place in places:
        at, pin = partitions.get(place), own.get(place[2])
        is_other = pin is not None and pin["generation_id"] != now.generation_id
        if at is not None and (pin is None or is_other or at > (pin["revision"] or 0)):
            of_key = {"partition_key": place[2], "generation_id": now.generation_id, "revision": None}
            changes.append(_change(now, pin or {**of_key, "cursor_upto": None}, at))
    return changes


def _load_pins(tx: Tx, inputs: Sequence[InputNow], task_ids: Sequence[str]) -> dict[str, list[sa.RowMapping]]:
    positions = [each.planned.position for each in inputs]
    query = sa.select(_pins).where(_pins.c.task_id.in_(task_ids), _pins.c.position.in_(positions))
    by_task: dict[str, list[sa.RowMapping]] = {}
    for pin in tx.all(query):
        by_task.setdefault(pin["task_id"], []).append(pin)
    return by_task


def _partition_revisions(
    tx: Tx, pins: Sequence[sa.RowMapping], places: Iterable[_Place] = ()
) -> dict[_Place, int]:
    """Return the current revision of each partition that was read, or is among ``places``, and is there now."""
    keys: dict[tuple[str, str], set[str]] = {}
    for dataset, generation, key in places:
        keys.setdefault((dataset, generation), set()).add(key)
    for pin in pins:
        if pin["partition_key"]:
            keys.setdefault((pin["dataset_id"], pin["generation_id"]), set()).add(pin["partition_key"])
    revisions: dict[_Place, int] = {}
    for (dataset, generation), of_generation in keys.items():
        for some in batches(sorted(of_generation)):
            query = sa.select(_partitions.c.partition_key, _partitions.c.revision).where(
                _partitions.c.dataset_id == dataset,
                _partitions.c.generation_id == generation,
                _partitions.c.partition_key.in_(some),
            )
            revisions |= {(dataset, generation, key): revision for key, revision in tx.execute(query)}
    return revisions


def _range_revisions(tx: Tx, inputs: Sequence[InputNow], pins: Sequence[sa.RowMapping]) -> dict[_Range, int]:
    """Return the last change of each range of segments that was read and has changed."""
    heads = {each.planned.position: each.revision or 0 for each in inputs}
    outdated = {
        pin["task_id"]
        for pin in pins
        if pin["cursor_upto"] is not None and heads[pin["position"]] > (pin["revision"] or 0)
    }
    revisions: dict[_Range, int] = {}
    for some in batches(sorted(outdated)):
        query = sa.select(_pins.c.task_id, _pins.c.position, _RANGE_NOW.label("now")).where(
            _pins.c.task_id.in_(some), _pins.c.position.in_(list(heads)), _pins.c.cursor_upto.is_not(None)
        )
        revisions |= {(row.task_id, row.position): row.now for row in tx.execute(query) if row.now is not None}
    return revisions


def _changes_of(
    now: InputNow,
    pins: Sequence[sa.RowMapping],
    partitions: Mapping[_Place, int],
    ranges: Mapping[_Range, int],
) -> list[Change]:
    own = [pin for pin in pins if pin["position"] == now.planned.position]
    if not own:  # The input was empty then.
        return [] if now.revision is None else [_change(now, None, now.revision)]
    changes: list[Change] = []
    for pin in own:
        at = partitions.get((pin["dataset_id"], pin["generation_id"], pin["partition_key"]))
        in_range = ranges.get((pin["task_id"], pin["position"]))
        by_range = pin["cursor_upto"] is not None
        if _is_stale(now, pin, at, in_range):
            changes.append(_change(now, pin, in_range if by_range else now.revision if at is None else at))
    return changes


def _is_stale(now: InputNow, pin: sa.RowMapping, partition: int | None, in_range: int | None) -> bool:
    read = pin["revision"] or 0
    if now.read is not None and now.read.generation_id == now.generation_id:
        return (now.revision or 0) > now.read.revision
    if pin["generation_id"] != now.generation_id:
        return True
    if (now.revision or 0) <= read:
        return False
    if pin["cursor_upto"] is not None:
        return in_range is not None
    return pin["partition_key"] == "" or (partition is not None and partition > read)


def _change(now: InputNow, pin: Mapping[Any, Any] | sa.RowMapping | None, revision: int | None) -> Change:
    return Change(
        position=now.planned.position,
        name=now.planned.name,
        dataset_id=now.planned.dataset_id,
        generation_id=now.generation_id,
        other_generation=pin is None or pin["generation_id"] != now.generation_id,
        partition_key=None if pin is None else pin["partition_key"] or None,
        cursor_range=pin is not None and pin["cursor_upto"] is not None,
        read_revision=None if pin is None else pin["revision"],
        revision=revision,
    )
