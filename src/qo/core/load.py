"""The load of a queue: what `qo cost` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.core.pricing import MONTH_D


class Delivery(StrEnum):
    """How workers learn of new tasks."""

    BOARD = "board"
    LEASED = "leased"  # From the board, in turns, by workers that lease shards.
    PUSH = "push"  # By a wake-up from one sender, and from the board.
    DIRECT = "direct"  # In its inbox, as ``core.dispatch_pricing`` has it.


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a queue."""

    workers: int
    tasks_per_day: float
    kept_d: float = MONTH_D  # How long ended tasks stay in the bucket.
    task_s: float = 1.0  # How long a task runs.

    @property
    def tasks_each(self) -> float:
        """Tasks a day of one worker."""
        return self.tasks_per_day / self.workers if self.workers else 0.0

    @property
    def tasks_kept(self) -> float:
        return self.tasks_per_day * self.kept_d
