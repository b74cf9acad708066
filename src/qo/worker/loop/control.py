"""What a worker is asked to do: by its own process, and by operators through the bucket.

Requests are states, not events: the last one counts, even if earlier ones were missed, and none can be lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from qo.core.control import Orders, orders_for
from qo.errors import QoError
from qo.queue.concurrency import gather_cancellable
from qo.queue.control import read
from qo.queue.queue import Queue
from qo.worker.loop.cancel import Why
from qo.worker.loop.hold import Hold, Holds
from qo.worker.ports import AttemptStopper

log = logging.getLogger(__name__)


class Control:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._paused_here = False
        self._by_operators = Orders()  # As of the last look.
        self.stopping = False
        self.hurrying = False

    @property
    def paused(self) -> bool:
        return self._paused_here or self._by_operators.paused

    @property
    def paused_types(self) -> frozenset[str]:
        return self._by_operators.paused_types

    def pause(self) -> None:
        self._paused_here = True
        self._on_change()

    def resume(self) -> None:
        """Lift the pause of this process. A pause by operators is theirs to lift."""
        self._paused_here = False
        self._on_change()

    def stop(self) -> None:
        """Stop for good: there is no way back."""
        self.stopping = True
        self._on_change()

    def hurry(self) -> None:
        self.stopping = self.hurrying = True
        self._on_change()

    def apply(self, by_operators: Orders) -> None:
        """Take over what operators want now."""
        if by_operators == self._by_operators:
            return
        self._by_operators = by_operators
        if by_operators.drain and not self.stopping:
            reason = f": {by_operators.reason}" if by_operators.reason else ""
            log.info("draining, as an operator asked%s", reason)
            self.stopping = True
        self._on_change()


class Follower:
    """Reads what operators want of a worker, and passes it on to its control and its attempts."""

    def __init__(
        self, queue: Queue, control: Control, *, worker_id: str, holds: Holds, attempts: AttemptStopper
    ) -> None:
        self._queue = queue
        self._control = control
        self._worker_id = worker_id
        self._holds = holds
        self._attempts = attempts
        self._since: datetime | None = None  # The worker's start: older orders to drain do not concern it.

    def begin(self, started_at: datetime) -> None:
        self._since = started_at

    async def run(self, every_s: float) -> None:
        """Look every so often, until cancelled."""
        while True:
            await asyncio.sleep(every_s * (0.9 + 0.2 * self._queue.ambient.unit()))
            await self.look()

    async def look(self) -> None:
        """Read what is wanted. While that fails, the last known state counts."""
        try:
            desired = await read(self._queue.store)
            self._control.apply(orders_for(desired, self._worker_id, self._since))
            listed = [hold for hold in self._holds if hold.task.id in desired.cancels]
            await gather_cancellable(self._cancel_if_requested(hold) for hold in listed)
        except QoError as error:
            log.warning("cannot see what operators want: %s", error)
        except Exception:
            log.exception("unexpected, but the worker goes on")

    async def _cancel_if_requested(self, hold: Hold) -> None:
        """Stop an attempt if its task says so: the operators' list of cancelled tasks is only a hint."""
        if hold.cancel.requested:
            return
        task = await self._queue.get(hold.task.id)
        if task.cancel_requested and task.lease_id == hold.claim.lease_id:
            self._attempts.stop(hold, Why.CANCELLED)
