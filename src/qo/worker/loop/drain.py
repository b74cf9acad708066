"""How a worker lets go of what it holds: what runs may finish, then it is stopped, and none of it costs an attempt."""

from __future__ import annotations

import asyncio
import logging

from qo.worker.config import WorkerConfig
from qo.worker.executors.disown import disown
from qo.worker.loop.attempts import Runner
from qo.worker.loop.cancel import Why
from qo.worker.loop.condition import Bell
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Hold, Holds, Phase
from qo.worker.loop.mailbox import Mailbox
from qo.worker.loop.outcome import Lost

log = logging.getLogger(__name__)

REPORT_S = 1.0  # For the last reports, once everything has stopped.


class Departure:
    def __init__(
        self,
        config: WorkerConfig,
        *,
        held: Holds,
        mailbox: Mailbox,
        runner: Runner,
        control: Control,
        turned: Bell,
    ) -> None:
        self._config = config
        self._held = held
        self._mailbox = mailbox
        self._runner = runner
        self._control = control
        self._turned = turned

    @property
    def done(self) -> bool:
        return not self._held and not self._mailbox.claiming

    async def drain(self) -> None:
        """What has not been started is given back at once; what runs may finish within its grace."""
        self._runner.give_back_waiting(str(Why.SHUTDOWN))
        try:
            async with asyncio.timeout(self._config.shutdown_grace_s):
                while not self.done and not self._control.hurrying:
                    await self._turned.heard()
        except TimeoutError:
            return

    async def cancel(self) -> None:
        """Stop what runs, and give it back; who is just claiming does so too. What will not stop is left to its
        lease."""
        for hold in self._held:
            self._runner.stop(hold, Why.SHUTDOWN)
        try:
            async with asyncio.timeout(self._config.cancel_grace_s + REPORT_S):
                while not self.done:
                    await self._turned.heard()
        except TimeoutError:
            for hold in self._held:
                self._abandon(hold)
            await self._mailbox.abandon_claims()

    def _abandon(self, hold: Hold) -> None:
        settling = hold.phase is Phase.SETTLING
        why = "it could not be reported" if settling else "its handler will not stop"
        log.warning("task %s: %s, so its lease will run out and it will be tried again", hold.task.id, why)
        self._runner.forget(hold, Lost(why))
        if hold.attempt is not None and settling:
            hold.attempt.cancel()
        elif hold.attempt is not None:
            disown(hold.attempt)
