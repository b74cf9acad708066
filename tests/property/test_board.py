"""The board: notices are followed by few and missed by nobody, workers are counted, and one lookout is enough."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.board import (
    BATCH_MAX,
    CREW_MAX,
    FIRST_READERS,
    NOTICES_MAX,
    OLD_AFTER,
    PREFERRED,
    WATCH_TTL_MAX_S,
    Board,
    Notice,
    Rank,
    Reader,
    announce,
    count_workers,
    decode_board,
    drop_old,
    due_from,
    has_missed,
    is_watched,
    post,
    rank_of,
    rest_max_s,
    sign_off,
    sign_on,
    take_watch,
)
from qo.errors import CorruptRecord

pytestmark = pytest.mark.fast

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AMBIENT = Ambient.seeded(7)
IDS = [AMBIENT.task_id() for _ in range(40)]

task_ids = st.sampled_from(IDS)
moments = st.integers(-600, 600).map(lambda s: NOW + timedelta(seconds=s))


def made_notice(task: str, minute: int, due: datetime, at: datetime) -> Notice:
    return Notice(task=task, hint=keys.index(keys.READY, task[:1], minute, task), due=due, at=at, etag='"e"')


notices = st.builds(made_notice, task=task_ids, minute=st.integers(0, 10**9), due=moments, at=moments)
batches = st.lists(notices, max_size=BATCH_MAX + 10)
worker_ids = st.sampled_from([f"w{n}" for n in range(6)])


def played(history: list[list[Notice]]) -> list[Board]:
    """The board after each batch, from the empty one on."""
    boards = [Board()]
    for batch in history:
        boards.append(post(boards[-1], batch, now=NOW))
    return boards


@given(st.lists(batches, max_size=20), st.data())
def test_a_reader_that_missed_nothing_has_read_the_latest_notice_of_every_task(
    history: list[list[Notice]], data: st.DataObject
) -> None:
    boards = played(history)
    before = data.draw(st.integers(0, len(boards) - 1))
    known, board = boards[before].sequence, boards[-1]
    posted = {notice.task for batch in history[before:] for notice in batch}
    if not has_missed(board, known):
        assert posted <= {notice.task for notice in board.notices if notice.number > known}


@given(st.lists(batches, max_size=20))
def test_a_board_stays_small_and_its_numbers_grow(history: list[list[Notice]]) -> None:
    boards = played(history)
    for before, after in pairwise(boards):
        assert after.sequence >= before.sequence
        assert after.floor >= before.floor
    numbers = [notice.number for notice in boards[-1].notices]
    assert numbers == sorted(set(numbers))
    assert len(numbers) <= NOTICES_MAX
    assert all(number <= boards[-1].sequence for number in numbers)
    assert sum(len(batch) for batch in history) == boards[-1].sequence
    assert len(wire.encode(boards[-1])) < 20_000


@given(st.lists(batches, max_size=5), st.integers(1, 1000))
def test_tasks_that_are_announced_without_a_name_are_missed_by_everybody(
    history: list[list[Notice]], count: int
) -> None:
    board = played(history)[-1]
    assert has_missed(announce(board, count), board.sequence)
    assert not has_missed(board, board.sequence)


@given(st.lists(batches, max_size=5), st.integers(0, 1200))
def test_what_is_old_goes_and_who_has_not_read_it_has_missed_it(history: list[list[Notice]], later_s: int) -> None:
    board = played(history)[-1]
    now = NOW + timedelta(seconds=later_s)
    trimmed = drop_old(board, now=now)
    gone = [notice for notice in board.notices if notice not in trimmed.notices]
    assert all(max(notice.at, notice.due) <= now - OLD_AFTER for notice in gone)
    for notice in gone:
        assert has_missed(trimmed, notice.number - 1)
    assert not has_missed(trimmed, board.sequence)


@given(st.lists(batches, max_size=5), st.lists(worker_ids), st.none() | worker_ids)
def test_a_board_survives_the_wire(history: list[list[Notice]], crew: list[str], watch: str | None) -> None:
    board = count_workers(played(history)[-1], crew)
    if watch is not None:
        board = take_watch(board, watch, Rank.WORKER, now=NOW) or board
    assert decode_board(wire.encode(board)) == board


@given(st.binary(max_size=200))
def test_garbage_is_a_corrupt_record_and_nothing_worse(body: bytes) -> None:
    with suppress(CorruptRecord):
        decode_board(body)


@given(st.text(max_size=40))
def test_a_notice_that_names_no_task_is_dropped_when_it_is_read(name: str) -> None:
    board = post(Board(), [made_notice(name, 1, NOW, NOW)], now=NOW)
    assert [notice.task for notice in decode_board(wire.encode(board)).notices] == [name] * (name in IDS)


def test_a_board_with_more_entries_than_anybody_writes_is_refused() -> None:
    crowd = [made_notice(IDS[0], 1, NOW, NOW)] * 1000
    with pytest.raises(CorruptRecord, match="more entries"):
        decode_board(wire.encode(Board(notices=crowd)))


@given(notices)
def test_a_notice_leads_to_the_hint_that_it_was_posted_for(notice: Notice) -> None:
    due = due_from(notice)
    parsed = keys.parse_index(due.key)
    assert parsed is not None
    assert (parsed.task_id, parsed.minute, parsed.due_minute) == (notice.task, due.minute, due.due_minute)


@given(notices, st.sampled_from(["", "tasks/a", "leases/0/0000000001/", "ready/0/0000000001/"]), task_ids)
def test_a_notice_that_leads_elsewhere_is_dropped_when_it_is_read(notice: Notice, prefix: str, other: str) -> None:
    forged = replace(notice, hint=f"{prefix}{other}")
    read = decode_board(wire.encode(Board(notices=[forged]))).notices
    assert read == [forged] * (prefix.startswith(keys.READY) and other == notice.task)


# Who follows a notice


@pytest.mark.parametrize("workers", [1, 4, 10, 50, 500])
def test_about_as_many_follow_a_notice_as_should(workers: int) -> None:
    rest_s = rest_max_s(workers, 5.0)
    readers = [Reader(f"w{n}", workers, rest_s) for n in range(workers)]
    rng, tries = Ambient.seeded(workers).rng, 0
    for task in (AMBIENT.task_id() for _ in range(200)):
        notice = made_notice(task, 1, NOW, NOW)
        for reader in readers:
            first_read = NOW + timedelta(seconds=rng.uniform(0, rest_s))
            tries += reader.follows(notice, first_read)
    assert tries / 200 == pytest.approx(min(workers, FIRST_READERS + PREFERRED), rel=0.25)


@given(notices, worker_ids, st.integers(1, 3))
def test_few_workers_all_follow_whatever_they_read(notice: Notice, worker_id: str, workers: int) -> None:
    reader = Reader(worker_id, workers, rest_max_s(workers, 5.0))
    posted_at = max(notice.at, notice.due)
    assert reader.follows(notice, posted_at + timedelta(seconds=reader.rest_s))


@given(st.integers(0, 10_000), st.floats(0.01, 60))
def test_the_fewer_the_workers_the_shorter_the_rest(workers: int, configured_s: float) -> None:
    rest_s = rest_max_s(workers, configured_s)
    assert rest_s <= min(configured_s, max(1.0, 0.1 * workers))
    assert rest_s <= rest_max_s(workers + 1, configured_s)


# Workers


@given(st.lists(st.tuples(worker_ids, st.booleans()), max_size=30))
def test_workers_that_sign_on_and_off_are_counted_once(history: list[tuple[str, bool]]) -> None:
    board, present = Board(), set[str]()
    for worker_id, comes in history:
        board = sign_on(board, worker_id) if comes else sign_off(board, worker_id)
        (present.add if comes else present.discard)(worker_id)
        assert board.workers == len(present)
        assert sorted(rank_of(board, each) for each in present) == list(range(len(present)))


@given(st.integers(0, 3 * CREW_MAX), st.text(max_size=20))
def test_a_worker_has_a_place_in_a_crew_of_any_size(workers: int, name: str) -> None:
    board = count_workers(Board(), [f"w{n}" for n in range(workers)])
    assert board.workers == workers
    assert 0 <= rank_of(board, name) < max(1, workers)


# The lookout


@settings(max_examples=200)
@given(st.lists(st.tuples(worker_ids, st.sampled_from([0, 1, 2]), st.integers(0, 90)), max_size=30))
def test_of_all_who_want_the_duty_one_has_it_unless_a_higher_rank_comes(
    history: list[tuple[str, int, int]],
) -> None:
    board, now = Board(), NOW
    for worker_id, rank, pause_s in history:
        now += timedelta(seconds=pause_s)
        held = board.watch if is_watched(board, now) else None
        after = take_watch(board, worker_id, rank, now=now)
        if after is None:
            assert held is not None
            assert held.by != worker_id
            assert held.rank >= rank
            continue
        assert held is None or held.by == worker_id or held.rank < rank
        assert after.watch is not None
        assert (after.watch.by, after.watch.rank) == (worker_id, rank)
        assert is_watched(after, now)
        assert not is_watched(after, now + timedelta(seconds=WATCH_TTL_MAX_S))
        board = after


def test_a_duty_that_is_claimed_for_ever_is_none() -> None:
    forged = take_watch(Board(), "w", Rank.MONITOR, now=NOW + timedelta(days=365))
    assert forged is not None
    assert not is_watched(forged, NOW)
    assert take_watch(forged, "honest", Rank.WORKER_ALONE, now=NOW) is not None


def test_who_leaves_gives_the_duty_back() -> None:
    board = take_watch(sign_on(Board(), "w"), "w", Rank.WORKER, now=NOW)
    assert board is not None
    assert sign_off(board, "w").watch is None
    assert sign_off(board, "other").watch == board.watch
