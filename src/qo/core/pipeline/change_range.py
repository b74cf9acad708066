"""Which changes of an input a task of a PerChange job reads, and whether what it made of them may be committed.

The position of such a job is the version of its input that its output was made from: a generation as of a revision. A
task reads what differs between the position and the version that is there when it is claimed. Its output replaces what
the position stands for, so it is committed only while that is still the position:

    next   the position is where the task began: commit, and move the position
    read   others have read as far: there is nothing to commit
    moved  the position is elsewhere: read again from there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

BETWEEN = "between"  # In the config of an operator: two revisions to compare, instead of what is new.


@dataclass(frozen=True, slots=True)
class Version:
    """A generation as of a revision."""

    generation_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class ChangeRange:
    before: Version | None  # None: nothing was read before, so everything is new.
    upto: Version


class Turn(Enum):
    NEXT = auto()
    READ = auto()
    MOVED = auto()


def revisions_to_compare(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the revisions that a job's config names; None: it follows what is new."""
    between = config.get(BETWEEN)
    return None if between is None else (int(between[0]), int(between[1]))


def is_due(config: Mapping[str, Any], position: Version | None, generation_id: str, head: int | None) -> bool:
    """Return whether there is something to read. ``head``: the last revision of the generation, if it has any."""
    if head is None:
        return False
    if position is None or position.generation_id != generation_id:
        return True
    between = revisions_to_compare(config)
    return position.revision < (head if between is None else between[1])


def range_to_read(
    config: Mapping[str, Any], position: Version | None, generation_id: str, latest: int
) -> ChangeRange:
    """Return what a task reads that is claimed now. ``latest``: the last revision there is."""
    between = revisions_to_compare(config)
    if between is None:
        return ChangeRange(position, Version(generation_id, latest))
    upto = Version(generation_id, min(between[1], latest))
    is_read = position is not None and position.generation_id == generation_id and position.revision >= between[1]
    return ChangeRange(upto if is_read else Version(generation_id, between[0]), upto)


def judge(config: Mapping[str, Any], read: ChangeRange, position: Version | None) -> Turn:
    """Return whether the output of a task that has read this range may be committed. ``position``: as it is now."""
    is_beyond = (
        position is not None
        and position.generation_id == read.upto.generation_id
        and position.revision >= read.upto.revision
    )
    if revisions_to_compare(config) is not None:
        return Turn.READ if is_beyond else Turn.NEXT  # It compares the same revisions, whatever is read.
    if position == read.before:
        return Turn.NEXT
    return Turn.READ if is_beyond else Turn.MOVED
