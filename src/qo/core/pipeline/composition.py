"""Composition: what becomes of a partition that is made of others, given what is there and who has read what.

The first task is created when the partition is ready (``part_maps.is_ready``). From then on it is made again whenever
something that it reads has changed, come late or come back, unless a task that is open will read that anyway. So many
changes while a task waits are one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qo.core.task import Status

Place = tuple[int, str, str]  # Position of the input, generation and key of a partition.


@dataclass(frozen=True, slots=True)
class PartNow:
    """A partition of an input that is there, or was removed."""

    revision: int
    committed_at: float
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """A task for the partition, and what it has read."""

    task_id: str
    status: Status
    has_late_attempt: bool  # It waits again, and its last attempt may still commit.
    pins: Mapping[Place, int]  # Revisions.
    updated_at: float


class Step(StrEnum):
    WAIT = "wait"
    CREATE = "create"
    REBUILD = "rebuild"
    COVERED = "covered"  # A task that is there has made it, or will, or has tried.


@dataclass(frozen=True, slots=True)
class Decision:
    step: Step
    by: Work | None = None  # COVERED: who.


def decide(parts: Mapping[Place, PartNow], works: Iterable[Work], *, is_ready: bool) -> Decision:
    """Return what to do about a partition. ``parts``: all that it reads and that is there or was removed."""
    all_works = list(works)
    covering = [work for work in all_works if _covers(work, parts)]
    if covering:
        return Decision(Step.COVERED, min(covering, key=lambda work: (_RANK.index(work.status), work.task_id)))
    if any(work.status is Status.COMPLETED for work in all_works):
        return Decision(Step.REBUILD)
    if not is_ready:
        return Decision(Step.WAIT)
    return Decision(Step.REBUILD if all_works else Step.CREATE)


def has_read(pins: Mapping[Place, int], parts: Mapping[Place, PartNow]) -> bool:
    """Whether somebody with these pins has read the current state of all parts.

    What was removed is missing to those who have read it, and to nobody else.
    """
    return all(
        pins.get(place, -1) >= part.revision
        for place, part in parts.items()
        if place in pins or not part.is_removed
    )


_RANK = (
    Status.PENDING,
    Status.RUNNING,
    Status.COMPLETED,
    *(each for each in Status if each not in (Status.PENDING, Status.RUNNING, Status.COMPLETED)),
)


def _covers(work: Work, parts: Mapping[Place, PartNow]) -> bool:
    if work.status is Status.PENDING and not work.has_late_attempt:
        return True  # It reads what is there when it is claimed.
    if work.status in (Status.PENDING, Status.RUNNING, Status.COMPLETED) or work.pins:
        return has_read(work.pins, parts)
    # Given up before it was claimed: people decide whether to try again, until there is something new.
    return work.updated_at >= max((part.committed_at for part in parts.values()), default=0.0)
