"""Slots that the workers of several queues in one process share, by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from qo.core.shares import cap_of_queue, grant_slots, pass_on_return
from qo.errors import UsageError


class SlotShare(Protocol):
    """What a mailbox asks before it claims. Implemented by OwnSlots and by the members of SharedSlots."""

    def room(self, own: int) -> int:
        """Return how many tasks may be claimed now, if the worker itself has room for ``own``."""
        ...

    def report_look(self, found_work: bool) -> None:
        """A look for tasks has ended."""
        ...

    def count_start(self) -> None:
        """A task was claimed."""
        ...

    def wake_others(self) -> None:
        """A slot may have become free."""
        ...

    def keep(self) -> bool:
        """Return whether a slot that has become free goes to the same worker again, and count that as a start."""
        ...


class OwnSlots:
    """The slots of a worker that shares them with no other."""

    def room(self, own: int) -> int:
        return own

    def report_look(self, found_work: bool) -> None:
        pass

    def count_start(self) -> None:
        pass

    def wake_others(self) -> None:
        pass

    def keep(self) -> bool:
        return True


class SharedSlots:
    def __init__(self, slots: int, weights: Mapping[str, int], kept_free: int = 0) -> None:
        """``kept_free``: how many slots each queue leaves to each of the others, whether or not they want them."""
        if slots < 1 or not weights or min(weights.values()) < 1:
            raise UsageError("queues that share slots need at least one slot and weights of at least 1")
        self._slots = slots
        self._most = cap_of_queue(slots, len(weights), kept_free)  # For one queue.
        self._weights = dict(weights)
        self._passes = dict.fromkeys(weights, 0.0)
        self._wanting: set[str] = set()
        self._denied: set[str] = set()  # Those that got fewer slots than they could have used.
        self._reserved = dict.fromkeys(weights, 0)  # Granted, but not yet used: its look for tasks is under way.
        self._members: dict[str, SharedSlotsMember] = {}

    def join(self, name: str) -> SharedSlotsMember:
        self._members[name] = member = SharedSlotsMember(self, name)
        return member

    def leave(self, name: str) -> None:
        """Reserve nothing more for a queue whose worker has ended."""
        self._wanting.discard(name)
        self._denied.discard(name)
        self._reserved[name] = 0
        self.wake(except_for=name)

    def room(self, name: str, own: int) -> int:
        if name not in self._wanting:
            self._passes[name] = pass_on_return(self._passes, self._wanting, name)
            self._wanting.add(name)
        self._reserved[name] = 0
        used = sum(member.used() for member in self._members.values()) + sum(self._reserved.values())
        granted = grant_slots(self._passes, self._weights, self._wanting, max(0, self._slots - used))[name]
        granted = min(granted, max(0, self._most - self._members[name].used()))
        (self._denied.add if granted < own else self._denied.discard)(name)
        self._reserved[name] = max(0, min(own, granted))
        return min(own, granted)

    def report_look(self, name: str, found_work: bool) -> None:
        if not found_work and name in self._wanting:
            self._wanting.discard(name)
            self._denied.discard(name)  # It could not have used more.
            self._reserved[name] = 0
            self.wake(except_for=name)

    def count_start(self, name: str) -> None:
        self._passes[name] += 1 / self._weights[name]

    def keep(self, name: str) -> bool:
        if name not in self._wanting:
            self._passes[name] = pass_on_return(self._passes, self._wanting, name)
        # Those that got a slot for their look have one to use.
        waiting = {each for each in self._denied if each != name and not self._reserved[each]}
        if grant_slots(self._passes, self._weights, {name, *waiting}, 1)[name] == 0:
            return False
        self.count_start(name)
        return True

    def wake(self, *, except_for: str) -> None:
        """Let the workers of other queues that were denied slots check again."""
        for name in self._denied - {except_for}:
            self._denied.discard(name)
            self._members[name].on_room()


class SharedSlotsMember:
    """The shared slots as one worker sees them."""

    def __init__(self, shared: SharedSlots, name: str) -> None:
        self._shared = shared
        self._name = name
        self.used: Callable[[], int] = lambda: 0
        self.on_room: Callable[[], None] = lambda: None

    def attach(self, used: Callable[[], int], on_room: Callable[[], None]) -> None:
        """``used`` returns how many slots the worker uses, or is about to use; ``on_room`` is called when it may get
        more."""
        self.used, self.on_room = used, on_room

    def room(self, own: int) -> int:
        return self._shared.room(self._name, own)

    def report_look(self, found_work: bool) -> None:
        self._shared.report_look(self._name, found_work)

    def count_start(self) -> None:
        self._shared.count_start(self._name)

    def wake_others(self) -> None:
        self._shared.wake(except_for=self._name)

    def keep(self) -> bool:
        return self._shared.keep(self._name)
