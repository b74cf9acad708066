"""Which pieces of a dataset are listed in which manifest.

A manifest has neighbours: pieces are in order of partition key or cursor, so a query for one day reads one manifest. It
has about a thousand files at most. So a commit rewrites the one manifest that its partition is in, however many others
there are. A piece with more files than that has manifests of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

ENTRIES_MAX = 1_000  # Of a manifest.
ENTRIES_MIN = 250  # A manifest with fewer is merged with its neighbour.


class Position(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where a piece is in the order of its dataset."""

    partition_key: str = ""  # Empty for segments, which come first.
    cursor: int = -1
    revision: int = 0


class Item(NamedTuple):
    """A piece, or a part of one that has too many files for a manifest."""

    position: Position
    entries: int  # Files.
    part: int | None = None  # The number of the part.

    @property
    def revision(self) -> int:
        return self.position.revision


class Group(Protocol):
    """What is known about the contents of a manifest."""

    @property
    def first(self) -> Position: ...
    @property
    def pieces(self) -> Sequence[int]: ...
    @property
    def entries(self) -> int: ...
    @property
    def part(self) -> int | None: ...


def assign(
    groups: Sequence[Group], removed: Collection[int], added: Iterable[Position]
) -> tuple[list[int], list[list[int]]]:
    """Return the groups that stay as they are, by index, and the revisions of the pieces to be grouped anew.

    ``groups`` are in order. Each list of revisions is for manifests of its own. A piece that is added goes to the group
    before it.
    """
    absent, new = set(removed), sorted(added)
    places = [at for at, each in enumerate(groups) if each.part is None]
    firsts = [groups[at].first for at in places]
    contents: dict[int, list[int]] = {}
    for at, group in enumerate(groups):
        if absent and not absent.isdisjoint(group.pieces):
            contents[at] = [each for each in group.pieces if each not in absent]
    homeless: list[int] = []
    for position in new:
        if not places:
            homeless.append(position.revision)
            continue
        at = places[max(bisect_right(firsts, position) - 1, 0)]
        contents.setdefault(at, list(groups[at].pieces)).append(position.revision)
    _merge_small(groups, places, contents)
    stay = [at for at in range(len(groups)) if at not in contents]
    return stay, [pieces for pieces in [*(contents[at] for at in sorted(contents)), homeless] if pieces]


def _merge_small(groups: Sequence[Group], places: Sequence[int], contents: dict[int, list[int]]) -> None:
    """Add the pieces of groups that have become small to a neighbour, if both fit into one manifest."""
    for place, at in enumerate(places):
        pieces = contents.get(at)
        if pieces is None or (size := _size(groups[at], pieces)) >= ENTRIES_MIN:
            continue
        for neighbour in places[place - 1 : place] if place else places[1:2]:
            there = contents.get(neighbour, list(groups[neighbour].pieces))
            if size + _size(groups[neighbour], there) <= (ENTRIES_MAX + ENTRIES_MIN) // 2:
                contents[neighbour] = [*there, *pieces]
                contents[at] = []


def _size(group: Group, pieces: Sequence[int]) -> float:
    """Return about how many files pieces of a group have, before anything is loaded."""
    return len(pieces) * group.entries / max(1, len(group.pieces))


def split(items: Iterable[Item]) -> list[list[Item]]:
    """Return items in order, in groups of at most ``ENTRIES_MAX`` files and about the same size."""
    ordered = sorted(items)
    small = [each for each in ordered if each.entries <= ENTRIES_MAX]
    groups = [[part] for each in ordered if each.entries > ENTRIES_MAX for part in _parts(each)]
    total = sum(each.entries for each in small)
    # Filled to three quarters where there are several, so that each has room for what comes next.
    number = 1 if total <= ENTRIES_MAX else -(-total * 4 // (ENTRIES_MAX * 3))
    group: list[Item] = []
    size = 0
    for each in small:
        if group and (size + each.entries > ENTRIES_MAX or size * number >= total):
            groups.append(group)
            group, size = [], 0
        group.append(each)
        size += each.entries
    return [*groups, group] if group else groups


def _parts(item: Item) -> list[Item]:
    sizes = [min(ENTRIES_MAX, item.entries - at) for at in range(0, item.entries, ENTRIES_MAX)]
    return [Item(item.position, size, part) for part, size in enumerate(sizes)]
