"""The states of a worker.

STARTING ─▶ RUNNING ◀─▶ PAUSED ─▶ DRAINING ─▶ CANCELLING ─▶ STOPPED
               └────────────────▶ FAILED ──────┘
"""

from __future__ import annotations

import logging
from enum import StrEnum

from qo.worker.loop.condition import Condition

log = logging.getLogger(__name__)


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"  # Claims nothing; running tasks finish, and their leases are renewed.
    DRAINING = "draining"  # Stops when the running tasks have finished.
    CANCELLING = "cancelling"  # Stops as soon as the running tasks have stopped.
    STOPPED = "stopped"
    FAILED = "failed"  # The worker's own code broke: it drains and ends with an error.


LEAVING = frozenset({State.DRAINING, State.CANCELLING, State.STOPPED, State.FAILED})

# Logged on entering a state, for an operator who wonders why a worker fell silent.
MESSAGES = {
    State.RUNNING: "resumed",
    State.PAUSED: "paused: nothing is claimed until it is resumed",
    State.DRAINING: "stopping: running tasks may finish",
    State.CANCELLING: "stopping the tasks that still run, and giving them back",
    State.FAILED: "the mailbox died: stopping",
}


class Lifecycle:
    """The state that one worker is in."""

    def __init__(self) -> None:
        self.state = State.STARTING
        self.changed = Condition()  # Notified when the state, or what the worker is asked to do, has changed.

    def is_leaving(self) -> bool:
        return self.state in LEAVING

    def enter(self, state: State) -> bool:
        """Change the state; False if it stays: only STOPPED follows FAILED."""
        if state is self.state or (self.state is State.FAILED and state is not State.STOPPED):
            return False
        if (message := MESSAGES.get(state)) is not None and self.state is not State.STARTING:
            log.info("%s", message)
        self.state = state
        return True

    async def reached(self, *states: State) -> State:
        """Return when the worker is in one of these states."""
        while self.state not in states:
            await self.changed.wait()
        return self.state
