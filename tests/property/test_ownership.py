"""Who lists which shards: the plan is fair and complete, a unit has one owner, and blocks hold what they should."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from qo.core import keys
from qo.core.discovery import Due
from qo.core.ownership import (
    Member,
    ShardPlan,
    Tenure,
    Within,
    adopt,
    blocks,
    is_overdue,
    left_over,
    owned_units,
    relied_until,
    replan,
    share_units,
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

TTL_S = 30.0


def planned(
    old: ShardPlan | None, members: list[str], prefix_len: int, cap: int, *, shown: int = 0, after_s: float = 0.0
) -> ShardPlan:
    wanted = [Member(member, cap, TTL_S) for member in members]
    now = NOW + timedelta(seconds=after_s)
    made = replan(old, wanted, units(prefix_len), shown_number=shown, now=now, token="t")
    assert made is not None
    return made


def owners(plan: ShardPlan) -> dict[str, str]:
    owned = [(unit, grant.worker_id) for grant in plan.grants for unit in grant.units]
    assert len(owned) == len(dict(owned)), "no unit is granted twice"
    return dict(owned)


@CALM
@given(st.lists(crowds, min_size=1, max_size=4), prefix_lens, caps)
def test_after_any_changes_the_plan_is_fair_and_only_the_cap_leaves_units_over(
    histories: list[list[str]], prefix_len: int, cap: int
) -> None:
    plan: ShardPlan | None = None
    for members in histories:
        plan = planned(plan, members, prefix_len, cap)
        assert sorted(plan.members) == members
        sizes = {member: 0 for member in members} | Counter(owners(plan).values())
        assert max(sizes.values()) - min(sizes.values()) <= 1
        assert max(sizes.values()) <= cap
        over = left_over(plan, units(prefix_len))
        assert len(over) + sum(sizes.values()) == len(units(prefix_len))
        assert not over or set(sizes.values()) == {cap}
        mine = {member: {unit for unit, owner in owners(plan).items() if owner == member} for member in members}
        assert all(len(blocks(given)) <= 1 for given in mine.values()), "each has one block"


@CALM
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 300), min_size=1), prefix_lens)
def test_members_have_as_much_as_the_others_within_their_caps(members: dict[str, int], prefix_len: int) -> None:
    sizes = {member: len(owned) for member, owned in share_units(members, units(prefix_len)).items()}
    most = max(sizes.values())
    assert all(size >= most - 1 or size == members[member] for member, size in sizes.items())


@CALM
@given(crowds, crowds, prefix_lens, caps)
def test_what_a_worker_keeps_keeps_its_grant_and_what_is_new_is_a_new_one(
    before: list[str], after: list[str], prefix_len: int, cap: int
) -> None:
    old = planned(None, before, prefix_len, cap)
    new = planned(old, after, prefix_len, cap)
    had = owners(old)
    for grant in new.grants:
        for unit in grant.units:
            assert grant.number == (old.number if had.get(unit) == grant.worker_id else new.number)
    if before == after:
        assert new is old


@CALM
@given(crowds, prefix_lens, caps, st.integers(1, 100))
def test_a_plan_that_the_board_has_passed_says_nothing(
    members: list[str], prefix_len: int, cap: int, ahead: int
) -> None:
    old = planned(None, members, prefix_len, cap)
    for lost in (old, None):
        new = planned(lost, members, prefix_len, cap, shown=old.number + ahead)
        assert new.number > old.number + ahead
        assert {grant.number for grant in new.grants} == {new.number}


@CALM
@given(st.data())
def test_who_takes_the_place_of_another_moves_nobody_else(data: st.DataObject) -> None:
    members = data.draw(crowds)
    gone, new = data.draw(st.sampled_from(members)), "x"
    old = planned(None, members, 2, data.draw(caps))
    changed = planned(old, sorted([*(set(members) - {gone}), new]), 2, 300 if not old.grants else data.draw(caps))
    assert changed.members == [new if member == gone else member for member in old.members]


def test_a_ttl_grows_at_once_and_shrinks_once_nobody_can_rely_on_the_longer_one() -> None:
    def with_ttl(old: ShardPlan | None, ttl_s: float, at_s: float) -> ShardPlan:
        now = NOW + timedelta(seconds=at_s)
        made = replan(old, [Member("a", 16, ttl_s)], units(1), shown_number=0, now=now, token="t")
        assert made is not None
        return made

    plan = with_ttl(None, 30, 0)
    plan = with_ttl(plan, 60, 10)
    assert (plan.ttl_s, plan.wait_s) == (60, 60)
    assert with_ttl(plan, 20, 40) is plan
    plan = with_ttl(plan, 20, 130)
    assert (plan.ttl_s, plan.wait_s) == (20, 60)


# Owning

moves = st.lists(
    st.tuples(st.sampled_from(["plan", "send", "hear", "wait"]), st.integers(0, 3), st.floats(0, 40)), max_size=60
)


@CALM
@given(moves)
def test_no_unit_ever_has_two_owners(history: list[tuple[str, int, float]]) -> None:
    """Workers read the board now and then. Answers take their time; the plan changes whenever it likes."""
    names = ["a", "b", "c", "d"]
    plan, now = planned(None, names, 1, 16), 0.0
    tenures: dict[str, Tenure] = {}
    shown_at = dict.fromkeys(names, float("-inf"))
    asked: dict[str, tuple[float, ShardPlan]] = {}  # When, and what the store answers.
    for what, which, seconds in history:
        name = names[which]
        if what == "plan":
            plan = planned(
                plan, [each for n, each in enumerate(names) if n == which or int(seconds) >> n & 1], 1, 16
            )
        elif what == "send":
            asked.setdefault(name, (now, plan))
        elif what == "hear" and name in asked:
            sent_at, shown = asked.pop(name)
            tenure = tenures.get(name)
            if tenure is None or tenure.plan.number != shown.number:
                tenures[name] = adopt(tenure, shown, name, at=now)
            shown_at[name] = sent_at
        elif what == "wait":
            now += seconds
        owned = [
            unit
            for each, tenure in tenures.items()
            for unit in owned_units(tenure, each, shown_at=shown_at[each], now=now)
        ]
        assert len(owned) == len(set(owned))


def test_a_grant_is_owned_after_the_wait_and_as_long_as_the_board_is_read() -> None:
    plan = planned(None, ["a"], 1, 16)
    tenure = adopt(None, plan, "a", at=100.0)

    def owned(shown_at: float, now: float) -> int:
        return len(owned_units(tenure, "a", shown_at=shown_at, now=now))

    assert owned(120.0, 129.9) == 0
    assert owned(120.0, 130.0) == 16
    until = relied_until(tenure, 120.0)
    assert 120 + TTL_S - 1 <= until < 120 + TTL_S
    assert owned(120.0, until) == 0
    assert owned(until, until) == 16, "nobody else has been granted it meanwhile"


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


# Late tasks


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
