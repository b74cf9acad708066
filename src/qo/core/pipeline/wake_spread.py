"""How many of the tasks that wait in a queue get a wake-up of their own.

One wake-up is enough for many tasks: a worker that is awake goes on with the next task of the queue by itself. Further
ones wake further slots. So only some of the waiting tasks are named in wake-ups, the newest, which are claimed last:
as long as they wait, their messages are there for whoever becomes free.

    SPREAD    so many named tasks wait at any time, if there are as many
    BURST     so many wake-ups may be sent at once, and PER_S of them a second from then on
    STALL_S   named tasks that nobody has claimed for so long: their messages may be with a worker that died
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

SPREAD = 16
BURST = 16
PER_S = 40.0
STALL_S = 2.0
STALL_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The wake-ups of one queue, as one dispatcher has sent them. Times are of a monotonic clock."""

    wake_ids: frozenset[str] = frozenset()  # Wake-ups that were sent, of tasks that waited when last looked at.
    budget: float = BURST
    at: float = float("-inf")  # Of the budget.
    moved_at: float = float("-inf")  # When a named task was last claimed, or one was named.
    patience_s: float = STALL_S
    most: int = SPREAD

    def observe(self, waiting: Collection[str], now: float) -> Spread:
        """Forget the wake-ups of tasks that do not wait any more. ``waiting``: the last wake-ups of those that do."""
        wake_ids = self.wake_ids & frozenset(waiting)
        if wake_ids == self.wake_ids:
            return self
        return replace(self, wake_ids=wake_ids, moved_at=now, patience_s=STALL_S)

    def name(self, newest: Sequence[str], now: float) -> tuple[Spread, list[str]]:
        """Return which wake-ups of waiting tasks, the newest first, to send now, and the spread after that."""
        budget = self.budget if self.at == float("-inf") else min(BURST, self.budget + (now - self.at) * PER_S)
        unnamed = [each for each in newest if each not in self.wake_ids]
        room = self.most - len(self.wake_ids)
        is_stalled = room <= 0 and now - self.moved_at >= self.patience_s
        if is_stalled:
            room = self.most
        to_send = unnamed[: max(0, min(room, int(budget)))]
        after = replace(self, budget=budget - len(to_send), at=now)
        if not to_send:
            return after, []
        patience_s = min(2 * self.patience_s, STALL_MAX_S) if is_stalled else self.patience_s
        return replace(after, wake_ids=self.wake_ids | set(to_send), moved_at=now, patience_s=patience_s), to_send
