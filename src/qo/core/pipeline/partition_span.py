"""The span of a task's partition, in the three ways in which columns can say when or which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from qo.core.pipeline.partitions import PartitionKind, Partitions, find_part


@dataclass(frozen=True, slots=True)
class PartitionSpan:
    """Half-open: seconds since 1970, or numbers; and of time, what the clocks of its zone show."""

    key: str
    start: int
    end: int
    local_start: datetime | None = None  # None: it is a span of numbers.
    local_end: datetime | None = None

    @property
    def first_day(self) -> date | None:
        return None if self.local_start is None else self.local_start.date()

    @property
    def last_day(self) -> date | None:
        return None if self.local_end is None else (self.local_end - timedelta(microseconds=1)).date()


def find_span(declared: Mapping[str, Any] | None, key: str | None) -> PartitionSpan | None:
    """Return the span of a partition, from its declaration as JSON; None if nothing is declared, or any text is.

    Raises UsageError for a key that is none of these partitions.
    """
    if declared is None or key is None:
        return None
    partitions = msgspec.convert(declared, Partitions)
    if partitions.kind is PartitionKind.TEXT:
        return None
    part = find_part(partitions, key)
    if not partitions.in_time:
        return PartitionSpan(key, part.start, part.end)
    zone = ZoneInfo(partitions.timezone or "UTC")
    ends = (datetime.fromtimestamp(at, UTC).astimezone(zone) for at in (part.start, part.end))
    first, last = (at.replace(tzinfo=None) for at in ends)
    return PartitionSpan(key, part.start, part.end, first, last)
