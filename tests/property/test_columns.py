"""What may become of a dataset's columns from one commit to the next."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.columns import Column, Drift, Drifted, columns_hash, drift, refusal

pytestmark = pytest.mark.fast

type_names = st.sampled_from(["long", "string", "decimal(10,2)", "date"])
nested = st.recursive(
    type_names,
    lambda inner: st.builds(
        lambda element, null: {"type": "array", "elementType": element, "containsNull": null}, inner, st.booleans()
    ),
    max_leaves=3,
)
columns = st.lists(
    st.builds(Column, name=st.text("abAB", min_size=1, max_size=3), type=nested, nullable=st.booleans()),
    max_size=5,
    unique_by=lambda each: each.name.lower(),
)
policies = st.sampled_from(list(Drift))


def names(some: list[Column] | tuple[Column, ...]) -> set[str]:
    return {each.name.lower() for each in some}


@given(columns, policies, st.randoms())
def test_the_same_columns_in_any_order_and_case_are_no_change(
    known: list[Column], policy: Drift, random: Random
) -> None:
    again = [Column(name=each.name.swapcase(), type=each.type, nullable=not each.nullable) for each in known]
    random.shuffle(again)
    after = drift(known, again, policy)
    assert isinstance(after, Drifted)
    assert (list(after.columns), after.added) == (known, ())


@given(columns)
def test_where_nothing_is_known_anything_goes(new: list[Column]) -> None:
    for policy in Drift:
        assert drift([], new, policy) == Drifted(tuple(new), tuple(each.name for each in new))


@given(columns, columns, policies)
def test_what_was_there_stays_and_only_add_lets_columns_in(
    known: list[Column], new: list[Column], policy: Drift
) -> None:
    after = drift(known, new, policy)
    if isinstance(after, list):
        assert after
        return
    assert list(after.columns[: len(known)]) == known
    assert names(after.columns) == names(new)
    assert {each.lower() for each in after.added} == names(new) - names(known)
    if known and policy is Drift.FAIL:
        assert not after.added


@given(columns, columns, columns)
def test_writers_side_by_side_add_the_same_columns_in_any_order(
    known: list[Column], one: list[Column], other: list[Column]
) -> None:
    """Each has seen the columns that there were before both, and keeps them."""
    seen = len(known)

    def after(*writers: list[Column]) -> set[str] | None:
        now = list(known)
        for new in writers:
            kept = [*known, *(each for each in new if each.name.lower() not in names(known))]
            found = drift(now, kept, Drift.ADD, seen)
            if isinstance(found, list):
                return None
            now = list(found.columns)
        return names(now)

    assert after(one, other) == after(other, one)


@given(columns, columns)
def test_everything_that_is_wrong_is_said(known: list[Column], new: list[Column]) -> None:
    said = drift(known, new, Drift.FAIL)
    if not known:
        return
    told = "\n".join(said) if isinstance(said, list) else ""
    for each in known:
        if each.name.lower() not in names(new):
            assert f"column {each.name!r} is missing" in told
    for each in new:
        if each.name.lower() not in names(known):
            assert f"column {each.name!r} is new" in told


@given(columns, columns, columns)
def test_columns_that_were_added_can_not_be_left_out_again(
    known: list[Column], new: list[Column], later: list[Column]
) -> None:
    first = drift(known, new, Drift.ADD)
    if isinstance(first, list):
        return
    second = drift(first.columns, later, Drift.ADD)
    if isinstance(second, Drifted) and first.columns:
        assert names(first.columns) <= names(later)


@given(columns)
def test_a_name_that_stands_there_twice_is_refused(new: list[Column]) -> None:
    for each in new:
        twin = Column(name=each.name.swapcase(), type=each.type)
        assert isinstance(drift([], [*new, twin], Drift.ADD), list)


@given(columns, st.permutations(range(5)))
def test_the_hash_is_of_what_columns_are_not_of_their_order(some: list[Column], order: list[int]) -> None:
    shuffled = [some[at] for at in order if at < len(some)]
    loose = [Column(name=each.name, type=each.type, nullable=not each.nullable) for each in shuffled]
    assert columns_hash(loose) == columns_hash(some)
    for each in some:
        assert columns_hash([one for one in some if one is not each]) != columns_hash(some)


@given(known=columns, new=columns, policy=policies)
def test_to_add_columns_is_advised_where_it_would_help(
    known: list[Column], new: list[Column], policy: Drift
) -> None:
    wrong = drift(known, new, policy)
    if isinstance(wrong, list):
        advised = "drift: add" in refusal(known, new, policy, wrong)
        assert advised is isinstance(drift(known, new, Drift.ADD), Drifted)
