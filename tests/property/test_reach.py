"""The reach of an attempt: it always opens what the attempt reads, never more than its inputs, and fits a policy."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.policy import POLICY_MAX, Prefix, encode_policy
from qo.core.pipeline.reach import (
    Reach,
    common_directories,
    declared_prefix,
    fit_reach,
    foreign_prefix,
)
from qo.errors import UsageError

UNTIL = datetime(2026, 1, 1, tzinfo=UTC)
ROOT = "s3://lake/root"
names = st.sampled_from("abcd")
uuids = st.integers(0, 15).map(lambda at: f"{at:08x}-6b85-57d9-b8db-6dea73e39ce0")


@st.composite
def reaches(draw: st.DrawFn) -> Reach:
    """As the dispatcher makes them: pieces, their generations, their datasets."""
    parts = draw(st.lists(st.tuples(uuids, uuids, uuids), max_size=30))
    write = (Prefix("lake", f"root/{draw(uuids)}/{draw(uuids)}/{draw(uuids)}/1/"),)
    readings = [
        tuple(sorted({Prefix("lake", "root/" + "".join(f"{name}/" for name in each[:depth])) for each in parts}))
        for depth in (3, 2, 1)
    ]
    return Reach(write, tuple(readings))


@given(reach=reaches())
def test_every_piece_is_covered_and_nothing_outside_the_datasets_is(reach: Reach) -> None:
    try:
        fitted = fit_reach(reach, until=UNTIL)
    except UsageError:
        assert len(reach.readings[-1]) > 8
        return
    for piece in reach.readings[0]:
        assert any(each.covers(piece) for each in fitted.read)
    for each in fitted.read:
        assert any(dataset.covers(each) for dataset in reach.readings[-1])
    assert fitted.write == reach.write
    assert len(encode_policy(fitted.policy)) <= POLICY_MAX


@given(reach=reaches())
def test_few_pieces_are_opened_exactly(reach: Reach) -> None:
    if len(reach.readings[0]) <= 2:
        assert fit_reach(reach, until=UNTIL).read == reach.readings[0]


@given(keys=st.lists(st.lists(names, min_size=1, max_size=4), min_size=1, max_size=20), limit=st.integers(0, 4))
def test_common_directories_cover_all_and_never_split_a_name(keys: list[list[str]], limit: int) -> None:
    prefixes = [Prefix("landing", "".join(f"{each}/" for each in key)) for key in keys]
    found = common_directories(prefixes, limit)
    assert all(any(each.covers(one) for each in found) for one in prefixes)
    assert all(each.key == "" or each.key.endswith("/") for each in found)


@pytest.mark.parametrize(
    ("location", "opened"),
    [
        ("s3://landing/orders/", "s3://landing/orders/"),
        ("s3://landing", "s3://landing/"),
        ("s3://lake/inbox", "s3://lake/inbox/"),
        ("s3://lake", None),  # The data root lies in it.
        ("s3://lake/root", None),
        ("s3://lake/root/other/generation", None),
        ("s3://lake/root-beside", "s3://lake/root-beside/"),
        ("file:/srv/landing", None),
        ("https://example.org/a", None),
    ],
)
def test_a_place_outside_is_opened_unless_it_touches_the_data(location: str, opened: str | None) -> None:
    found = foreign_prefix(location, ROOT)
    assert (None if found is None else str(found)) == opened


@pytest.mark.parametrize(
    ("place", "directory"),
    [
        ("s3://landing/orders/{partition_key}/*.csv", "s3://landing/orders"),
        ("s3://landing/orders-*.csv", "s3://landing"),
        ("s3://landing/orders", "s3://landing/orders"),
    ],
)
def test_a_declared_place_is_opened_up_to_its_first_pattern(place: str, directory: str) -> None:
    assert declared_prefix(place) == directory
