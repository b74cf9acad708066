"""Laws of columns and expectations: what may change, what does not, and that what is said survives being carried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.columns import Column, Drift, Drifted, columns_hash, drift
from qo.core.pipeline.expectation import KINDS, Expectation, parse_expectations

pytestmark = pytest.mark.fast

names = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
types = st.sampled_from(["string", "long", "decimal(10,2)", {"type": "array", "elementType": "string"}])
columns = st.lists(
    st.builds(Column, name=names, type=types, nullable=st.booleans()),
    unique_by=lambda each: each.name.lower(),
    max_size=5,
)
numbers = st.integers(-(2**53), 2**53)
said: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"not_null": st.lists(names, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"unique": st.lists(names, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"range": st.fixed_dictionaries({"column": names, "min": numbers | names})}),
    st.fixed_dictionaries(
        {"accepted": st.fixed_dictionaries({"column": names, "values": st.lists(names, min_size=1)})}
    ),
    st.fixed_dictionaries({"rows": st.fixed_dictionaries({"min": st.integers(0, 2**53)})}),
    st.fixed_dictionaries({"sql": names}),
)


@given(known=columns, policy=st.sampled_from(Drift))
def test_the_same_columns_never_drift(known: list[Column], policy: Drift) -> None:
    assert drift(known, known[::-1], policy) == Drifted(tuple(known) if known else ())


@given(known=columns, new=columns)
def test_what_may_not_change_stays_and_what_may_only_grows(known: list[Column], new: list[Column]) -> None:
    strict, lenient = drift(known, new, Drift.FAIL), drift(known, new, Drift.ADD)
    if isinstance(lenient, Drifted):
        assert lenient.columns[: len(known)] == tuple(known)
        assert {each.name.lower() for each in new} == {each.name.lower() for each in lenient.columns}
    if isinstance(strict, Drifted):
        assert strict == lenient
        assert known == [] or strict.added == ()


@given(known=columns, new=columns)
def test_columns_that_were_added_are_known_from_then_on(known: list[Column], new: list[Column]) -> None:
    once = drift(known, new, Drift.ADD)
    if isinstance(once, Drifted):
        assert drift(once.columns, new, Drift.FAIL) == Drifted(once.columns)


@given(known=columns, shuffled=st.randoms(use_true_random=False))
def test_columns_are_known_by_what_they_are_not_by_their_order(known: list[Column], shuffled: Any) -> None:
    other = list(known)
    shuffled.shuffle(other)
    assert columns_hash(other) == columns_hash(known)


@given(document=said)
def test_an_expectation_is_what_it_was_after_being_carried(document: dict[str, Any]) -> None:
    [found] = parse_expectations([document])
    assert parse_expectations([msgspec.to_builtins(found)]) == [found]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Expectation) == found
    assert found.kind in KINDS
    assert found.title.startswith(found.kind)
