"""The span of a partition is the same in seconds, by the clocks of its zone, and in days."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.partition_span import find_span
from qo.core.pipeline.partitions import SECONDS, PartitionKind, Partitions, part_at

ZONES = [None, "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Asia/Kathmandu"]
zones = st.sampled_from(ZONES)
times = st.integers(0, 4_102_444_800)


@given(kind=st.sampled_from(list(SECONDS)), zone=zones, at=times)
def test_a_moment_is_within_its_partition_by_every_measure(kind: PartitionKind, zone: str | None, at: int) -> None:
    partitions = Partitions(kind=kind, timezone=zone)
    part = part_at(partitions, at)
    span = find_span(msgspec.to_builtins(partitions), part.key)
    assert span is not None
    assert (span.key, span.start, span.end) == (part.key, part.start, part.end)
    local = datetime.fromtimestamp(at, UTC).astimezone(ZoneInfo(zone or "UTC")).replace(tzinfo=None)
    assert span.first_day is not None
    assert span.last_day is not None
    assert span.first_day <= local.date()
    if kind in (PartitionKind.DAY, PartitionKind.WEEK, PartitionKind.MONTH):
        assert local.date() <= span.last_day


def test_numbers_have_no_days_and_text_has_no_span() -> None:
    span = find_span({"kind": "integer", "range": 10}, "20")
    assert span is not None
    assert (span.start, span.end, span.first_day) == (20, 30, None)
    assert find_span({"kind": "text"}, "a") is find_span(None, "a") is find_span({"kind": "day"}, None) is None
