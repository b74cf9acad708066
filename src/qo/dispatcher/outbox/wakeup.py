"""Wake-ups, and the port through which they leave the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WakeUp:
    """Says that a task may be claimed. Means nothing by itself, and may come twice, late or never."""

    id: str
    task_id: str
    priority: int = 0  # What is further down a pipeline goes first, so that work is finished before more is begun.


class WakeUps(Protocol):
    """Where wake-ups go."""

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        """Enqueue them; durable when this returns. What has been enqueued by the same id before stays as it is.

        Raises anything if that is uncertain: all of them are published again.
        """
        ...
