"""Orders to the workers (pause, drain, cancel), kept in one object in the bucket.

Its token stands on the board, which every worker reads every few seconds; the orders themselves are read when that
changes. It is changed only by compare-and-swap, so of two operators who act at once neither undoes the other's order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from qo.core import control, keys, wire
from qo.core.board import show_orders
from qo.core.control import WHOLE, Desired, Target
from qo.errors import Contended, CorruptRecord, NotFound, QoError, UsageError
from qo.queue import roster
from qo.queue.options import check_task_type, check_text
from qo.store import register
from qo.store.port import ObjectStore, PutResult, Stored

if TYPE_CHECKING:
    from datetime import datetime

    from qo.queue.queue import Queue

log = logging.getLogger(__name__)

WRITES_MAX = 20
ANNOUNCEMENTS_MAX = 4
REST_FIRST_S, REST_MAX_S = 0.02, 0.5
ORDER_TEXT_LEN_MAX = 500
NAMED_MAX = 10  # Workers that a message names.

Edit = Callable[[Desired], Desired]


class Change(NamedTuple):
    """The desired state before and after a change."""

    before: Desired
    after: Desired


async def read(store: ObjectStore) -> Desired:
    """Return the desired state, with one GET. It is empty as long as nobody has given an order.

    Raises CorruptRecord if it cannot be read; a worker should then keep to what it read before.
    """
    return decode(await store.get(keys.DESIRED))


async def change(queue: Queue, edit: Edit) -> Desired:
    """Change the desired state. ``edit`` is called again if others write too; an unchanged state is not written.

    Raises Contended when other writers won every time; back off and call again.
    """
    return (await _change(queue, edit)).after


async def pause(
    queue: Queue, target: Target = WHOLE, *, by: str | None = None, reason: str | None = None
) -> Change:
    """Stop the claiming of tasks: of all, of one type, or by one worker. Running tasks go on.

    Raises NotFound for a worker that is not on the roster. A type may be paused before its first task.
    """
    check_order_text(by, reason)
    if target.task_type is not None:
        check_task_type(target.task_type)
    started_at = None if target.worker is None else (await _find_worker(queue.store, target.worker)).started_at
    now = await queue.store.now()
    return await _change(
        queue,
        lambda desired: control.pause(desired, target, now=now, by=by, reason=reason, started_at=started_at),
    )


async def resume(queue: Queue, target: Target = WHOLE) -> Change:
    """Lift one pause, or an order to leave that the worker has not begun to follow. Others stay; if there is none,
    nothing happens."""
    return await _change(queue, lambda desired: control.resume(desired, target))


async def resume_all(queue: Queue) -> Change:
    """Lift every pause and every order to leave. Also replaces an object that cannot be read."""
    return await _change(queue, control.resume_all, afresh=True)


async def drain(queue: Queue, worker_id: str, *, by: str | None = None, reason: str | None = None) -> Change:
    """Ask one worker to finish its running tasks and leave. Raises NotFound if it is not on the roster."""
    check_order_text(by, reason)
    info = await _find_worker(queue.store, worker_id)
    # Two processes disagree on the store's time by a fraction of a second; an order must not predate its worker.
    at = max(await queue.store.now(), info.started_at)
    return await _change(queue, lambda desired: control.drain(desired, worker_id, now=at, by=by, reason=reason))


class Cancels:
    """Notifies workers of cancelled running tasks. Concurrent calls share one write."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: dict[str, None] = {}  # A set that keeps its order.
        self._writing = asyncio.Lock()

    async def note(self, task_id: str) -> None:
        """Best effort, never an error: the task records the request too, and its worker reads that when it renews."""
        self._waiting[task_id] = None
        async with self._writing:
            if task_id not in self._waiting:
                return  # Another call took it along.
            batch, self._waiting = self._waiting, {}
            try:
                now = await self._queue.store.now()
                await change(self._queue, lambda desired: control.note_cancel(desired, batch, now=now))
            except QoError as error:
                log.debug("workers learn of %d cancellations only when they renew: %s", len(batch), error)


def check_order_text(by: str | None, reason: str | None) -> None:
    """Raise UsageError unless author and reason fit an order. They are short, because every worker reads them often."""
    for name, text in (("by", by), ("reason", reason)):
        check_text(name, text)
        if text is not None and len(text) > ORDER_TEXT_LEN_MAX:
            raise UsageError(f"{name} must be {ORDER_TEXT_LEN_MAX} characters at most, not {len(text)}")


async def _change(queue: Queue, edit: Edit, *, afresh: bool = False) -> Change:
    store, ambient = queue.store, queue.ambient
    now, rest_s = await store.now(), REST_FIRST_S
    stored = await store.get(keys.DESIRED)
    for _ in range(WRITES_MAX):
        unreadable = False
        try:
            before = decode(stored)
        except CorruptRecord:
            if not afresh:
                raise
            before, unreadable = Desired(), True
        after = edit(before)
        if after is before and not unreadable:
            return Change(before, before)
        after = control.prune(after, now, await _present_workers(store, after, now))
        after = replace(after, token=ambient.token(), updated_at=now)
        wrote = await _write(queue, after, None if stored is None else stored.etag)
        if isinstance(wrote, PutResult):
            await _announce(queue, after.token)
            return Change(before, after)
        stored = wrote.current
        await asyncio.sleep(rest_s * ambient.unit())
        rest_s = min(REST_MAX_S, 2 * rest_s)
    raise Contended(f"{keys.DESIRED} is being changed by others all the time; try again")


async def _announce(queue: Queue, token: str) -> None:
    """Show the orders on the board. If that fails, workers learn of them when the lookout does, within 20 seconds."""
    rest_s = REST_FIRST_S
    for _ in range(ANNOUNCEMENTS_MAX):
        if await queue.board.edit(partial(show_orders, token=token)):
            return
        await asyncio.sleep(rest_s * queue.ambient.unit())
        rest_s *= 2


async def _write(queue: Queue, desired: Desired, etag: str | None) -> PutResult | register.Moved:
    body = wire.encode(desired)  # Its token makes it unlike any other writer's.
    return await register.write(
        queue.store,
        keys.DESIRED,
        body,
        if_match=etag,
        ours=lambda body_there: body_there == body,
        ambient=queue.ambient,
    )


async def _present_workers(store: ObjectStore, desired: Desired, now: datetime) -> frozenset[str]:
    """Return the workers on the roster; looked up only if an order is old enough to be removed."""
    return frozenset(await roster.last_heard(store)) if control.old_orders(desired, now) else frozenset()


async def _find_worker(store: ObjectStore, worker_id: str) -> roster.WorkerInfo:
    if (info := await roster.find(store, worker_id)) is not None:
        return info
    import difflib  # Here, because every command would wait for it otherwise.

    there = sorted(await roster.last_heard(store))
    near = difflib.get_close_matches(worker_id, there, n=NAMED_MAX, cutoff=0.0)
    more = f" and {len(there) - len(near)} more" if len(there) > len(near) else ""
    hint = f"there are {', '.join(near)}{more}" if near else "there is none at all"
    raise NotFound(f"there is no worker {worker_id} in this queue; {hint}")


def decode(stored: Stored | None) -> Desired:
    """Read the desired state. Raises CorruptRecord."""
    if stored is None:
        return Desired()
    try:
        return wire.decode(Desired, stored.body, keys.DESIRED)
    except CorruptRecord as error:
        raise CorruptRecord(f"{error} Or lift every pause, and so start it afresh: qo resume --all") from error
