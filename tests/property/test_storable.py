"""What comes in can be kept: it is named where it cannot, or mended where only people read it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.api.contract import storable

pytestmark = pytest.mark.fast

texts = st.text(st.characters(exclude_categories=()), max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@given(values)
def test_what_is_fit_comes_back_as_it_was(value: Any) -> None:
    if storable.find_unstorable(value) is None:
        assert msgspec.json.decode(msgspec.json.encode(value)) == value
        assert storable.replace_unstorable(value) == value


@given(values, st.integers(0, 3 * storable.DEPTH_MAX))
def test_what_is_mended_is_fit(value: Any, depth: int) -> None:
    for _ in range(depth):
        value = [value]
    assert storable.find_unstorable(storable.replace_unstorable(value)) is None


def test_a_message_names_the_place_and_holds_nothing_unfit() -> None:
    found = storable.find_unstorable({"a": [{"b\ud800": 1}, "\0"]})
    assert found is not None
    assert storable.is_storable(found)
    assert found.startswith("a name in a.0")
