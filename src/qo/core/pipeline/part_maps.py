"""Maps between partitions: what a job reads of an input for one of its partitions, and which of its own one concerns.

There is one rule for all kinds: a part reads the parts of the input that overlap with it. So a month reads its days, a
day the month that it lies in, and a week the two months that it may touch. A ``window`` reads back from there, and an
``offset`` moves it, both in parts of the job:

    window: 7               a day and the six before it
    offset: -1              the day before
    window: 7, offset: -1   the seven days before

A job that reads a triggering input by a map is a composite: its part is made once what it reads is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from qo.core.pipeline.dag import Complete, Job, Strategy
from qo.core.pipeline.partitions import (
    SECONDS,
    Part,
    PartitionKind,
    Partitions,
    find_part,
    following,
    is_expected,
    part_at,
    preceding,
)
from qo.core.timespan import parse_timespan_s

NAMING_PARTITIONS = frozenset({"range_splitter", "range_aggregator"})  # Operators that make keys of their own.
PARTS_MAX = 2_000  # That one part reads, or that one concerns: so much is looked up for one event.


@dataclass(frozen=True, slots=True)
class PartMap:
    """How the parts of a job (``target``) are made of the parts of one of its inputs (``source``)."""

    target: Partitions
    source: Partitions
    window: int = 1
    offset: int = 0

    @property
    def is_identity(self) -> bool:
        return self.window == 1 and self.offset == 0 and grid(self.target) == grid(self.source)

    @property
    def ratio(self) -> float:
        """How many parts of the job there are for one of the input, about."""
        return _size(self.source) / _size(self.target)

    @property
    def text(self) -> str:
        """What decides which parts are read; it is part of the edition."""
        return f"{grid(self.target)} of {grid(self.source)}, {self.window}, {self.offset}"


@dataclass(frozen=True, slots=True)
class Reads:
    """The parts of an input that one part of a job reads, oldest first."""

    parts: tuple[Part, ...]
    own: frozenset[str]  # The keys of those that the last part of the window overlaps with.
    expected: frozenset[str]  # The keys of those that the input should have.


def grid(partitions: Partitions) -> tuple[str, str, int]:
    """Return what decides which parts there are: kind, time zone and range."""
    zone = (partitions.timezone or "UTC") if partitions.in_time else ""
    size = (partitions.range or 1) if partitions.kind is PartitionKind.INTEGER else 0
    return partitions.kind, zone, size


@lru_cache(maxsize=128)
def reads(map_: PartMap, key: str) -> Reads:
    """Return what the part with this key reads. Raises UsageError for a key that is none of the job's."""
    last = _walk(map_.target, find_part(map_.target, key), map_.offset)
    if last is None:
        return Reads((), frozenset(), frozenset())
    first = _walk_back(map_.target, last, map_.window - 1)
    parts = _overlapping(map_.source, first.start, last.end)
    own = frozenset(each.key for each in parts if each.end > last.start)
    return Reads(parts, own, frozenset(each.key for each in parts if is_expected(map_.source, each)))


@lru_cache(maxsize=512)
def concerned(map_: PartMap, key: str) -> tuple[str, ...]:
    """Return the keys of the job's parts that read the part of the input with this key, oldest first.

    None before the first that is expected is among them. Raises UsageError for a key that is none of the input's.
    """
    part = find_part(map_.source, key)
    first, last = part_at(map_.target, part.start), part_at(map_.target, part.end - 1)
    forward = _walk(map_.target, first, -map_.offset) if map_.offset < 0 else None
    oldest = forward or _walk_back(map_.target, first, max(0, map_.offset))
    newest = _walk(map_.target, last, map_.window - 1 - map_.offset)
    if newest is None:
        return ()
    parts = _overlapping(map_.target, oldest.start, newest.end)
    begins = None if map_.target.start is None else find_part(map_.target, map_.target.start).start
    return tuple(each.key for each in parts if begins is None or each.start >= begins)


def is_too_wide(map_: PartMap) -> bool:
    """Whether a part could read, or concern, more than PARTS_MAX parts."""
    target, source = _size(map_.target), _size(map_.source)
    return max(map_.window * target / source, source / target + map_.window) > PARTS_MAX


def can_map(target: Partitions | None, source: Partitions | None) -> bool:
    """Whether both are of time, or both are of numbers."""
    if target is None or source is None or PartitionKind.TEXT in (target.kind, source.kind):
        return False
    return target.in_time == source.in_time


def map_inputs(job: Job, sources: Sequence[Partitions | None]) -> dict[int, PartMap]:
    """Return the maps of a job's inputs by position. ``sources``: the partitions of each input.

    Without a map, an input is read as its event says: the partition with the key of the task. If a triggering input
    needs a map, all of them have one. An input that declares nothing has the partitions of the job.
    """
    per_partition = job.execution_strategy is Strategy.PER_PARTITION and job.operator not in NAMING_PARTITIONS
    if job.partitions is None or not per_partition:
        return {}
    maps: dict[int, PartMap] = {}
    for position, (each, source) in enumerate(zip(job.inputs, sources, strict=True)):
        if source is None and not each.trigger and each.window == 1 and not each.offset:
            continue
        if can_map(job.partitions, source or job.partitions):
            maps[position] = PartMap(job.partitions, source or job.partitions, each.window, each.offset)
    is_composite = any(job.inputs[position].trigger and not map_.is_identity for position, map_ in maps.items())
    return {
        position: map_
        for position, map_ in maps.items()
        if not map_.is_identity or (is_composite and job.inputs[position].trigger)
    }


@dataclass(frozen=True, slots=True)
class Missing:
    """What a part of a job still lacks."""

    is_begun: bool  # Something of its own time is there.
    keys: Mapping[int, tuple[str, ...]]  # Expected and not there, by position of the input.

    @property
    def count(self) -> int:
        return sum(map(len, self.keys.values()))


def find_missing(maps: Mapping[int, PartMap], key: str, present: Mapping[int, Set[str]]) -> Missing:
    """Return what a part lacks. ``present``: the keys that are there of what it reads, by position."""
    keys: dict[int, tuple[str, ...]] = {}
    is_begun = False
    for position, map_ in maps.items():
        read, there = reads(map_, key), present.get(position, frozenset[str]())
        is_begun = is_begun or not read.own.isdisjoint(there)
        lacking = tuple(each.key for each in read.parts if each.key in read.expected and each.key not in there)
        if lacking:
            keys[position] = lacking
    return Missing(is_begun, keys)


def is_ready(job: Job, missing: Missing, *, now: float, due: float | None) -> bool:
    """Whether a part that has not been made yet is to be made now.

    Nothing is made for a part of whose own time nothing is there. ``due``: when it is made of what is there.
    """
    if not missing.is_begun:
        return False
    if due is not None and now >= due:
        return True
    match job.complete:
        case Complete.ANY:
            return True
        case Complete.ALL:
            return missing.count == 0
        case Complete.ANNOUNCED:
            return False


def due_at(job: Job, key: str, *, since: float | None) -> float | None:
    """Return when a part is made of what is there; None: it waits for all of it.

    The deadline counts from the end of the part, or from ``since``, when the first of what it reads was there: data
    that is loaded years later has as much time.
    """
    if job.deadline is None or job.partitions is None:
        return None
    end = find_part(job.partitions, key).end
    return max(end, end if since is None else since) + (parse_timespan_s(job.deadline) or 0.0)


def may_be_incomplete(job: Job) -> bool:
    """Whether parts of a composite may be made before all that they read is there."""
    return job.deadline is not None or job.complete is not Complete.ALL


def _walk(partitions: Partitions, part: Part, steps: int) -> Part | None:
    """Return the part so many steps later, or earlier if negative; None: there is none."""
    walked: Part | None = part
    for _ in range(abs(steps)):
        if walked is None:
            return None
        walked = following(partitions, walked) if steps > 0 else preceding(partitions, walked)
    return walked


def _walk_back(partitions: Partitions, part: Part, steps: int) -> Part:
    """Return the part so many steps earlier, or the first that there is."""
    for _ in range(steps):
        part = preceding(partitions, part) or part
    return part


def _overlapping(partitions: Partitions, start: int, end: int) -> tuple[Part, ...]:
    def sequence() -> list[Part]:
        parts = [part_at(partitions, start)]
        while parts[-1].end < end:
            parts.append(following(partitions, parts[-1]))
        return parts

    return tuple(takewhile(lambda part: part.start < end, sequence()))


def _size(partitions: Partitions) -> float:
    if partitions.kind is PartitionKind.INTEGER:
        return partitions.range or 1
    return SECONDS[partitions.kind]
