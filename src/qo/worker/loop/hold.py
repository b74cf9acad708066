"""The claims that a worker holds: those that are not settled yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

from qo.core.task import Task
from qo.queue.queue import Claim
from qo.worker.api.handler import Handler
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock, lease_time


class Phase(StrEnum):
    WAITING = "waiting"  # In an inbox.
    RUNNING = "running"
    SETTLING = "settling"  # The handler has ended; its outcome is being reported.


class Hold:
    """One claim, from the moment it succeeds to the moment it is settled."""

    __slots__ = (
        "__weakref__",
        "attempt",
        "batched",
        "cancel",
        "claim",
        "claimed_at",
        "clock",
        "end_dispatch",
        "handler",
        "indexed",
        "leased_until",
        "left_slot",
        "phase",
        "phase_since",
        "progress",
        "started",
    )

    def __init__(self, claim: Claim, handler: Handler, clock: Clock, *, now: float, leased_until: float) -> None:
        """``now`` is the loop's time at which the claim was *sent*. The lease lasts at least until ``leased_until``, by
        ``lease_time``."""
        self.claim = claim
        self.handler = handler
        self.clock = clock
        self.cancel = CancelToken()
        self.claimed_at = now
        self.leased_until = leased_until
        self.phase = Phase.WAITING
        self.phase_since = now
        self.attempt: asyncio.Task[None] | None = None  # Runs the handler.
        self.progress: Any = None  # The latest progress, if it is not written yet.
        self.indexed = False  # Whether it was running for so long that its lease was put on the index.
        self.started = False  # Whether the layers let it through to its handler.
        self.end_dispatch: Callable[[], None] = lambda: None  # Ends the span from the claim to the handler.
        self.batched = False  # Whether it runs in a batch, which has no slot.
        self.left_slot = False  # Whether its slot went to another while its handler still runs.

    @property
    def task(self) -> Task:
        return self.claim.task

    def enter(self, phase: Phase, now: float) -> None:
        self.phase, self.phase_since = phase, now


class Lease:
    """Tells the caller of a handler, on any thread, whether the handler may still begin."""

    __slots__ = ("_hold", "_loop", "_margin_s")

    def __init__(self, hold: Hold, margin_s: float) -> None:
        """With less than ``margin_s`` left, the handler would be stopped at once."""
        self._hold = hold
        self._margin_s = margin_s
        self._loop = asyncio.get_running_loop()

    def is_valid(self) -> bool:
        return self.remaining_s() > 0

    def remaining_s(self) -> float:
        return self._hold.leased_until - lease_time(self._loop) - self._margin_s


class Holds:
    """All holds, by task id. Changed by the event loop only; the lease thread iterates over copies."""

    def __init__(self) -> None:
        self._by_id: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Hold]:
        return iter(list(self._by_id.values()))

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._by_id

    def get(self, task_id: str) -> Hold | None:
        return self._by_id.get(task_id)

    def add(self, hold: Hold) -> None:
        self._by_id[hold.task.id] = hold

    def remove(self, hold: Hold) -> None:
        del self._by_id[hold.task.id]
