"""How far a stream has read the topics of Kafka, and what is missing of what it still has to read.

Offsets are those of the next record to read, by topic and partition, in the form in which Spark's reader has them:

    {"clicks": {"0": 1200, "1": 1187}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Offsets = Mapping[str, Mapping[str, int]]

GAPS_SHOWN = 5


class GapKind(StrEnum):
    EXPIRED = "expired"  # The oldest record that is there comes after the next one to read.
    SHORTENED = "shortened"  # The topic has fewer records than were read: it was made anew, or its log was lost.
    REMOVED = "removed"  # There is no such partition any more.


@dataclass(frozen=True, slots=True)
class Gap:
    """Records of a partition that can no longer be read, from ``next`` on. ``goes_on_at``: where reading can go on."""

    kind: GapKind
    topic: str
    partition: str
    next: int
    goes_on_at: int | None

    def __str__(self) -> str:
        name = f"{self.topic}, partition {self.partition}"
        match self.kind:
            case GapKind.EXPIRED:
                return f"{name}: records {self.next} to {(self.goes_on_at or 0) - 1} have expired"
            case GapKind.SHORTENED:
                return f"{name}: record {self.next} is next, and the topic ends before it: it was made anew or cut"
            case GapKind.REMOVED:
                return f"{name}: it was removed, and record {self.next} was next"


def resume(position: Offsets, earliest: Offsets, latest: Offsets) -> tuple[Offsets, list[Gap]]:
    """Return where to go on after a committed position, and what is missing there.

    Partitions that are new are read from their oldest record on. A partition with a gap goes on at the oldest record
    that is there.
    """
    start: dict[str, dict[str, int]] = {}
    gaps: list[Gap] = []
    for topic, partitions in earliest.items():
        for partition, oldest in partitions.items():
            following = position.get(topic, {}).get(partition, oldest)
            if following < oldest:
                gaps.append(Gap(GapKind.EXPIRED, topic, partition, following, oldest))
                following = oldest
            elif following > latest[topic][partition]:
                gaps.append(Gap(GapKind.SHORTENED, topic, partition, following, oldest))
                following = oldest
            start.setdefault(topic, {})[partition] = following
    gaps += [
        Gap(GapKind.REMOVED, topic, partition, following, None)
        for topic, partitions in position.items()
        for partition, following in partitions.items()
        if partition not in earliest.get(topic, {})
    ]
    return start, gaps


def describe_gaps(gaps: Sequence[Gap]) -> str:
    rest = len(gaps) - GAPS_SHOWN
    return "; ".join(map(str, gaps[:GAPS_SHOWN])) + (f"; and {rest} more" if rest > 0 else "")
