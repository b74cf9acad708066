"""Rounds of the sweeper: what changed is read, what has ended is not, and a broken round settles nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.retention import Keep, Policy, PurgeCursor, next_round
from qo.core.sweep import (
    DATING_ERROR,
    FULL_EVERY,
    ROUND_S,
    SweepCursor,
    drop_future,
    finish_page,
    needs_reading,
    pages_per_sweep,
    pass_page,
    take_page,
)

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def sweep_round(cursor: SweepCursor, at: datetime, fates: list[bool]) -> SweepCursor:
    """A round of so many pages; a page whose fate is False dies with its sweeper."""
    for number, survives in enumerate(fates, start=1):
        cursor = take_page(cursor, now=at)
        after = "" if number == len(fates) else f"tasks/{number:04d}"
        cursor = pass_page(cursor, after, now=at, token="t")
        if survives:
            cursor = finish_page(cursor, token="u")
    return cursor


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_only_a_round_whose_pages_were_all_finished_settles_anything(fates: list[bool]) -> None:
    cursor = sweep_round(SweepCursor(), NOW, fates)
    assert cursor.rounds == 1
    assert cursor.pages == len(fates)
    assert cursor.settled_at == (NOW if all(fates) else None)
    assert take_page(cursor, now=NOW + timedelta(hours=1)).full == (not all(fates))


@given(st.timedeltas(timedelta(days=-5), timedelta(days=5)), st.timedeltas(-DATING_ERROR, DATING_ERROR))
def test_what_changed_after_a_settled_round_began_is_read_and_older_is_not(
    offset: timedelta, error: timedelta
) -> None:
    settled = sweep_round(SweepCursor(), NOW, [True, True])
    cursor = take_page(settled, now=NOW + timedelta(hours=1))
    changed_at = NOW + offset
    if changed_at >= NOW:
        assert needs_reading(cursor, changed_at + error)
    if changed_at < NOW - 2 * DATING_ERROR:
        assert not needs_reading(cursor, changed_at)


@given(st.lists(st.timedeltas(timedelta(hours=1), timedelta(days=9)), min_size=1, max_size=20))
def test_all_tasks_are_read_again_after_a_month(gaps: list[timedelta]) -> None:
    cursor, at, full_at = SweepCursor(), NOW, NOW
    for gap in gaps:
        cursor = sweep_round(cursor, at, [True])
        at += gap
        planned = take_page(cursor, now=at)
        assert planned.full == (at - full_at >= FULL_EVERY)
        full_at = at if planned.full else full_at


@given(st.integers(0, 20_000), st.floats(1, 3_600))
def test_a_round_takes_no_longer_than_a_day_however_many_pages_there_are(pages: int, interval_s: float) -> None:
    cursor = SweepCursor(pages=pages, full=False, settled_at=NOW, full_at=NOW)
    sweeps = -(-pages // pages_per_sweep(cursor, interval_s))
    assert (sweeps - 1) * interval_s <= ROUND_S


def test_a_cursor_of_an_earlier_version_can_be_read() -> None:
    old = b'{"after":"tasks/3/x.json","token":"t","moved_at":"2026-01-01T00:00:00Z","rounds":7}'
    cursor = msgspec.json.decode(old, type=SweepCursor)
    assert (cursor.rounds, cursor.full, cursor.settled_at) == (7, True, None)
    ended = finish_page(pass_page(take_page(cursor, now=NOW), "", now=NOW, token="u"), token="v")
    assert ended.settled_at is None, "nobody knows how the round began"


@given(st.timedeltas(2 * DATING_ERROR, timedelta(days=4000)), st.lists(st.booleans(), min_size=1, max_size=3))
def test_a_round_by_a_clock_that_was_ahead_stops_no_later_one(ahead: timedelta, fates: list[bool]) -> None:
    wrong = sweep_round(SweepCursor(), NOW + ahead, fates)
    cursor = drop_future(wrong, now=NOW)
    assert cursor.moved_at is None
    planned = take_page(cursor, now=NOW)
    assert planned.full
    assert drop_future(sweep_round(cursor, NOW, [True]), now=NOW) == sweep_round(cursor, NOW, [True])
    wrong_purge = PurgeCursor(policy=Policy(Keep()).fingerprint, started_at=NOW + ahead, full_at=NOW + ahead)
    current = next_round(drop_future(wrong_purge, now=NOW), Policy(Keep()), now=NOW)
    assert current is not None
    assert (current.full, current.started_at) == (True, NOW)
