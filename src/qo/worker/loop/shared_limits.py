"""This worker's shares of the limits that hold over all workers.

A share is asked for when a task of the type is found and the worker has no permit for it. It is renewed while it is
used, and given back when it is not, so that an idle worker makes no request for it. The task waits meanwhile, and tasks
of other types go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from qo.core.limit_shares import Grant, Limit, Wish
from qo.core.rhythm import RENEWALS_PER_SHARE, SHARE_TTL_S
from qo.core.task import Task
from qo.errors import QoError
from qo.queue import limit_registers
from qo.queue.concurrency import gather_cancellable
from qo.queue.queue import Queue
from qo.worker.loop.best_effort import best_effort

log = logging.getLogger(__name__)

MARGIN_S, MARGIN_MAX = 2.0, 0.3  # So much before it runs out, or this part of it, a share is used no more.
STARTS_FOR_S = 2.0  # Starts that were taken and not used by then are forfeited.
STARTS_EVERY_S = 0.5  # Between two asks for starts while there are too few: not each one costs two requests.
AGAIN_FIRST_S = 0.5  # After asking for more permits in vain; doubled each time, up to the time of a renewal.
FAILED_AGAIN_S = 1.0
ASKS_AT_ONCE = 8
KEYS_MAX = 1_000  # Of one limit, that are remembered although nobody uses them.
CONCEALED = "keys of limits"  # What they are encrypted for, in the names of registers.


class SharedLimit:
    """One limit as this worker sees it. Implements a gate of the admission."""

    def __init__(
        self, limit: Limit, monotonic: Callable[[], float], slots: int, ttl_s: float = SHARE_TTL_S
    ) -> None:
        self.limit = limit
        self.ttl_s, self._renew_s = ttl_s, ttl_s / RENEWALS_PER_SHARE
        self._monotonic = monotonic
        self._slots = slots
        self.in_use = 0  # From admission until the handler has ended.
        self._permits, self._permits_until = 0, float("-inf")
        self._starts, self._starts_until = 0, float("-inf")
        self._is_lacking = False  # Whether a task lacked a permit or a start, …
        self._demand_at = float("-inf")  # … and when last.
        self._again_s = AGAIN_FIRST_S
        self._ask_at = float("-inf")  # Not before, even if there is demand.
        self._renew_at = float("inf")
        self.on_demand: Callable[[], None] = lambda: None

    def room(self) -> int:
        """Return how many more tasks may be admitted now."""
        now, rooms = self._monotonic(), [self._slots]
        if self.limit.concurrency is not None:
            rooms.append((self._permits if now < self._permits_until else 0) - self.in_use)
        if self.limit.starts is not None:
            rooms.append(self._starts if now < self._starts_until else 0)
        if (room := min(rooms)) <= 0:
            self._demand_at, self._is_lacking = now, True
            if now >= self._ask_at:
                self.on_demand()
        return room

    def count_admitted(self) -> None:
        self.in_use += 1
        self._starts -= 1

    def count_ended(self, *, started: bool = True) -> None:
        self.in_use -= 1
        self._starts += not started  # It was not needed: another worker had the task, say.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is lost if it is forgotten: it has no share, and nobody wants one."""
        return self.in_use == 0 and self.next_ask_at() == float("inf")

    def next_ask_at(self) -> float:
        """Return when the share is to be asked for, or renewed."""
        return min(self._renew_at, self._ask_at if self._is_lacking else float("inf"))

    def wish(self, worker_id: str) -> Wish:
        """Return what to ask for now: permits for all slots while tasks lack them, else for what is in use.

        Until the answer comes, a task is admitted only in the place of one that has ended: the register reserves what
        is in use now, and may give the rest to others.
        """
        now = self._monotonic()
        self._permits = min(self._permits, self.in_use)
        starts = self.limit.batch if self._is_lacking else 0
        if self._is_lacking and now < self._starts_until:
            starts = max(0, starts - self._starts)
        is_busy = self._is_lacking or now - self._demand_at < self._renew_s
        return Wish(worker_id, self.in_use, self._slots if is_busy else self.in_use, starts)

    def take(self, granted: Grant, *, asked_at: float) -> bool:
        """Take what was granted. Return whether there is more room than before."""
        now = self._monotonic()
        permits, starts, starts_in_s, lasts_s = granted
        self._permits, self._permits_until = permits, asked_at + lasts_s - min(MARGIN_S, MARGIN_MAX * self.ttl_s)
        if self.limit.starts is not None and starts:
            unused = self._starts if now < self._starts_until else 0
            self._starts, self._starts_until = max(0, unused) + starts, asked_at + STARTS_FOR_S
        has_share = permits > 0 or self.in_use > 0
        self._renew_at = (
            asked_at + self._renew_s if self.limit.concurrency is not None and has_share else float("inf")
        )
        lacks_permits = self.limit.concurrency is not None and permits - self.in_use <= 0
        self._again_s = min(self._again_s * 2, self._renew_s) if lacks_permits else AGAIN_FIRST_S
        starts_again_s = max(starts_in_s, STARTS_EVERY_S) if starts_in_s > 0 else 0.0
        self._ask_at = now + max(starts_again_s, self._again_s if lacks_permits else 0.0)
        has_room = not lacks_permits and (self.limit.starts is None or self._starts > 0)
        # Without room, it asks again, unless nobody has wanted any for a while.
        self._is_lacking = self._is_lacking and not has_room and now - self._demand_at < self._renew_s
        return has_room

    def put_off(self) -> None:
        """Ask again later: the store did not answer."""
        self._ask_at = self._monotonic() + FAILED_AGAIN_S
        if self._renew_at < float("inf"):
            self._renew_at = self._ask_at


class KeyedLimit:
    """A limit for each value of a member of the input. Those that nobody uses are forgotten."""

    def __init__(self, limit: Limit, queue: Queue, slots: int, ttl_s: float = SHARE_TTL_S) -> None:
        self.limit = limit
        self._queue = queue
        self._slots = slots
        self._ttl_s = ttl_s
        self._by_key: dict[str, SharedLimit] = {}
        self.on_demand: Callable[[], None] = lambda: None

    def key_of(self, task: Task) -> str:
        """Return the key of a task. An input that is kept apart counts as one without the member."""
        payloads = self._queue.payloads
        key = "" if task.input_ref is not None else self.limit.key_in(payloads.reveal(task).input)
        return next(iter(payloads.conceal(key, CONCEALED)), key)

    def share_of(self, key: str) -> SharedLimit:
        if (share := self._by_key.get(key)) is None:
            share = SharedLimit(self.limit.for_key(key), self._queue.ambient.monotonic, self._slots, self._ttl_s)
            share.on_demand = self.on_demand
            self._by_key[key] = share
        return share

    def active(self) -> list[SharedLimit]:
        """Return the limits of the keys that are in use or wanted."""
        if len(self._by_key) > KEYS_MAX:
            self._by_key = {key: each for key, each in self._by_key.items() if not each.is_idle}
        return [each for each in self._by_key.values() if not each.is_idle]


class SharedLimits:
    def __init__(
        self,
        queue: Queue,
        worker_id: str,
        limits: Sequence[SharedLimit],
        on_room: Callable[[], None],
        keyed: Sequence[KeyedLimit] = (),
    ) -> None:
        self._queue = queue
        self._worker_id = worker_id
        self._limits = limits
        self._keyed = keyed
        self._on_room = on_room
        self._demand = asyncio.Event()
        for limit in (*limits, *keyed):
            limit.on_demand = self._demand.set

    def _active(self) -> list[SharedLimit]:
        return [*self._limits, *(share for each in self._keyed for share in each.active())]

    async def run(self) -> None:
        """Ask for shares when they are wanted, and renew them, until cancelled; then give them back. Survives an
        unreachable store."""
        try:
            await self._keep_asking()
        finally:
            await best_effort(self._leave(), "giving back shares of limits")

    async def _keep_asking(self) -> None:
        monotonic = self._queue.ambient.monotonic
        while self._limits or self._keyed:
            self._demand.clear()
            due = [limit for limit in self._active() if limit.next_ask_at() <= monotonic()]
            for start in range(0, len(due), ASKS_AT_ONCE):
                await gather_cancellable(self._ask(limit) for limit in due[start : start + ASKS_AT_ONCE])
            rest_s = min((limit.next_ask_at() for limit in self._active()), default=float("inf")) - monotonic()
            try:
                async with asyncio.timeout(max(rest_s, 0.01) if rest_s < float("inf") else None):
                    await self._demand.wait()
            except TimeoutError:
                continue

    async def _leave(self) -> None:
        for limit in self._active():
            if limit.in_use == 0 and limit.limit.concurrency is not None:
                wish = Wish(self._worker_id, 0, 0, 0)
                await limit_registers.ask(self._queue, limit.limit, wish, ttl_s=limit.ttl_s)

    async def _ask(self, limit: SharedLimit) -> None:
        asked_at = self._queue.ambient.monotonic()
        try:
            wish = limit.wish(self._worker_id)
            granted = await limit_registers.ask(self._queue, limit.limit, wish, ttl_s=limit.ttl_s)
        except QoError as error:
            limit.put_off()
            log.warning("no share of the limit %r: %s", limit.limit.name, error)
            return
        if limit.take(granted, asked_at=asked_at):
            self._on_room()
