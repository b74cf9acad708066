"""Who polls which shards: the plan is fair and complete, a lease has one holder, and blocks hold what they should."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qo.core import keys
from qo.core.discovery import Due
from qo.core.ownership import (
    Acquire,
    Release,
    ShardLease,
    Within,
    blocks,
    decide_lease,
    is_overdue,
    left_over,
    plan,
    unit_of,
    units,
)
from qo.core.shard import all_shards

pytestmark = pytest.mark.fast

CALM = settings(deadline=None)  # A slow machine is not a broken law.
NOW = datetime(2026, 1, 1, tzinfo=UTC)

prefix_lens = st.integers(1, 4)
crowds = st.lists(st.text("abcdef0123", min_size=1, max_size=6), min_size=1, max_size=300, unique=True).map(sorted)
caps = st.integers(1, 300)


# The plan


@CALM
@given(crowds, prefix_lens, caps)
def test_no_unit_is_given_twice_and_none_is_forgotten(members: list[str], prefix_len: int, cap: int) -> None:
    leasable = units(prefix_len)
    planned = plan(members, leasable, cap)
    given_out = [unit for member in members for unit in planned[member]]
    assert [*given_out, *left_over(planned, leasable)] == list(leasable)


@CALM
@given(crowds, prefix_lens, caps)
def test_only_the_cap_leaves_units_over(members: list[str], prefix_len: int, cap: int) -> None:
    leasable = units(prefix_len)
    planned = plan(members, leasable, cap)
    assert all(len(given) <= cap for given in planned.values())
    if left_over(planned, leasable):
        assert all(len(given) == cap for given in planned.values())


@CALM
@given(crowds, prefix_lens, caps)
def test_everybody_has_as_many_as_the_others_or_one_more(members: list[str], prefix_len: int, cap: int) -> None:
    sizes = [len(given) for given in plan(members, units(prefix_len), cap).values()]
    assert max(sizes) - min(sizes) <= 1


@CALM
@given(crowds, prefix_lens, caps)
def test_everybody_has_one_block(members: list[str], prefix_len: int, cap: int) -> None:
    planned = plan(members, units(prefix_len), cap)
    assert all(len(blocks(given)) <= 1 for given in planned.values())


# What is leased, and how it is listed


@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
def test_every_shard_is_in_exactly_one_unit(prefix_len: int) -> None:
    leasable = units(prefix_len)
    assert len(leasable) <= 256
    assert {unit_of(shard) for shard in all_shards(prefix_len)} == set(leasable)


@CALM
@given(st.data())
def test_blocks_hold_exactly_their_units_between_start_and_end(data: st.DataObject) -> None:
    prefix_len = data.draw(prefix_lens)
    owned = data.draw(st.sets(st.sampled_from(units(prefix_len)), max_size=40))
    made, within = blocks(owned), Within(owned)
    for shard in data.draw(st.lists(st.sampled_from(all_shards(prefix_len)), max_size=50)):
        key = keys.index(keys.READY, shard, 29_000_000, "0" * 36)
        inside = [block for block in made if block.start(keys.READY) < key < block.end(keys.READY)]
        inside = [block for block in inside if key.startswith(keys.READY + block.common)]
        assert len(inside) == (unit_of(shard) in owned) == (shard in within)


@CALM
@given(st.sets(st.sampled_from(units(2))))
def test_neighbours_share_a_block(owned: set[str]) -> None:
    for left, right in pairwise(blocks(owned)):
        assert int(right.first, 16) > int(left.last, 16) + 1


# The lease

steps = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["acquire", "renew", "release", "forget"]),
        st.floats(0, 40),
    ),
    max_size=40,
)


@CALM
@given(steps)
def test_a_lease_changes_hands_only_when_it_was_given_back_or_has_run_out(
    history: list[tuple[str, str, float]],
) -> None:
    lease: ShardLease | None = None
    known: dict[str, frozenset[str]] = {}
    now = NOW
    for number, (worker, step, later_s) in enumerate(history):
        now += timedelta(seconds=later_s)
        token, mine = f"{number}", known.get(worker, frozenset())
        if step == "forget":
            known[worker] = frozenset()
            continue
        want = Release(token, mine) if step == "release" else Acquire(worker, token, 30.0, mine)
        decided = decide_lease("a", lease, want, now=now)
        if decided is None:
            continue
        if lease is not None and decided.worker_id != lease.worker_id:
            assert lease.lease_expires_at <= now
        if step == "release":
            assert lease is not None
            assert lease.token in mine
            assert decided.lease_expires_at <= now
        else:
            assert decided.lease_expires_at == now + timedelta(seconds=30)
        assert (decided.token, decided.updated_at) == (token, now)
        lease, known[worker] = decided, frozenset({token})


@CALM
@given(st.floats(-200, 200), st.floats(0, 400), st.floats(0, 300))
def test_what_is_overdue_was_due_and_listed_for_that_long(ahead_s: float, age_s: float, for_s: float) -> None:
    due_at = NOW + timedelta(seconds=ahead_s)
    assume(due_at <= NOW or keys.minute_of(due_at) > keys.minute_of(NOW))  # Within a minute nobody can tell.
    listed_at = NOW + timedelta(seconds=age_s)
    minute = keys.minute_of(due_at)
    due = Due("t", "k", "e", minute, listed_at, NOW, minute)
    if is_overdue(due, for_s):
        assert (listed_at - max(NOW, due_at)).total_seconds() >= for_s - 0.001
