"""A running attempt: its heartbeats, the events it sends, and the pieces it fetches."""

from __future__ import annotations

from collections.abc import Sequence

from qo.api.contract.task import (
    EventBody,
    EventsAnswer,
    EventsRequest,
    Fence,
    HeartbeatAnswer,
    HeartbeatRequest,
    PiecesAnswer,
    TaskState,
)
from qo.core.lifecycle import Rejected, Renew
from qo.core.pipeline.event import Event
from qo.core.pipeline.partitions import check_key
from qo.core.pipeline.topology import Topology
from qo.core.task import Status
from qo.dispatcher.attempts import claiming, pins
from qo.dispatcher.attempts.pins import Reader
from qo.dispatcher.commits.outputs import Output, outputs_of
from qo.dispatcher.events import event_log
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backpressure, rows
from qo.dispatcher.tasks.rows import Row
from qo.errors import Forbidden, LeaseLost, UsageError


def heartbeat(tx: Tx, request: HeartbeatRequest) -> HeartbeatAnswer:
    """Extend the lease, also an expired one as long as nobody took the task back: the holder cannot help an outage.

    Raises LeaseLost for an attempt that is not the current one, and once the attempt's timeout is over.
    """
    live = topology.load(tx)
    row = held(tx, request)
    command = Renew(
        token=tx.ambient.token(),
        lease_id=request.lease_id,
        lease_s=_left_s(tx, row),
        progress=request.progress,
    )
    moved = rows.move(tx, row, command)
    if isinstance(moved, Rejected):
        raise LeaseLost(moved.detail)
    return HeartbeatAnswer(
        lease_expires_at=moved.row["lease_expires_at"],
        cancel_requested=moved.row["cancel_requested"],
        paused=paused(tx, live, row),
    )


def emit(tx: Tx, request: EventsRequest) -> EventsAnswer:
    """Store events of a running attempt, to be routed soon. Events that it sends again are stored once.

    Raises LeaseLost as ``heartbeat``, Forbidden for datasets that the task's job does not make.
    """
    live = topology.load(tx)
    row = held(tx, request)
    events = own_events(request.events, outputs_of(tx, live, row))
    accepted = event_log.accept(tx, producer(request), events, request.task_id, request.attempt)
    return EventsAnswer(
        accepted=accepted.accepted,
        repeated=accepted.repeated,
        event_ids=list(accepted.ids),
        paused=paused(tx, live, row),
    )


def fetch(tx: Tx, task_id: str, data_root: str | None = None) -> TaskState:
    """Return the state of a task and, with ``data_root`` and while it runs, its work. Raises NotFound."""
    row = rows.load(tx, task_id, lock=False)
    job = claiming.live_job(topology.load(tx), row)
    runs = row["status"] == Status.RUNNING
    return TaskState(
        task_id=task_id,
        status=row["status"],
        attempt=row["attempt"],
        cancel_requested=row["cancel_requested"],
        work=claiming.works_of(tx, [Reader(row, job)], data_root)[0] if data_root and runs and job else None,
    )


def page(tx: Tx, fence: Fence, position: int, after: str | None, limit: int = pins.PIECES_MAX) -> PiecesAnswer:
    """Return further pieces of one input of a running attempt."""
    held(tx, fence, lock=False)
    pieces, rest = pins.page(tx, fence.task_id, position, after, max(1, min(limit, pins.PIECES_MAX)))
    return PiecesAnswer(pieces=pieces, after=rest)


def held(tx: Tx, fence: Fence, *, lock: bool = True) -> Row:
    """Return the row of a task that this attempt holds now. Raises LeaseLost if it does not, NotFound."""
    row = rows.load(tx, fence.task_id, lock=lock)
    if lock:
        tx.refresh_now()  # The transaction may have waited for locks, and time decides what follows.
    if row["status"] != Status.RUNNING or (row["attempt"], row["lease_id"]) != (fence.attempt, fence.lease_id):
        raise LeaseLost(
            f"attempt {fence.attempt} does not hold task {fence.task_id} any more: it is {row['status']}, "
            f"attempt {row['attempt']}; stop working on it"
        )
    if _left_s(tx, row) <= 0:
        raise LeaseLost(
            f"attempt {fence.attempt} of task {fence.task_id} has taken longer than the "
            f"{row['timeout_seconds']:g} s that it may; stop working on it"
        )
    return row


def _left_s(tx: Tx, row: Row) -> float:
    """Return how long a lease may be that is granted now; 0: the attempt's timeout is over."""
    return claiming.lease_s(row, (tx.now - row["started_at"]).total_seconds())


def producer(fence: Fence) -> str:
    """Return the name of an attempt as a producer of events."""
    return f"{fence.task_id}:{fence.attempt}"


def own_events(bodies: Sequence[EventBody], outputs: Sequence[Output]) -> list[Event]:
    """Return the events with their datasets filled in. Raises Forbidden for other jobs' datasets, UsageError."""
    return [_event(each, outputs) for each in bodies]


def _event(body: EventBody, outputs: Sequence[Output]) -> Event:
    output = _output(body, outputs)
    check_key(output.partitions, body.partition_key)
    return Event(
        dataset_id=output.dataset_id,
        generation_id=output.generation_id,
        cursor=body.cursor,
        partition_key=body.partition_key,
        start=body.start,
        end=body.end,
        attributes=body.attributes,
    )


def _output(body: EventBody, outputs: Sequence[Output]) -> Output:
    if body.output is not None:
        matches = [each for each in outputs if each.index == body.output]
        if not matches:
            raise UsageError(f"the job has no output {body.output}: it has {len(outputs)}, counted from 0")
    elif body.dataset_id is not None:
        matches = [each for each in outputs if each.dataset_id == body.dataset_id]
    elif len(outputs) == 1:
        matches = list(outputs)
    else:
        raise UsageError(f"say which output the event is about: the job has {len(outputs)}")
    own = [each for each in matches if body.dataset_id in (None, each.dataset_id)]
    own = [each for each in own if body.generation_id in (None, each.generation_id)]
    if not own:
        raise Forbidden(
            f"a task emits events of its own outputs only: {body.dataset_id or body.generation_id} is not one of them"
        )
    return own[0]


def paused(tx: Tx, live: Topology, row: Row) -> bool:
    """Whether a source should stop emitting: a person paused it, or jobs behind it cannot keep up."""
    job = claiming.live_job(live, row)
    if job is None or live.pause_reason(job) is not None:
        return True
    return job.edition_id in backpressure.paused(tx, live)
