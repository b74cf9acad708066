"""What is wanted of a worker: by its own process, and by operators through the bucket.

Wishes are states, not events. However many there were in a burst, and whoever missed some of them, the last one
counts; and nothing that was said can be lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from qo.core.control import Wanted, wanted
from qo.errors import QoError
from qo.queue.concurrency import together
from qo.queue.control import read
from qo.queue.queue import Queue
from qo.worker.loop.hold import Hold, Holds

log = logging.getLogger(__name__)


class Control:
    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._paused_here = False
        self._said = Wanted()  # By operators, as of the last look.
        self.stopping = False
        self.hurrying = False

    @property
    def paused(self) -> bool:
        return self._paused_here or self._said.paused

    @property
    def paused_types(self) -> frozenset[str]:
        return self._said.paused_types

    def pause(self) -> None:
        self._paused_here = True
        self._changed()

    def resume(self) -> None:
        """Lifts what this process said. A pause by operators is theirs to lift."""
        self._paused_here = False
        self._changed()

    def stop(self) -> None:
        """There is no way back from here."""
        self.stopping = True
        self._changed()

    def hurry(self) -> None:
        self.stopping = self.hurrying = True
        self._changed()

    def obey(self, said: Wanted) -> None:
        if said == self._said:
            return
        self._said = said
        if said.drain and not self.stopping:
            log.info("draining, as was asked for%s", f": {said.reason}" if said.reason else "")
            self.stopping = True
        self._changed()


class Follower:
    """Brings the wishes of operators to the control of one worker."""

    def __init__(
        self, queue: Queue, control: Control, *, worker_id: str, held: Holds, cancelled: Callable[[Hold], None]
    ) -> None:
        self._queue = queue
        self._control = control
        self._worker_id = worker_id
        self._held = held
        self._cancelled = cancelled
        self._since: datetime | None = None  # The worker's start: older orders to leave were not meant for it.

    def begin(self, started_at: datetime) -> None:
        self._since = started_at

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s * (0.9 + 0.2 * self._queue.ambient.unit()))
            await self.look()

    async def look(self) -> None:
        """See what is wanted. While that cannot be seen, the last known wishes hold."""
        try:
            desired = await read(self._queue.store)
            self._control.obey(wanted(desired, self._worker_id, self._since))
            asked = [hold for hold in self._held if hold.task.id in desired.cancels]
            await together(self._check(hold) for hold in asked)
        except QoError as error:
            log.warning("cannot see what operators want: %s", error)
        except Exception:
            log.exception("unexpected, but the worker goes on")

    async def _check(self, hold: Hold) -> None:
        """The list is a hint; whether this attempt is to stop, its task says."""
        if hold.cancel.requested:
            return
        task = await self._queue.get(hold.task.id)
        if task.cancel_requested and task.lease_id == hold.claim.lease_id:
            self._cancelled(hold)
