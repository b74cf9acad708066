"""Routing: which jobs an event may start, and what is decided for each. Pure: the facts come as arguments.

    create      the job gets a task, unless one with the same key exists
    wait        a job that joins its inputs lacks the partition on another input
    compose     the job makes its partitions of others: these are the ones to look at (``core.pipeline.composition``)
    filter      the job does not run on this kind of event

An event that starts no job is superseded (its generation is no longer made) or unread; both have a reason. Pauses and
backpressure play no part: the task is created, and the release loop withholds it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from qo.core.pipeline.dag import Join, Strategy
from qo.core.pipeline.event import Event
from qo.core.pipeline.part_maps import concerned
from qo.core.pipeline.topology import LiveJob, Reader, Topology
from qo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Piece:
    """A partition of one generation, which a joining job waits for."""

    dataset_id: str
    generation_id: str
    partition_key: str


@dataclass(frozen=True, slots=True)
class Create:
    job: LiveJob


@dataclass(frozen=True, slots=True)
class Filter:
    job: LiveJob
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    job: LiveJob
    reason: str


@dataclass(frozen=True, slots=True)
class Compose:
    job: LiveJob
    keys: tuple[str, ...]  # Of the job's partitions that read the one of the event.


@dataclass(frozen=True, slots=True)
class Superseded:
    """The event is of a generation that no live version makes."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unread:
    """The event starts no job."""

    reason: str


Decision = Create | Filter | Wait | Compose


def route(
    event: Event, topology: Topology, announced: Container[Piece] = frozenset()
) -> tuple[Decision, ...] | Superseded | Unread:
    """Return one decision for each job that the event may start.

    ``announced``: those of ``required_pieces(event, topology)`` that exist.
    """
    ended = end_of(event, topology)
    if ended is not None:
        return ended
    return tuple(_decide(job, event, topology, announced) for job in triggered_jobs(event, topology))


def end_of(event: Event, topology: Topology) -> Superseded | Unread | None:
    """Return why the event starts no job; None if some job decides about it."""
    if event.generation_id not in topology.generations:
        return Superseded(_superseded_reason(event, topology))
    if not triggered_jobs(event, topology):
        return Unread(_unread_reason(event, topology))
    return None


def required_pieces(event: Event, topology: Topology) -> list[Piece]:
    """Return the partitions whose existence decides about this event: look them up, then call ``route``."""
    if event.partition_key is None or event.generation_id not in topology.generations:
        return []
    return [
        piece
        for job in triggered_jobs(event, topology)
        if joins(job)
        for piece in _other_pieces(job, event, topology).values()
        if piece is not None
    ]


def joins(job: LiveJob) -> bool:
    """Return whether the job runs on a partition only when all of its triggering inputs have it."""
    return (
        job.job.join is Join.ALL and not job.is_composite and job.job.execution_strategy is Strategy.PER_PARTITION
    )


def generation_read(reader: Reader, topology: Topology) -> str | None:
    """Return the generation that an input reads now; None if its dataset has no current one."""
    return reader.input.generation_id or topology.current.get(reader.input.dataset_id)


def triggered_jobs(event: Event, topology: Topology) -> list[LiveJob]:
    """Return the jobs that the event may start."""
    # A job that reads the same dataset by two inputs is started once.
    jobs = {
        reader.job.edition_id: reader.job for reader in topology.consumers(event.dataset_id, event.generation_id)
    }
    return list(jobs.values())


def _decide(job: LiveJob, event: Event, topology: Topology, announced: Container[Piece]) -> Decision:
    if job.job.execution_strategy is Strategy.PER_CHANGE:
        return Create(job)  # Whatever has changed: it reads all of it.
    per_partition = job.job.execution_strategy is Strategy.PER_PARTITION
    if per_partition != (event.partition_key is not None):
        expected, actual = ("partition", "cursor") if per_partition else ("cursor", "partition")
        strategy = job.job.execution_strategy or "as it likes"
        return Filter(
            job, f"not routable: {job.name} runs {strategy} on {expected} events, and this is a {actual} event"
        )
    if job.is_composite:
        return _compose(job, event, topology)
    if not joins(job):
        return Create(job)
    others = _other_pieces(job, event, topology)
    missing = sorted(name for name, piece in others.items() if piece is None or piece not in announced)
    if missing:
        return Wait(job, f"waits for partition {event.partition_key} on input {', '.join(missing)}")
    return Create(job)


def _compose(job: LiveJob, event: Event, topology: Topology) -> Decision:
    keys: dict[str, None] = {}
    for each in job.composed:
        is_read = generation_read(Reader(job, each), topology) == event.generation_id
        if is_read and each.dataset_id == event.dataset_id:
            try:
                keys |= dict.fromkeys(concerned(job.maps[each.position], event.partition_key or ""))
            except UsageError as error:  # It was announced before its keys were declared.
                return Filter(job, f"not routable: {error}")
    return Compose(job, tuple(keys)) if keys else Filter(job, "it concerns no partition that is expected")


def _other_pieces(job: LiveJob, event: Event, topology: Topology) -> dict[str, Piece | None]:
    """Return the other partitions that a joining job needs, by input. None: the dataset has no current generation."""
    pieces: dict[str, Piece | None] = {}
    for each in job.inputs:
        if not each.trigger:
            continue
        generation = generation_read(Reader(job, each), topology)
        if generation == event.generation_id:
            continue  # This is the input that the event belongs to.
        pieces[each.name] = (
            None if generation is None else Piece(each.dataset_id, generation, event.partition_key or "")
        )
    return pieces


def _superseded_reason(event: Event, topology: Topology) -> str:
    current = topology.current.get(event.dataset_id)
    if current is None:
        return f"generation {event.generation_id} is not made by any live version, and none is current"
    return f"generation {event.generation_id} is not made by any live version: current is {current}"


def _unread_reason(event: Event, topology: Topology) -> str:
    readers = topology.readers.get(event.dataset_id, ())
    if not readers:
        return "no live job reads this dataset"
    if not any(reader.input.trigger for reader in readers):
        names = ", ".join(sorted({reader.job.name for reader in readers}))
        return f"it starts nothing: {names} reads it with trigger: false"
    if any(reader.input.trigger and reader.input.generation_id is None for reader in readers):
        return "this generation is not current: its readers in other DAGs take it up at the cutover"
    return "no live job reads this generation"
