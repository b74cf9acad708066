"""The desired state of the workers (pauses, drains, cancellations): one value, changed by pure functions.

It is a state, not a stream of commands: a worker that reads it late, twice or for the first time does the same. So no
order is lost when a worker starts, sleeps or misses a change, and giving an order twice is the same as giving it once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from qo.core.struct_preload import preload
from qo.core.task import FORMAT, Instant

CANCELS_KEPT = timedelta(minutes=10)  # Every worker has read them by then, or renewed the lease.
CANCELS_MAX = 1_000  # Every worker reads them every few seconds; those beyond are noticed when a lease is renewed.
ORDERS_KEPT = timedelta(days=7)


class Order(StrEnum):
    PAUSED = "paused"
    DRAINED = "drained"


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    at: Instant
    by: str | None = None
    reason: str | None = None


class WorkerOrder(msgspec.Struct, frozen=True, kw_only=True):
    kind: Order = msgspec.field(name="wanted")
    at: Instant
    by: str | None = None
    reason: str | None = None


class Desired(msgspec.Struct, frozen=True, kw_only=True):
    queue: Pause | None = None  # The whole queue.
    types: dict[str, Pause] = {}
    workers: dict[str, WorkerOrder] = {}
    cancels: dict[str, Instant] = {}  # Running tasks that were asked to stop: a hint, the task itself is true.
    token: str = ""  # Names the last write, so that a writer whose reply was lost knows its own.
    updated_at: Instant | None = None
    format: int = FORMAT


preload(Desired)


@dataclass(frozen=True, slots=True)
class Target:
    """What to pause or resume: one worker, one task type, or the whole queue if neither is named."""

    worker: str | None = None
    task_type: str | None = None

    def __str__(self) -> str:
        if self.worker is not None:
            return f"worker {self.worker}"
        return "the queue" if self.task_type is None else f"type {self.task_type}"


WHOLE = Target()


@dataclass(frozen=True, slots=True)
class Orders:
    """What one worker should do."""

    paused: bool = False
    drain: bool = False
    paused_types: frozenset[str] = frozenset()
    reason: str | None = None  # Why it is to pause or leave, for people.


def pause(
    desired: Desired,
    target: Target,
    *,
    now: datetime,
    by: str | None = None,
    reason: str | None = None,
    started_at: datetime | None = None,
) -> Desired:
    """Pause the target. Return the same value if it is paused already, with its first author. A worker that is to leave
    stays so; ``started_at`` as for ``orders_for``."""
    there = in_force(desired, target)
    if there is not None and _binds(there, started_at):
        return desired
    if target.worker is not None:
        order = WorkerOrder(kind=Order.PAUSED, at=now, by=by, reason=reason)
        return replace(desired, workers={**desired.workers, target.worker: order})
    order = Pause(at=now, by=by, reason=reason)
    if target.task_type is not None:
        return replace(desired, types={**desired.types, target.task_type: order})
    return replace(desired, queue=order)


def resume(desired: Desired, target: Target) -> Desired:
    """Lift one pause; others stay. Return the same value if there was none."""
    if in_force(desired, target) is None:
        return desired
    if target.worker is not None:
        return replace(desired, workers={k: v for k, v in desired.workers.items() if k != target.worker})
    if target.task_type is not None:
        return replace(desired, types={k: v for k, v in desired.types.items() if k != target.task_type})
    return replace(desired, queue=None)


def resume_all(desired: Desired) -> Desired:
    """Lift every pause, and every order to leave."""
    return replace(desired, queue=None, types={}, workers={}) if targets(desired) else desired


def drain(
    desired: Desired, worker_id: str, *, now: datetime, by: str | None = None, reason: str | None = None
) -> Desired:
    """Ask a worker to finish its running tasks and leave. Asking again renews the order: it may be meant for another
    process, started under the same name since."""
    there = desired.workers.get(worker_id)
    if there is not None and there.kind is Order.DRAINED and there.at >= now:
        return desired
    order = WorkerOrder(kind=Order.DRAINED, at=now, by=by, reason=reason)
    return replace(desired, workers={**desired.workers, worker_id: order})


def note_cancel(desired: Desired, task_ids: Iterable[str], *, now: datetime) -> Desired:
    """Record that these running tasks were asked to stop."""
    news = {task_id: max(now, desired.cancels.get(task_id, now)) for task_id in task_ids}
    return replace(desired, cancels={**desired.cancels, **news}) if news else desired


def prune(desired: Desired, now: datetime, present: Collection[str] = ()) -> Desired:
    """Remove what has had its effect: old cancellations, and old orders to workers that are no longer ``present``. A
    worker that is present stays paused."""
    departed = {worker_id for worker_id in old_orders(desired, now) if worker_id not in present}
    recent = [(at, task_id) for task_id, at in desired.cancels.items() if now - at <= CANCELS_KEPT]
    if not departed and len(desired.cancels) == len(recent) <= CANCELS_MAX:
        return desired
    latest = sorted(recent)[-CANCELS_MAX:]
    return replace(
        desired,
        workers={worker_id: order for worker_id, order in desired.workers.items() if worker_id not in departed},
        cancels={task_id: at for at, task_id in latest},
    )


def old_orders(desired: Desired, now: datetime) -> frozenset[str]:
    """Return the workers whose orders are so old that they may be removed if the worker has left."""
    return frozenset(name for name, order in desired.workers.items() if now - order.at > ORDERS_KEPT)


def orders_for(desired: Desired, worker_id: str, started_at: datetime | None = None) -> Orders:
    """Return what this worker should do now, whatever it did before.

    An order to leave that is older than the worker (``started_at``) was for an earlier process of that name. Without
    this rule, a worker restarted under a fixed name would leave again and again.
    """
    order = desired.workers.get(worker_id)
    if order is not None and not _binds(order, started_at):
        order = None
    cause = order or desired.queue
    return Orders(
        paused=desired.queue is not None or (order is not None and order.kind is Order.PAUSED),
        drain=order is not None and order.kind is Order.DRAINED,
        paused_types=frozenset(desired.types),
        reason=None if cause is None else describe(cause) or None,
    )


def in_force(desired: Desired, target: Target) -> Pause | WorkerOrder | None:
    """Return the order for exactly this target."""
    if target.worker is not None:
        return desired.workers.get(target.worker)
    return desired.queue if target.task_type is None else desired.types.get(target.task_type)


def targets(desired: Desired) -> list[Target]:
    """Return everything that is paused or to leave, the whole queue first."""
    whole = [] if desired.queue is None else [WHOLE]
    types = [Target(task_type=name) for name in sorted(desired.types)]
    return [*whole, *types, *(Target(worker=name) for name in sorted(desired.workers))]


def describe(order: Pause | WorkerOrder) -> str:
    """Return the author and reason of an order, as far as known: ``by ada: deploy``."""
    who = "" if order.by is None else f"by {order.by}"
    return ": ".join(part for part in (who, order.reason) if part)


def _binds(order: Pause | WorkerOrder, started_at: datetime | None) -> bool:
    leave = isinstance(order, WorkerOrder) and order.kind is Order.DRAINED
    return not leave or started_at is None or order.at >= started_at
