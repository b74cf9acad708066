"""What wakes the mailbox between two looks for tasks."""

from __future__ import annotations

import asyncio


class WakeUp:
    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._room_freed = False  # Since the last ``reset``.
        self._changed = False  # Whether there may be tasks since then that a look under way has missed.
        self._only_pushed = False  # Whether nothing but ``push`` was called since.
        self._wants_room = False  # Whether a freed slot ends the present rest.

    def look(self) -> None:
        """There may be something new to find, or the mailbox was opened."""
        self._changed = True
        self._signal()

    def push(self) -> None:
        """A wake-up has named tasks: they can be claimed without a look."""
        self._changed = True
        self._only_pushed = not self._event.is_set() or self._only_pushed
        self._event.set()

    @property
    def was_only_pushed(self) -> bool:
        """Whether the signal since the last ``reset`` was a push and nothing else."""
        return self._only_pushed

    @property
    def has_changed(self) -> bool:
        """Whether this worker may have made tasks ready since the last ``reset`` that a look since then has missed."""
        return self._changed

    def room_freed(self) -> None:
        """There is more room: a task of this worker has ended. A mailbox that has just found nothing does not look
        again for that."""
        self._changed = True
        self.room_offered()

    def room_offered(self) -> None:
        """There is more room, because a worker of another queue leaves it."""
        self._room_freed = True
        if self._wants_room:
            self._signal()

    def reset(self) -> None:
        """Forget earlier signals. Call it before each look: whatever changes from then on leads to another one."""
        self._event.clear()
        self._only_pushed = False
        self._room_freed = False
        self._changed = False

    async def rest(self, for_s: float | None, *, wants_room: bool) -> None:
        """Wait for a signal, at most ``for_s``. A freed slot ends the rest only with ``wants_room``."""
        if wants_room and self._room_freed:
            return
        self._wants_room = wants_room
        if for_s is None:
            await self._event.wait()
            return
        try:
            async with asyncio.timeout(for_s):
                await self._event.wait()
        except TimeoutError:
            return

    def _signal(self) -> None:
        self._only_pushed = False
        self._event.set()
