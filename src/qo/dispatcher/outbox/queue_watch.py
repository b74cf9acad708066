"""The watch over queues: it chooses which released tasks get a wake-up of their own, and more when these are gone.

    released: a b c d e f … z     named: those that ``core.pipeline.wake_spread`` chooses     the others: covered

A covered task is claimed by a worker that is awake, or is named later, when the named ones have been claimed. What is
in memory here can be lost at any time: a dispatcher that starts, or another one, finds the tasks that wait for longer
than a second. Wake-ups have the same ids wherever they are made, so none is enqueued twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import sqlalchemy as sa

from qo.core.pipeline.wake_spread import SPREAD, Spread
from qo.core.task import PRIORITY_MAX
from qo.dispatcher.outbox.outbox import TakenEffect, wake_id
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.database import State, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import tasks

LOOK_S = 0.1  # Between looks at a queue whose named tasks are being claimed.
LOOK_MAX_S = 1.0  # Between looks at a queue in which nothing moves.
SEARCH_S = 1.0  # Between searches for queues that nobody watches.
NEWEST = 4 * SPREAD  # How many of the waiting tasks of a queue are looked at.

_NEWEST = Prepared(
    sa.select(tasks.c.id, tasks.c.edition_id, tasks.c.attempt, tasks.c.wakes)
    .where(tasks.c.queue == sa.bindparam("queue"), scans.released())
    .order_by(tasks.c.released_at.desc())
    .limit(NEWEST)
)
_WAITING = Prepared(
    sa.select(tasks.c.id, tasks.c.attempt, tasks.c.wakes).where(
        tasks.c.id.in_(sa.bindparam("ids", expanding=True)), scans.released()
    )
)


@dataclass(slots=True)
class _Watched:
    spread: Spread
    tasks: dict[str, str] = field(default_factory=dict[str, str])  # By the wake-ups that name them.
    look_at: float | None = None  # None: all its tasks have been named.
    rest_s: float = LOOK_S

    def named_tasks(self) -> list[str]:
        return [self.tasks[each] for each in self.spread.wake_ids]

    def name(self, newest: Mapping[str, str], now: float) -> list[str]:
        """Return which of the wake-ups to send now. ``newest``: tasks by wake-up."""
        self.spread, to_send = self.spread.name(list(newest), now)
        self.tasks = {each: self.tasks.get(each) or newest[each] for each in self.spread.wake_ids}
        return to_send


class QueueWatch:
    """Use it from one event loop; it reads the state on threads."""

    def __init__(
        self, state: State, is_woken: Callable[[str], bool] = lambda queue: True, *, spread: int = SPREAD
    ) -> None:
        """``is_woken``: whether tasks of a queue are started by wake-ups. ``spread``: how many are named at a time."""
        self._state = state
        self._spread = spread
        self.is_woken = is_woken
        self._queues: dict[str, _Watched] = {}
        self._searched_at = float("-inf")

    async def choose(self, queue: str, effects: Sequence[TakenEffect]) -> list[TakenEffect]:
        """Return which of these released tasks to send wake-ups for; the others are covered by them."""
        watched, now = self._watched(queue), self._state.ambient.monotonic()
        by_id = {each.effect.id: each for each in effects}
        task_ids = {id_: each.effect.task_id for id_, each in by_id.items()}
        if len(watched.spread.wake_ids) + len(by_id) > self._spread:
            alive = await asyncio.to_thread(self._waiting, {*watched.named_tasks(), *task_ids.values()})
            watched.spread = watched.spread.observe(alive, now)
            by_id = {id_: each for id_, each in by_id.items() if id_ in alive}
        to_send = watched.name({id_: task_ids[id_] for id_ in reversed(by_id)}, now)
        if len(to_send) < len(by_id):
            watched.look_at, watched.rest_s = now + LOOK_S, LOOK_S
        return [by_id[each] for each in to_send]

    def _watched(self, queue: str) -> _Watched:
        return self._queues.setdefault(queue, _Watched(Spread(most=self._spread)))

    def forget(self, queue: str, ids: Collection[str]) -> None:
        """Take back that these wake-ups were sent: they may not have been enqueued."""
        watched = self._queues.get(queue)
        if watched is not None:
            watched.spread = watched.spread.observe(watched.spread.wake_ids - set(ids), watched.spread.at)

    def due_in_s(self) -> float | None:
        """Return in how many seconds a queue should be looked at; None if none should be."""
        due = [each.look_at for each in self._queues.values() if each.look_at is not None]
        return max(0.0, min(due) - self._state.ambient.monotonic()) if due else None

    async def look(self) -> dict[str, list[WakeUp]]:
        """Return the further wake-ups to send, by queue: for tasks that wait while those named before were claimed."""
        now = self._state.ambient.monotonic()
        if now - self._searched_at >= SEARCH_S:
            self._searched_at = now
            for queue in await asyncio.to_thread(self._search):
                self._watched(queue).look_at = now
        due = [queue for queue, each in self._queues.items() if each.look_at is not None and each.look_at <= now]
        return {queue: wakes for queue in due if (wakes := await self._look_at(queue, now))}

    async def _look_at(self, queue: str, now: float) -> list[WakeUp]:
        watched = self._queues[queue]
        newest, alive = await asyncio.to_thread(self._read, queue, watched.named_tasks())
        if not newest:
            del self._queues[queue]
            return []
        before, watched.spread = watched.spread, watched.spread.observe(alive, now)
        is_moving = watched.spread is not before
        to_send = watched.name({id_: each.task_id for id_, each in newest.items()}, now)
        all_named = len(newest) < NEWEST and watched.spread.wake_ids >= newest.keys()
        watched.rest_s = LOOK_S if is_moving or to_send else min(2 * watched.rest_s, LOOK_MAX_S)
        watched.look_at = None if all_named else now + watched.rest_s
        return [newest[each] for each in to_send]

    def _read(self, queue: str, named_tasks: Collection[str]) -> tuple[dict[str, WakeUp], set[str]]:
        """Return the wake-ups of the newest waiting tasks of the queue, and the last ones of all that wait of these and
        of the named tasks."""
        with self._state.read() as tx:
            depth = topology.load(tx).depth
            newest = [
                WakeUp(wake_id(id_, attempt, wakes), id_, min(depth.get(edition, 0), PRIORITY_MAX))
                for id_, edition, attempt, wakes in tx.rows(_NEWEST, {"queue": queue})
            ]
            older = set(named_tasks) - {each.task_id for each in newest}
            rows = tx.rows(_WAITING, {"ids": sorted(older)}) if older else ()
            alive = {wake_id(*row) for row in rows}
        return {each.id: each for each in newest}, alive | {each.id for each in newest}

    def _waiting(self, ids: Collection[str]) -> set[str]:
        """Return the last wake-ups of those of the tasks that wait."""
        with self._state.read() as tx:
            return {wake_id(*row) for some in batches(sorted(ids)) for row in tx.rows(_WAITING, {"ids": some})}

    def _search(self) -> list[str]:
        """Return the queues in which a task has waited for longer than a search takes to find it, and that are not
        about to be looked at."""
        with self._state.read() as tx:
            waiting = [each for each in scans.distinct(tx, scans.RELEASED_QUEUES) if self._is_unwatched(each)]
            if not waiting:
                return []
            old = tasks.c.released_at < tx.now - timedelta(seconds=SEARCH_S)
            conditions = (scans.released(), old)
            return [
                each
                for each in waiting
                if scans.counted(tx, tasks.c.queue == each, *conditions, along="released_at", most=1)
            ]

    def _is_unwatched(self, queue: str) -> bool:
        watched = self._queues.get(queue)
        return self.is_woken(queue) and (watched is None or watched.look_at is None)
