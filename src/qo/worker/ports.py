"""The ports through which the parts of a worker reach each other.

A task goes through the parts in this order, each calling the next one directly:

    Feed.take ─▶ Mailbox (claim) ─▶ Attempts.accept ─▶ service of its type ─▶ Settler.settle

What goes the other way are signals. The part that raises one does not know which part waits for it:

    signal        raised by                                            waited for by
    look          Attempts (a handler submitted), Worker               Mailbox
    slot_freed    Attempts, Mailbox (a claim was missed)               Mailbox, Drain
    changed       Worker (state, control)                              Worker, Drain, Heartbeat
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from qo.worker.loop.cancel import Why
from qo.worker.loop.hold import Hold
from qo.worker.loop.slot_share import OwnSlots, SlotShare
from qo.worker.loop.state import Lifecycle, State
from qo.worker.loop.wake_up import WakeUp


@dataclass(frozen=True, slots=True)
class Ports:
    """Made before all parts of one worker, and given to those that raise or wait for a signal."""

    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    wake_up: WakeUp = field(default_factory=WakeUp)  # Of the mailbox.
    report_due: asyncio.Event = field(default_factory=asyncio.Event)  # Wakes the heartbeat.
    slots: SlotShare = field(default_factory=OwnSlots)  # Shared with workers of other queues, or not.

    def look(self) -> None:
        """There may be new tasks to find."""
        self.wake_up.look()

    def slot_freed(self) -> None:
        """There may be room for more: a slot became free, a claim was settled, or a candidate was not claimed."""
        self.wake_up.room_freed()
        self.slots.wake_others()
        if self.lifecycle.is_leaving():  # Otherwise nothing waits for it, and it happens all the time.
            self.lifecycle.changed.notify()

    def enter(self, state: State) -> None:
        if self.lifecycle.enter(state):
            self.changed()

    def shards_changed(self) -> None:
        """This worker owns other shards than before: it reports that, and looks there."""
        self.report_due.set()
        self.look()

    def changed(self) -> None:
        """The worker's state, or what it is asked to do, has changed."""
        self.report_due.set()
        self.lifecycle.changed.notify()


class AttemptStopper(Protocol):
    """Implemented by Attempts."""

    def stop(self, hold: Hold, why: Why) -> None:
        """Ask for an attempt to stop."""
        ...


class ShardScope(Protocol):
    """Which shards this worker lists. Implemented by ShardTenure, where shards are leased, and by FixedShards."""

    @property
    def owned(self) -> tuple[str, ...]:
        """The shards it lists now; for FixedShards, empty means all."""
        ...


@dataclass(frozen=True, slots=True)
class FixedShards:
    """Shards from the settings, polled without leases."""

    owned: tuple[str, ...]
