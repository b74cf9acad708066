"""Bounded inboxes, one for each slot: where claimed tasks wait for the moment that a slot is free.

Pure bookkeeping: nothing here waits. A task goes to a slot that is idle, the slots taking turns; if none is, to the
shortest inbox that has room. A slot that has nothing of its own takes what has waited longest elsewhere, so that
no task waits behind a slow one while another slot is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Slot(Generic[T]):
    __slots__ = ("busy", "inbox", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.busy = False
        self.inbox: deque[T] = deque()


class Inboxes(Generic[T]):
    def __init__(self, count: int, capacity: int) -> None:
        self.slots = tuple(Slot[T](index) for index in range(count))
        self._capacity = capacity
        self._turn = 0
        self._idle = count
        self._waiting: deque[tuple[Slot[T], T]] = deque()  # In the order of arrival.

    def idle(self) -> int:
        return self._idle

    def room(self, *, ahead: bool, stuck: int = 0) -> int:
        """How many more tasks could be taken: by idle slots and, ``ahead`` of time, into the inboxes of busy ones.
        So many of those are ``stuck``, and none should wait for them."""
        inboxes = self._capacity * (len(self.slots) - stuck) if ahead else 0
        return max(0, self.idle() + inboxes - len(self._waiting))

    def put(self, item: T) -> Slot[T] | None:
        """Hand over one task: the slot that shall start it now, or None if it waits.

        More than there is room for are taken in too: who claimed in time must not be turned away.
        """
        if self._idle and (slot := self._next_idle()) is not None:
            slot.busy = True
            self._idle -= 1
            return slot
        slot = min(self._from_turn(), key=lambda slot: len(slot.inbox))
        slot.inbox.append(item)
        self._waiting.append((slot, item))
        return None

    def free(self, slot: Slot[T]) -> T | None:
        """The slot has finished. What it shall start next, or None: then it is idle."""
        if not self._waiting:
            slot.busy = False
            self._idle += 1
            return None
        if slot.inbox:
            item = slot.inbox.popleft()
            self._waiting.remove((slot, item))
        else:
            owner, item = self._waiting.popleft()
            owner.inbox.remove(item)
        return item

    def remove(self, item: T) -> bool:
        """Take out one task that has not been started; False if it is not waiting."""
        for slot, waiting in self._waiting:
            if waiting is item:
                self._waiting.remove((slot, waiting))
                slot.inbox.remove(waiting)
                return True
        return False

    def _next_idle(self) -> Slot[T] | None:
        for slot in self._from_turn():
            if not slot.busy:
                self._turn = (slot.index + 1) % len(self.slots)
                return slot
        return None

    def _from_turn(self) -> Iterator[Slot[T]]:
        yield from self.slots[self._turn :]
        yield from self.slots[: self._turn]
