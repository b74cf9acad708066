"""What is due is found, what is kept is not read again and again, and nothing else is ever due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.retention import (
    DATING_ERROR,
    FULL_EVERY,
    ROUND_EVERY,
    Allowance,
    Keep,
    Policy,
    PurgeCursor,
    advance,
    due_at,
    is_due,
    may_be_due,
    next_round,
)
from qo.core.task import ENDED, Status, Task

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
spans = st.integers(1, 400).map(lambda hours: timedelta(hours=hours))
keeps = st.builds(Keep, **{name: st.none() | spans for name in Keep.__slots__})
policies = st.builds(Policy, keeps, st.dictionaries(st.sampled_from("abc"), keeps, max_size=2))
ages = st.timedeltas(timedelta(0), timedelta(hours=500))


def task_of(task_type: str, status: Status, updated_at: datetime) -> Task:
    return Task(
        id="a3f1c0de-0000-4000-8000-000000000001",
        task_type=task_type,
        shard="a",
        token="t",
        status=status,
        available_at=updated_at,
        created_at=updated_at,
        updated_at=updated_at,
    )


tasks = st.builds(task_of, st.sampled_from("abcd"), st.sampled_from(Status), ages.map(lambda age: NOW - age))


@given(policies, tasks)
def test_only_what_has_ended_is_ever_due_and_not_before_its_time(policy: Policy, task: Task) -> None:
    due = due_at(task, policy)
    if task.status not in ENDED:
        assert due is None
    if due is not None:
        assert is_due(task, policy, due)
        assert not is_due(task, policy, due - timedelta(microseconds=1))


@given(policies, tasks)
def test_a_failed_task_is_kept_until_what_follows_it_is_submitted(policy: Policy, task: Task) -> None:
    failed = msgspec.structs.replace(task, status=Status.FAILED, on_failure="alert", attempt=1)
    assert failed.follow_up_due
    assert due_at(failed, policy) is None


@given(policies, tasks)
def test_a_type_that_is_named_follows_its_own_rule_and_all_others_the_default(policy: Policy, task: Task) -> None:
    keep = policy.types.get(task.task_type, policy.default)
    limit = getattr(keep, task.status, None)
    assert due_at(task, policy) == (None if limit is None else task.updated_at + limit)


@given(policies, tasks, ages, st.timedeltas(-DATING_ERROR, DATING_ERROR))
def test_whatever_became_due_since_the_last_round_is_read(
    policy: Policy, task: Task, since: timedelta, error: timedelta
) -> None:
    settled_at = NOW - since
    if is_due(task, policy, NOW) and not is_due(task, policy, settled_at):
        assert may_be_due(task.updated_at + error, policy.limits, settled_at=settled_at, now=NOW)


@given(policies, st.lists(st.timedeltas(timedelta(hours=1), timedelta(hours=30)), max_size=60))
def test_a_task_is_read_a_few_times_in_its_life_however_often_a_round_comes_by(
    policy: Policy, gaps: list[timedelta]
) -> None:
    settled_at, now, reads = NOW, NOW, 0
    for gap in gaps:
        now += gap
        reads += may_be_due(NOW, policy.limits, settled_at=settled_at, now=now)
        settled_at = now
    # Within a minute of its limit, a task may be read in two rounds.
    assert reads <= 2 * len(policy.limits)


def test_without_a_limit_nothing_is_read() -> None:
    assert Policy().limits == ()
    assert not may_be_due(NOW, (), settled_at=None, now=NOW + timedelta(days=9999))


@given(policies, policies)
def test_policies_have_the_same_fingerprint_if_they_are_the_same(one: Policy, other: Policy) -> None:
    assert (one.fingerprint == other.fingerprint) == (one == other)


@given(policies, st.integers(1, 6), st.timedeltas(timedelta(0), timedelta(days=3)))
def test_a_round_goes_page_by_page_and_rests_until_the_next_is_due(
    policy: Policy, pages: int, rest: timedelta
) -> None:
    cursor = next_round(PurgeCursor(), policy, now=NOW)
    assert cursor is not None
    assert cursor.settled_at is None, "the first round examines everything"
    for page in range(1, pages + 1):
        cursor = advance(cursor, "" if page == pages else f"tasks/{page}", token=str(page), purged=1)
        if page < pages:
            assert next_round(cursor, policy, now=NOW + rest) == cursor
    assert (cursor.settled_at, cursor.full_at, cursor.purged) == (NOW, NOW, pages)
    following = next_round(cursor, policy, now=NOW + rest)
    assert (following is None) == (rest < ROUND_EVERY)
    forced = next_round(cursor, policy, now=NOW + rest, at_once=True)
    assert forced is not None
    assert forced.settled_at == NOW


@given(policies, policies)
def test_a_new_policy_begins_a_round_that_examines_everything(one: Policy, other: Policy) -> None:
    cursor = next_round(PurgeCursor(), one, now=NOW)
    assert cursor is not None
    midway = advance(cursor, "tasks/5", token="t", purged=0)
    following = next_round(midway, other, now=NOW)
    assert following is not None
    if one != other:
        assert (following.after, following.settled_at, following.full) == ("", None, True)


def test_now_and_then_a_round_examines_everything_again() -> None:
    policy = Policy(Keep(completed=timedelta(days=1)))
    cursor = PurgeCursor(policy=policy.fingerprint, started_at=NOW, settled_at=NOW, full_at=NOW)
    for days, full in ((1, False), (FULL_EVERY.days, True)):
        following = next_round(cursor, policy, now=NOW + timedelta(days=days))
        assert following is not None
        assert (following.full, following.settled_at is None) == (full, full)


def test_an_old_or_empty_cursor_can_be_read() -> None:
    assert msgspec.json.decode(b"{}", type=PurgeCursor) == PurgeCursor()


@given(
    st.floats(1, 10_000), st.lists(st.tuples(st.floats(0, 100), st.integers(1, 2_000)), min_size=1, max_size=40)
)
def test_an_allowance_is_kept_but_for_its_last_page(per_minute: float, steps: list[tuple[float, int]]) -> None:
    allowance, now_s, spent = Allowance(per_minute), 0.0, 0
    for gap_s, requests in steps:
        now_s += gap_s
        if allowance.is_open(now_s):
            assert spent <= per_minute * (1 + now_s / 60) + 1e-6
            allowance.spend(requests)
            spent += requests
    later_s = now_s + allowance.opens_in_s
    assert allowance.is_open(later_s)
