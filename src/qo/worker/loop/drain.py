"""How a stopping worker gives up its claims: running tasks may finish, then they are stopped; none loses an attempt."""

from __future__ import annotations

import asyncio
import logging

from qo.worker.config import WorkerConfig
from qo.worker.executors.disown import disown
from qo.worker.loop.attempts import Attempts
from qo.worker.loop.cancel import Why
from qo.worker.loop.condition import Condition
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Hold, Holds, Phase
from qo.worker.loop.mailbox import Mailbox
from qo.worker.loop.outcome import Lost

log = logging.getLogger(__name__)

REPORT_S = 1.0  # For the last reports, once everything has stopped.


class Drain:
    def __init__(
        self,
        config: WorkerConfig,
        *,
        holds: Holds,
        mailbox: Mailbox,
        attempts: Attempts,
        control: Control,
        changed: Condition,
    ) -> None:
        self._config = config
        self._holds = holds
        self._mailbox = mailbox
        self._attempts = attempts
        self._control = control
        self._changed = changed

    @property
    def is_done(self) -> bool:
        return not self._holds and not self._mailbox.claiming

    async def finish_running(self) -> None:
        """Give waiting tasks back at once, and let running ones finish within their grace."""
        self._attempts.give_back_waiting(str(Why.SHUTDOWN))
        try:
            async with asyncio.timeout(self._config.shutdown_grace_s):
                while not self.is_done and not self._control.hurrying:
                    await self._changed.wait()
        except TimeoutError:
            return

    async def cancel_running(self) -> None:
        """Stop running tasks and give them back, as well as claims under way. What does not stop is left to its
        lease."""
        for hold in self._holds:
            self._attempts.stop(hold, Why.SHUTDOWN)
        try:
            async with asyncio.timeout(self._config.cancel_grace_s + REPORT_S):
                while not self.is_done:
                    await self._changed.wait()
        except TimeoutError:
            for hold in self._holds:
                self._abandon(hold)
            await self._mailbox.abandon_claims()

    def _abandon(self, hold: Hold) -> None:
        settling = hold.phase is Phase.SETTLING
        why = "it could not be reported" if settling else "its handler will not stop"
        fields = {"task_id": hold.task.id}
        log.warning(
            "task %s: %s, so its lease will run out and it will be tried again", hold.task.id, why, extra=fields
        )
        self._attempts.forget(hold, Lost(why))
        if hold.attempt is not None and settling:
            hold.attempt.cancel()
        elif hold.attempt is not None:
            disown(hold.attempt)
