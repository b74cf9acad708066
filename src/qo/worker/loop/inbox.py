"""Bounded inboxes, one for each slot, in which claimed tasks wait until a slot is free.

Pure bookkeeping: nothing here waits. A task goes to an idle slot, the slots taking turns; if there is none, to the
shortest inbox. A slot whose inbox is empty takes the task that has waited longest in another one, so that no task waits
behind a slow one while a slot is free.
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

    def used(self) -> int:
        """Return how many tasks run or wait."""
        return len(self.slots) - self._idle + len(self._waiting)

    def room(self, *, ahead: bool, stuck: int = 0) -> int:
        """Return how many more tasks fit: into idle slots and, if ``ahead``, into inboxes (not of ``stuck`` slots)."""
        inboxes = self._capacity * (len(self.slots) - stuck) if ahead else 0
        return max(0, self.idle() + inboxes - len(self._waiting))

    def add(self, item: T) -> Slot[T] | None:
        """Add one task. Return the slot that is to start it now, or None if it waits.

        A task that was claimed is never turned away, even if there is no room.
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
        """Free a slot that has finished. Return what it is to start next, or None: then it is idle."""
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
        """Remove one waiting task; False if it does not wait."""
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
