"""Pins: which committed data an attempt reads, decided once, when it is claimed.

A pin is also the record of lineage (``task_inputs``): a generation as of a revision. The pieces follow from it and from
``commits``, which keeps everything, so a partition that is replaced while the task runs is still read as it was, and a
repeated request gets the same answer.

    partition   what is committed under the key of the task
    parts       what is committed under the keys that a map of the input says (``core.pipeline.part_maps``)
    cursor      the segments after one cursor, up to another
    whole       everything that is committed
    changes     what differs between that and what the job had read before
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import InputMode, InputPart, Piece, WorkInput
from qo.core.pipeline.part_maps import reads
from qo.core.pipeline.plan import PlannedInput
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.attempts.change_pins import pin_changes, reads_changes
from qo.dispatcher.attempts.cursor_ranges import cursor_range
from qo.dispatcher.commits import dataset_columns, pieces, removing
from qo.dispatcher.commits.pieces import PIECES_MAX
from qo.dispatcher.state import commit_locks, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound, UsageError

_commits, _inputs, _partitions = schema.commits, schema.task_inputs, schema.partitions
_datasets = schema.datasets
# Building a statement takes longer than executing it, so these are built once.
_KEYS = sa.bindparam("keys", expanding=True, type_=sa.String)
_PINNED = Prepared(
    sa.select(_inputs, _datasets.c.dag, _datasets.c.job, _datasets.c.output)
    .join(_datasets, _datasets.c.id == _inputs.c.dataset_id)
    .where(_inputs.c.task_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(_inputs.c.task_id, _inputs.c.position)
)
_SOME_REVISIONS = sa.select(_partitions.c.partition_key, _partitions.c.revision).where(
    _partitions.c.dataset_id == sa.bindparam("dataset"),
    _partitions.c.generation_id == sa.bindparam("generation"),
    _partitions.c.partition_key.in_(_KEYS),
)
_REVISIONS = Prepared(_SOME_REVISIONS)
# In the order in which commits lock them.
_REVISIONS_LOCKED = Prepared(
    _SOME_REVISIONS.order_by(sa.collate(_partitions.c.partition_key, "C")).with_for_update(read=True)
)
_COMMITTED = Prepared(
    schema.select_commits()
    .where(
        _commits.c.generation_id == sa.bindparam("generation"),
        _commits.c.partition_key.in_(_KEYS),
        _commits.c.revision <= sa.bindparam("latest"),
        sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > sa.bindparam("earliest")),
    )
    .order_by(_commits.c.partition_key, _commits.c.revision)
    .limit(sa.bindparam("most"))
)


@dataclass(frozen=True, slots=True)
class Reader:
    """An attempt that was claimed, or is about to be, and its job."""

    row: Row
    job: LiveJob


@dataclass(frozen=True, slots=True)
class _Reading:
    reader: Reader
    input: PlannedInput
    generation_id: str
    parts: tuple[str, ...] | None = None  # The keys that a map says; None: the input has no map.

    @property
    def keys(self) -> Sequence[str]:
        """The partitions that it may read."""
        if self.parts is not None:
            return self.parts
        key = self.reader.row["partition_key"]
        return () if key is None else (key,)


@dataclass(frozen=True, slots=True)
class _Lookups:
    """Rows that were loaded for many attempts at once."""

    partitions: Mapping[tuple[str, str], Sequence[Row]]  # Their commits, by generation and key.
    columns: dataset_columns.ColumnHistory


def record(tx: Tx, readers: Sequence[Reader], topology: Topology) -> None:
    """Pin what these attempts read; the pins of earlier attempts at their tasks are replaced."""
    readings = [
        _Reading(reader, each, generation, _parts(reader, each))
        for reader in readers
        for each in reader.job.inputs
        if (generation := _generation(reader, each, topology)) is not None
    ]
    whole, by_partition = _split_whole(tx, readings)
    # Before partitions are locked, because who commits may wait for one of them.
    latest = commit_locks.await_latest(tx, {each.generation_id for each in whole}) if whole else None
    again = [each.row["id"] for each in readers if each.row["attempt"] > 1]
    if again:
        tx.execute(sa.delete(_inputs).where(_inputs.c.task_id.in_(again)))
    revisions = _partition_revisions(tx, by_partition, lock=True)
    tx.insert(_inputs, [pin for each in readings for pin in _pins_of(tx, each, revisions, latest)])


def read(tx: Tx, readers: Sequence[Reader], limit: int = PIECES_MAX) -> list[list[WorkInput]]:
    """Return the pinned inputs of each attempt, each with its first pieces."""
    pinned: dict[str, list[Row]] = {}
    for pin in tx.mappings(_PINNED, {"ids": [each.row["id"] for each in readers]}):
        pinned.setdefault(pin["task_id"], []).append(pin)
    every = [pin for pins in pinned.values() for pin in pins]
    columns = dataset_columns.load_history(tx, {pin["generation_id"] for pin in every})
    mapped = {(each.row["id"], position) for each in readers for position in each.job.maps}
    alone = [pin for pin in every if (pin["task_id"], pin["position"]) not in mapped]
    lookups = _Lookups(_known_partitions(tx, alone, limit), columns)
    answers: list[list[WorkInput]] = []
    for each in readers:
        planned = {of.position: of for of in each.job.inputs}
        inputs: list[WorkInput] = []
        own = (pin for pin in pinned.get(each.row["id"], ()) if pin["position"] in planned)
        for position, pins in groupby(own, key=lambda pin: int(pin["position"])):
            if _parts(each, planned[position]) is not None:
                inputs.append(_parts_input(tx, list(pins), planned[position], columns, limit))
            else:
                inputs += [_work_input(tx, pin, planned[position], lookups, limit) for pin in pins]
        answers.append(inputs)
    return answers


def page(
    tx: Tx,
    task_id: str,
    position: int,
    after: str | None,
    limit: int = PIECES_MAX,
    part: InputPart = InputPart.ADDED,
) -> tuple[list[Piece], str | None]:
    """Return further pieces of one input, and where to go on; None: that was all. ``after``: None begins at the first.

    Raises NotFound for an input that the task does not have, UsageError for a place that was never given out.
    """
    pins = tx.all(sa.select(_inputs).where(_inputs.c.task_id == task_id, _inputs.c.position == position))
    if not pins:
        raise NotFound(f"task {task_id} reads no input {position}: claim it first, or ask for another position")
    if len(pins) > 1:
        return pieces.parts_page(tx, pins, after, limit)
    return pieces.page(tx, pieces.part_of(pins[0], part), after, limit)


def _parts(reader: Reader, each: PlannedInput) -> tuple[str, ...] | None:
    """Return the keys of the partitions that the task reads by a map; None without a map."""
    key, map_ = reader.row["partition_key"], reader.job.maps.get(each.position)
    if map_ is None or key is None:
        return None
    try:
        return tuple(part.key for part in reads(map_, key).parts)
    except UsageError:
        return None  # The task is older than the declaration of what its key says.


def _generation(reader: Reader, each: PlannedInput, topology: Topology) -> str | None:
    """None: nothing was ever current there, so there is nothing to read."""
    row = reader.row
    # Changes lead to what is current, whatever was when the task was created.
    own = row["generation_id"] if _triggers(row, each) and not reads_changes(reader.job, each) else None
    return each.generation_id or own or topology.current.get(each.dataset_id)


def _triggers(row: Row, each: PlannedInput) -> bool:
    """Whether the task was started by something new on this input."""
    return each.trigger and each.dataset_id == row["dataset_id"]


def _split_whole(tx: Tx, readings: Sequence[_Reading]) -> tuple[list[_Reading], list[_Reading]]:
    """Split readings into those of a generation as a whole, or of a range of it, and those of one partition."""
    aside = [each for each in readings if each.parts is None and not _triggers(each.reader.row, each.input)]
    there = _partition_revisions(tx, aside, lock=False)
    whole: list[_Reading] = []
    by_partition: list[_Reading] = []
    for each in readings:
        key, triggers = each.reader.row["partition_key"], _triggers(each.reader.row, each.input)
        # What is read aside is read whole if it has no partition of the task's name.
        is_whole = each.parts is None and (key is None or not (triggers or (each.generation_id, key) in there))
        (whole if is_whole else by_partition).append(each)
    return whole, by_partition


def _pins_of(
    tx: Tx, reading: _Reading, revisions: Mapping[tuple[str, str], int], latest: int | None
) -> list[dict[str, Any]]:
    """Return the pin of a reading, or those of all partitions that a map says and that are there."""
    if reading.parts is None:
        return [_pin(tx, reading, revisions, latest)]
    common: dict[str, Any] = {
        "task_id": reading.reader.row["id"],
        "position": reading.input.position,
        "dataset_id": reading.input.dataset_id,
        "generation_id": reading.generation_id,
        "cursor_after": None,
        "cursor_upto": None,
        "changed_after": None,
        "changed_generation": None,
    }
    there = [(key, revisions[at]) for key in reading.parts if (at := (reading.generation_id, key)) in revisions]
    # Without any, one that reads nothing: the operator has the input all the same.
    return [common | {"partition_key": key, "revision": revision} for key, revision in there or [("", None)]]


def _pin(
    tx: Tx, reading: _Reading, revisions: Mapping[tuple[str, str], int], latest: int | None
) -> dict[str, Any]:
    row, job, each = reading.reader.row, reading.reader.job, reading.input
    triggered = _triggers(row, each)
    pin: dict[str, Any] = {
        "task_id": row["id"],
        "position": each.position,
        "partition_key": "",
        "dataset_id": each.dataset_id,
        "generation_id": reading.generation_id,
        "revision": latest,
        "cursor_after": None,
        "cursor_upto": None,
        "changed_after": None,
        "changed_generation": None,
    }
    if reads_changes(job, each):
        return pin | pin_changes(tx, row, job, each, reading.generation_id, latest or 0)
    if row["partition_key"] is not None:
        revision = revisions.get((reading.generation_id, row["partition_key"]))
        if revision is not None or triggered:
            return pin | {"partition_key": row["partition_key"], "revision": revision}
    if triggered and row["cursor"] is not None:
        after, upto = cursor_range(tx, row, job, reading.generation_id)
        pin |= {"cursor_after": after, "cursor_upto": upto}
    return pin


def _partition_revisions(tx: Tx, readings: Iterable[_Reading], *, lock: bool) -> dict[tuple[str, str], int]:
    """Return the current revisions of the attempts' partitions, by generation and key.

    ``lock``: nobody replaces them before the claim is written. Who does so later finds out that we have read them.
    """
    keys_by_generation: dict[tuple[str, str], set[str]] = {}
    for each in readings:
        if each.keys:
            keys_by_generation.setdefault((each.input.dataset_id, each.generation_id), set()).update(each.keys)
    revisions: dict[tuple[str, str], int] = {}
    for (dataset_id, generation_id), keys in sorted(keys_by_generation.items(), key=lambda each: each[0][1]):
        there = _current_revisions(tx, dataset_id, generation_id, keys, lock=lock)
        if missing := keys - there.keys():
            if lock and tx.on_postgres:
                commit_locks.lock_absent(tx, {generation_id}, shared=True)
                there |= _current_revisions(tx, dataset_id, generation_id, missing, lock=True)
            # A removed partition is read as empty; it is not one that is still to come.
            there |= removing.last_removals(tx, generation_id, keys - there.keys())
        revisions |= {(generation_id, key): revision for key, revision in there.items()}
    return revisions


def _current_revisions(
    tx: Tx, dataset_id: str, generation_id: str, keys: Iterable[str], *, lock: bool
) -> dict[str, int]:
    query = _REVISIONS_LOCKED if lock and tx.on_postgres else _REVISIONS
    revisions: dict[str, int] = {}
    for some in batches(sorted(keys)):
        of_it = {"dataset": dataset_id, "generation": generation_id, "keys": some}
        revisions |= {key: revision for key, revision in tx.rows(query, of_it)}
    return revisions


def _known_partitions(tx: Tx, pins: Sequence[Row], limit: int) -> dict[tuple[str, str], list[Row]]:
    """Return the commits of pinned partitions, by generation and key, for generations that have few of them."""
    by_generation: dict[str, list[Row]] = {}
    for pin in pins:
        if pin["partition_key"] and pin["revision"] is not None:
            by_generation.setdefault(pin["generation_id"], []).append(pin)
    commits_of: dict[tuple[str, str], list[Row]] = {}
    for generation, of_it in by_generation.items():
        revisions, keys = [pin["revision"] for pin in of_it], {pin["partition_key"] for pin in of_it}
        values = {"generation": generation, "keys": sorted(keys), "most": limit + 1}
        values |= {"latest": max(revisions), "earliest": min(revisions)}
        rows = tx.mappings(_COMMITTED, values)
        if len(rows) <= limit:
            commits_of |= {(generation, key): [] for key in keys}
            for row in rows:
                commits_of[generation, row["partition_key"]].append(row)
    return commits_of


def _work_input(
    tx: Tx,
    pin: Row,
    planned: PlannedInput,
    lookups: _Lookups,
    limit: int,
) -> WorkInput:
    place = (pin["generation_id"], pin["partition_key"])
    if place in lookups.partitions:
        first_pieces, more = (
            [pieces.piece(each) for each in lookups.partitions[place] if pieces.stood_at(each, pin)],
            None,
        )
    else:
        first_pieces, more = pieces.page(tx, pieces.part_of(pin, InputPart.ADDED), None, limit)
    return WorkInput(
        position=pin["position"],
        name=planned.name,
        dataset=_label(pin),
        dataset_id=pin["dataset_id"],
        generation_id=pin["generation_id"],
        mode=_mode(pin),
        where=dict(planned.where),
        cursor_after=pin["cursor_after"],
        cursor_upto=pin["cursor_upto"],
        changed_after=pin["changed_after"],
        revision=pin["revision"],
        columns=None if pin["revision"] is None else lookups.columns.bodies(pin["generation_id"], pin["revision"]),
        pieces=first_pieces,
        more=more is not None,
        after=more,
    )


def _parts_input(
    tx: Tx,
    pins: Sequence[Row],
    planned: PlannedInput,
    columns: dataset_columns.ColumnHistory,
    limit: int,
) -> WorkInput:
    """Return an input of which several partitions are read, as one."""
    first, revisions = pins[0], [pin["revision"] for pin in pins if pin["revision"] is not None]
    revision = max(revisions, default=None)
    first_pieces, more = pieces.parts_page(tx, pins, None, limit)
    return WorkInput(
        position=first["position"],
        name=planned.name,
        dataset=_label(first),
        dataset_id=first["dataset_id"],
        generation_id=first["generation_id"],
        mode=InputMode.PARTITION,
        where=dict(planned.where),
        revision=revision,
        columns=None if revision is None else columns.bodies(first["generation_id"], revision),
        pieces=first_pieces,
        more=more is not None,
        after=more,
    )


def _label(pin: Row) -> str:
    return f"{pin['dag']}.{pin['job']}[{pin['output']}]" if pin["output"] else f"{pin['dag']}.{pin['job']}"


def _mode(pin: Row) -> InputMode:
    if pin["partition_key"]:
        return InputMode.PARTITION
    if pin["changed_after"] is not None:
        return InputMode.CHANGES
    return InputMode.CURSOR if pin["cursor_upto"] is not None else InputMode.WHOLE
