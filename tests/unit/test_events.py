"""What an event may say, and by what it is recognised."""

from __future__ import annotations

from typing import Any

import pytest

from qo.core.pipeline.event import NUMBER_MAX, Event, event_id, validate
from qo.errors import UsageError

pytestmark = pytest.mark.fast


def event(**fields: Any) -> Event:
    return Event(dataset_id="d", generation_id="g", **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"cursor": 0},
        {"cursor": NUMBER_MAX},
        {"partition_key": "2024-01-02"},
        {"partition_key": "1000000-1010000", "start": 1000000, "end": 1010000},
        {"partition_key": "region=eu+day:1", "attributes": {"path": "a"}},
    ],
)
def test_a_good_event_is_taken_as_it_is(fields: dict[str, Any]) -> None:
    assert validate(event(**fields)) == event(**fields)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, "either a cursor or a partition_key"),
        ({"cursor": 1, "partition_key": "a"}, "either a cursor or a partition_key"),
        ({"cursor": 1, "start": 1, "end": 2}, "start and end"),
        ({"cursor": -1}, "cursor"),
        ({"cursor": NUMBER_MAX + 1}, "cursor"),
        ({"partition_key": ""}, "partition key"),
        ({"partition_key": "a/b"}, "partition key"),
        ({"partition_key": ".."}, "partition key"),
        ({"partition_key": "a\n"}, "partition key"),
        ({"partition_key": "a" * 201}, "partition key"),
        ({"partition_key": "a", "start": 1}, "both ends"),
        ({"partition_key": "a", "start": 2, "end": 2}, "empty"),
        ({"partition_key": "a", "start": -2, "end": 2}, "start"),
        ({"cursor": 1, "attributes": {"a": "x" * 8192}}, "attributes"),
    ],
)
def test_a_bad_event_is_refused_with_the_field_to_fix(fields: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        validate(event(**fields))


def test_an_event_is_known_by_who_says_what_and_not_by_what_it_says_beside() -> None:
    said = event_id("task/1", event(partition_key="a"))
    assert said == event_id("task/1", event(partition_key="a", start=0, end=1, attributes={"x": 1}))
    others = [
        event_id("task/2", event(partition_key="a")),
        event_id("task/1", event(partition_key="b")),
        event_id("task/1", event(cursor=1)),
        event_id("task/1", Event(dataset_id="d", generation_id="h", partition_key="a")),
        event_id("task/1", Event(dataset_id="e", generation_id="g", partition_key="a")),
    ]
    assert len({said, *others}) == 6
