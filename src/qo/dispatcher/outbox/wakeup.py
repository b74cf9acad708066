"""Wake-ups, and the port through which they leave the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A message that a task may be claimed, and that its queue may have more. It is only a hint, and may come twice,
    late or never."""

    id: str
    task_id: str
    priority: int = 0  # Jobs further down a pipeline go first, so that work is finished before more is begun.


class WakeUps(Protocol):
    """Where wake-ups go."""

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        """Enqueue wake-ups; they are durable when this returns. One whose id was enqueued before stays as it is.

        Raises any error if that is uncertain: all of them are then published again.
        """
        ...
