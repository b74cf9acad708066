"""Names become keys: always valid, always the same, never shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.event import PARTITION_KEY
from qo.core.pipeline.naming import KEY_MAX, idempotency_key, partition_key

pytestmark = pytest.mark.fast

plain = st.text("abc-/_ :.", min_size=1, max_size=12)
names = st.one_of(st.text(min_size=1, max_size=300), plain)


@given(name=names)
def test_every_name_has_a_valid_key(name: str) -> None:
    assert PARTITION_KEY.match(partition_key(name))


@given(one=names, other=names)
def test_different_names_have_different_keys(one: str, other: str) -> None:
    assert (partition_key(one) == partition_key(other)) == (one == other)


@given(name=names)
def test_a_name_that_is_another_ones_key_gets_a_key_of_its_own(name: str) -> None:
    key = partition_key(name)
    assert key == name or partition_key(key) != key


def test_a_name_that_can_be_a_key_is_its_own() -> None:
    assert partition_key("orders-2024.csv") == "orders-2024.csv"
    assert partition_key("2024/01/a b.csv").startswith("2024-01-a-b.csv-")


@given(one=st.lists(plain, min_size=1, max_size=3), other=st.lists(plain, min_size=1, max_size=3))
def test_different_parts_have_different_idempotency_keys(one: list[str], other: list[str]) -> None:
    assert (idempotency_key("k", *one) == idempotency_key("k", *other)) == (one == other)


@given(parts=st.lists(names, min_size=1, max_size=3))
def test_idempotency_keys_fit_their_column(parts: list[str]) -> None:
    assert len(idempotency_key("file", *parts)) <= KEY_MAX
