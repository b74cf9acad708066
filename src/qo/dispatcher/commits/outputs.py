"""The outputs of a task's job, also when no live version has it any more, and the check of what an attempt reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from qo.api.contract.task import OutputBody
from qo.core.pipeline.dag import Job
from qo.core.pipeline.event import Event, validate
from qo.core.pipeline.partitions import Partitions, check_key
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import Row
from qo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Output:
    """One output of the task's edition."""

    index: int
    dataset_id: str
    generation_id: str
    partitions: Partitions | None = None  # Keys of others are refused.


def prefix_path(dataset_id: str, generation_id: str, task_id: str, attempt: int) -> str:
    """Return where an attempt writes an output, below the root of the data."""
    return f"{dataset_id}/{generation_id}/{task_id}/{attempt}/"


def outputs_of(tx: Tx, live: Topology, row: Row) -> list[Output]:
    """Return the outputs of a task's job, in order of index."""
    job = live.jobs.get(row["edition_id"])
    if job is not None:
        return live_outputs(job)
    generations, datasets = schema.generations, schema.datasets
    rows = tx.execute(
        sa.select(datasets.c.output, datasets.c.id, generations.c.id)
        .join(datasets, datasets.c.id == generations.c.dataset_id)
        .where(generations.c.edition_id == row["edition_id"])
        .order_by(datasets.c.output)
    )
    return [Output(index, dataset_id, generation_id) for index, dataset_id, generation_id in rows]


def live_outputs(job: LiveJob) -> list[Output]:
    """Return the outputs of a live job, in order of index."""
    partitions = job.job.partitions
    return [Output(each.index, each.dataset_id, each.generation_id, partitions) for each in job.outputs]


def definition_of(tx: Tx, live: Topology, row: Row) -> Job:
    """Return the definition of the task's job, as its version has it."""
    live_job = live.jobs.get(row["edition_id"])
    if live_job is not None:
        return live_job.job
    return msgspec.convert(
        tx.value(sa.select(schema.jobs.c.definition).where(schema.jobs.c.id == row["job_id"])), Job
    )


def required_code(tx: Tx, live: Topology, row: Row) -> str | None:
    """Return the fingerprint of the code that the worker must report; None: workers run their own code."""
    live_job = live.jobs.get(row["edition_id"])
    if live_job is not None:
        return live_job.job.code if live_job.bundle is not None else None
    stored = tx.one(
        sa.select(schema.jobs.c.bundle, schema.jobs.c.definition).where(schema.jobs.c.id == row["job_id"])
    )
    return None if stored is None or stored["bundle"] is None else stored["definition"].get("code")


@dataclass(frozen=True, slots=True)
class Write:
    """One valid output: its event says what it is, the body where it is."""

    event: Event
    body: OutputBody
    borrowed: tuple[int, ...] = ()  # The revisions whose files these are, if the attempt made none of its own.


def validate_outputs(
    row: Row, attempt: int, bodies: Sequence[OutputBody], outputs: Sequence[Output], data_root: str | None
) -> list[Write]:
    """Return what is to be committed. Raises UsageError, before anything is written, for invalid outputs."""
    by_index = {each.index: each for each in outputs}
    writes: list[Write] = []
    scopes: set[tuple[str, str]] = set()
    for body in bodies:
        if body.output not in by_index:
            raise UsageError(f"the job has no output {body.output}: it has {len(outputs)}, counted from 0")
        output = by_index[body.output]
        write = Write(_event(row, body, output), body)
        _check_location(prefix_path(output.dataset_id, output.generation_id, row["id"], attempt), body, data_root)
        scope = (output.generation_id, write.event.scope)
        if scope in scopes:
            raise UsageError(f"{write.event.scope} of output {body.output} is committed twice: name it once")
        scopes.add(scope)
        writes.append(write)
    return writes


def _event(row: Row, body: OutputBody, output: Output) -> Event:
    key = body.partition_key
    start, end = body.start, body.end
    if key is None and body.cursor is None:
        key = row["partition_key"]  # As the task, so its output.
        if key is not None and start is None and end is None:
            start, end = row["start"], row["end"]
        if key is None and row["cursor"] is None:
            raise UsageError(f"output {body.output} needs a partition_key or a cursor: its task has neither")
    check_key(output.partitions, key)
    cursor = body.cursor if key is not None or body.cursor is not None else row["cursor"]
    return validate(
        Event(
            dataset_id=output.dataset_id,
            generation_id=output.generation_id,
            cursor=cursor,
            partition_key=key,
            start=start,
            end=end,
        )
    )


def _check_location(own: str, body: OutputBody, data_root: str | None) -> None:
    """Raise UsageError unless the output lies in the attempt's own prefix: elsewhere others could still change it.

    Without a root (None) every location is refused.
    """
    if body.location is None:
        if body.files:
            raise UsageError(f"output {body.output} names files but no location: give the prefix they lie under")
        return
    below = f"{body.location.rstrip('/')}/"
    root = None if data_root is None else data_root.rstrip("/")
    if root is None or not below.startswith(f"{root}/{own}") or ".." in body.location.split("/"):
        raise UsageError(f"output {body.output} lies at {body.location}: write it below {root or '…'}/{own}")
    for name in body.files:
        if ".." in name.split("/") or ((":/" in name or name.startswith("/")) and not name.startswith(below)):
            raise UsageError(f"file {name!r} of output {body.output} does not lie below its location")
