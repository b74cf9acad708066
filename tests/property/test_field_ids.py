"""Field ids of columns: the same everywhere, within Iceberg's range, and never shared within a schema."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.field_ids import FIELD_ID_MAX, FIELD_ID_MIN, assign_field_ids, field_id

ICEBERG_ID_MAX = 2_147_483_447
PARTITION_FIELD_IDS = range(1000, 2000)


@given(st.text())
def test_an_id_is_one_that_iceberg_takes_and_no_partition_field_has(path: str) -> None:
    assert FIELD_ID_MIN <= field_id(path) <= FIELD_ID_MAX < ICEBERG_ID_MAX
    assert field_id(path) not in PARTITION_FIELD_IDS


@given(st.text())
def test_upper_and_lower_case_have_the_same_id(path: str) -> None:
    assert field_id(path) == field_id(path.lower())


@pytest.mark.parametrize(
    ("path", "number"), [("id", 1771569196), ("Carrier", 1232038468), ("größe", 28315509), ("a.b", 788176686)]
)
def test_ids_never_change_from_one_release_to_the_next(path: str, number: int) -> None:
    assert field_id(path) == number


@given(st.lists(st.text(max_size=8), max_size=40))
def test_a_schema_has_distinct_ids_or_none(paths: list[str]) -> None:
    ids = assign_field_ids(paths)
    if ids is None:
        assert len({field_id(each) for each in set(paths)}) < len(set(paths))
    else:
        assert ids == {each: field_id(each) for each in paths}
        assert len(set(ids.values())) == len(ids)


def test_names_that_differ_by_case_alone_leave_a_schema_without_ids() -> None:
    assert assign_field_ids(["id", "ID"]) is None
