"""The states of a worker."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"  # Claims nothing; finishes what runs, and keeps its leases.
    DRAINING = "draining"  # Will stop when what runs has finished.
    CANCELLING = "cancelling"  # Will stop as soon as what runs has stopped.
    STOPPED = "stopped"
    FAILED = "failed"  # Its own machinery broke: it drains and ends with an error.


LEAVING = frozenset({State.DRAINING, State.CANCELLING, State.STOPPED, State.FAILED})

# For the log: what an operator should know who wonders why a worker fell silent.
SAID = {
    State.RUNNING: "resumed",
    State.PAUSED: "paused: nothing is claimed until it is resumed",
    State.DRAINING: "stopping: what runs may finish",
    State.CANCELLING: "stopping what still runs, and giving it back",
    State.FAILED: "the mailbox died: stopping",
}
