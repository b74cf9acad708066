"""Counts add up, whatever is known of the types."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core import keys
from qo.core.depth import ActiveTask, Wait, active_tasks, choose_sample, count_depth
from qo.store.port import Entry

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID = "a3f1c0de-0000-4000-8000-000000000001"
active = st.lists(
    st.builds(
        ActiveTask, st.uuids().map(str), st.sampled_from(Wait), st.floats(0, 1e6, allow_nan=False), st.just("k")
    ),
    unique_by=lambda task: task.task_id,
    max_size=60,
)


@given(active, st.data())
def test_counts_of_types_add_up_exactly_if_all_types_are_known(
    tasks: list[ActiveTask], data: st.DataObject
) -> None:
    types = {task.task_id: data.draw(st.sampled_from("abc")) for task in tasks}
    depth = count_depth(tasks, types, handled={"a"}, workers=1, at=NOW)
    assert depth.exact
    for wait in Wait:
        total = sum(task.wait is wait for task in tasks)
        assert getattr(depth, wait) == total == sum(getattr(each, wait) for each in depth.types)
    ages = [task.age_s for task in tasks if task.wait is Wait.DUE]
    assert depth.oldest_age_s == (max(ages) if ages else None)
    assert {each.task_type for each in depth.types if each.handled} <= {"a"}


@given(active, st.data())
def test_totals_are_exact_even_if_types_are_estimates(tasks: list[ActiveTask], data: st.DataObject) -> None:
    known = data.draw(st.sets(st.sampled_from([task.task_id for task in tasks] or [""])))
    depth = count_depth(tasks, dict.fromkeys(known, "a"), handled=(), workers=0, at=NOW)
    assert sum(getattr(depth, wait) for wait in Wait) == len(tasks)
    for each in depth.types:
        assert each.handled is None, "without workers nobody knows"
        assert all(getattr(each, wait) <= getattr(depth, wait) for wait in Wait)


@given(active, st.integers(1, 80))
def test_a_sample_has_the_oldest_and_no_task_twice(tasks: list[ActiveTask], size: int) -> None:
    sample = choose_sample(tasks, size)
    assert len(sample) == min(size, len(tasks)) == len({task.task_id for task in sample})
    if tasks and size >= 2:
        assert max(task.age_s for task in sample) == max(task.age_s for task in tasks)


@pytest.mark.parametrize(
    ("place_min", "due_min", "wait", "age_s"),
    [
        (0, None, Wait.DUE, 0),
        (-90, None, Wait.DUE, 30),  # Priority puts it ahead; it has waited since it was written.
        (-60, 30, Wait.DELAYED, 0),  # Urgent, and for later.
        (5, None, Wait.DELAYED, 0),
        (-90, -1, Wait.DUE, 30),
    ],
)
def test_a_key_tells_what_its_task_waits_for(
    place_min: int, due_min: int | None, wait: Wait, age_s: float
) -> None:
    minute = keys.minute_of(NOW)
    key = keys.index(keys.READY, "a", minute + place_min, ID, None if due_min is None else minute + due_min)
    (task,) = active_tasks([Entry(key, "e", 1, NOW - timedelta(seconds=30))], NOW)
    assert task.wait is wait
    assert task.age_s == age_s


def test_a_task_with_two_keys_counts_once_as_the_later_one_says() -> None:
    minute = keys.minute_of(NOW)
    ready = Entry(keys.index(keys.READY, "a", minute, ID), "e", 1, NOW - timedelta(seconds=9))
    lease = Entry(keys.index(keys.LEASES, "a", minute + 1, ID), "e", 1, NOW)
    for entries in ([ready, lease], [lease, ready]):
        (task,) = active_tasks(entries, NOW)
        assert task.wait is Wait.RUNNING
