"""Which of the tasks that wait in a queue is claimed next.

Jobs further down a pipeline go first, so that work is finished before more is begun; within a depth, the task that was
released first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A task whose wake-up is released, and that nobody has claimed."""

    id: str
    edition_id: str
    released_at: datetime


def order_claims(waiting: Iterable[WaitingTask], depth: Mapping[str, int]) -> list[WaitingTask]:
    """Return the tasks in the order in which they should be claimed. ``depth``: of editions; 0 for others."""
    return sorted(waiting, key=lambda each: (-depth.get(each.edition_id, 0), each.released_at, each.id))
