"""Direct dispatch: every routing names a worker that is there, one worker owns an inbox, and nothing waits in one for
ever."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.ambient import Ambient
from qo.core import keys
from qo.core.dispatch import (
    LEASE_BEATS,
    OFFERS_MAX,
    OFFERS_MIN,
    InboxOwner,
    Routing,
    choose_owner,
    is_routable,
    lease_s,
    may_own,
    next_offers,
)
from qo.core.task import Flow, Task

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, tzinfo=UTC)
AMBIENT = Ambient.seeded(3)
IDS = [AMBIENT.task_id() for _ in range(300)]

worker_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True)
owners = st.lists(worker_ids, min_size=1, max_size=8, unique=True)
task_ids = st.sampled_from(IDS)
chances = st.floats(0, 1, exclude_max=True)
minutes = st.integers(0, 10**9)


@given(owners, st.sampled_from(Routing), task_ids, st.integers(0, 10**6), chances)
def test_a_task_is_routed_to_one_of_the_workers_in_whatever_order_they_are_known(
    able: list[str], routing: Routing, task_id: str, turn: int, chance: float
) -> None:
    chosen = choose_owner(able, routing, task_id=task_id, turn=turn, chance=chance)
    assert chosen in able
    assert chosen == choose_owner(able[::-1], routing, task_id=task_id, turn=turn, chance=chance)
    assert choose_owner([], routing, task_id=task_id, turn=turn, chance=chance) is None


@given(owners, st.integers(0, 10**6))
def test_round_robin_gives_each_worker_the_same_number(able: list[str], start: int) -> None:
    turns = range(start, start + 3 * len(able))
    chosen = Counter(choose_owner(able, Routing.ROUND_ROBIN, task_id="", turn=turn, chance=0.0) for turn in turns)
    assert chosen == dict.fromkeys(able, 3)


@given(owners, st.data())
def test_by_hash_only_the_tasks_of_a_worker_that_leaves_go_elsewhere(able: list[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(able))
    left = [each for each in able if each != gone]
    for task_id in IDS[:20]:
        before = choose_owner(able, Routing.HASH, task_id=task_id, turn=0, chance=0.0)
        after = choose_owner(left, Routing.HASH, task_id=task_id, turn=9, chance=0.9)
        assert after == before or before == gone


def test_a_hash_spreads_tasks_evenly() -> None:
    able = [f"worker-{n}" for n in range(4)]
    chosen = Counter(choose_owner(able, Routing.HASH, task_id=each, turn=0, chance=0.0) for each in IDS)
    assert all(count >= len(IDS) / 8 for count in chosen.values())
    assert len(chosen) == len(able)


def made_task(due_in_s: float, flow: Flow | None = None) -> Task:
    due = NOW + timedelta(seconds=due_in_s)
    return Task(
        id=IDS[0], task_type="t", shard="0", token="t", available_at=due, created_at=NOW, updated_at=NOW, flow=flow
    )


@given(st.floats(0.001, 10**6))
def test_only_a_task_that_can_be_claimed_now_is_routed(delay_s: float) -> None:
    assert is_routable(made_task(0.0))
    assert not is_routable(made_task(delay_s))
    assert not is_routable(made_task(0.0, Flow(waits_for=("d",))))


tokens = st.sampled_from(["a", "b", "c"])
untils = st.none() | st.integers(-100, 100).map(lambda s: NOW + timedelta(seconds=s))


@given(st.builds(InboxOwner, tokens, untils), st.frozensets(tokens))
def test_an_inbox_is_taken_over_only_if_its_lease_has_run_out_or_is_ours(
    stored: InboxOwner, ours: frozenset[str]
) -> None:
    live = stored.until is not None and stored.until > NOW
    assert may_own(stored, ours, now=NOW) == (not live or stored.token in ours)
    assert may_own(stored, ours, now=NOW, is_abandoned=True)
    assert may_own(None, ours, now=NOW)


@given(st.floats(0.1, 3600))
def test_a_heartbeat_may_be_missed_without_losing_the_inbox(heartbeat_s: float) -> None:
    assert lease_s(heartbeat_s) >= LEASE_BEATS * heartbeat_s


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_some_tasks_are_offered_in_every_round_and_more_only_while_they_are_taken(ready: list[int]) -> None:
    last = 0
    for waiting in ready:
        offers = next_offers(last, waiting)
        assert OFFERS_MIN <= offers <= OFFERS_MAX
        assert offers == OFFERS_MIN if waiting else offers >= last or offers == OFFERS_MAX
        last = offers


@given(worker_ids, minutes, task_ids)
def test_a_key_of_an_inbox_is_read_as_it_was_written_and_as_no_other_key(
    worker_id: str, minute: int, task_id: str
) -> None:
    key = keys.inbox_key(worker_id, minute, task_id)
    assert keys.parse_inbox(key) == (worker_id, minute, task_id)
    assert keys.parse_index(key) is None, "a worker may be called as a shard is"
    assert keys.parse_inbox(keys.index(keys.READY, "a", minute, task_id)) is None
    assert keys.is_claimable_hint(key)


@given(worker_ids, minutes, minutes)
def test_an_inbox_lists_its_oldest_and_most_urgent_tasks_first(worker_id: str, one: int, other: int) -> None:
    first, second = keys.inbox_key(worker_id, one, IDS[0]), keys.inbox_key(worker_id, other, IDS[0])
    assert (first < second) == (one < other)
