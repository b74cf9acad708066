"""The store's clock is known from its replies, and ever more closely."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.storetime import CLOCK_SET, DRIFT, STALE_AFTER_S, Offset, observe, steady
from qo.errors import Unavailable
from qo.store.s3 import Credentials, S3Store
from support.servers.scripted import ScriptedServer, answer, scripted_server

pytestmark = pytest.mark.fast

offsets = st.floats(-2e9, 2e9)
exchanges = st.lists(
    st.tuples(
        st.floats(0, 100),  # Since the last reply.
        st.floats(0, 5),  # From sending to the moment the server read its clock.
        st.floats(0, 5),  # From there to receiving.
    ),
    min_size=1,
    max_size=30,
)
ROUNDING = 1e-5  # Of floats as large as epoch seconds.


def watch(offset: float, script: list[tuple[float, float, float]], *, drift: float = 0.0) -> list[Offset]:
    """What is known after each reply of a store whose clock is off by ``offset``, and more with time."""
    known, monotonic, course = None, 1000.0, []
    for pause, there, back in script:
        sent = monotonic + pause
        monotonic = sent + there + back
        second = math.floor((sent + there) * (1 + drift) + offset)
        known = observe(known, sent_at=sent, received_at=monotonic, second=second)
        course.append(known)
    return course


@given(offsets, exchanges)
def test_the_true_time_is_always_within_the_bounds(
    offset: float, script: list[tuple[float, float, float]]
) -> None:
    for known in watch(offset, script):
        assert known.low - ROUNDING <= offset <= known.high + ROUNDING
        assert abs(known.store_time(known.at) - (known.at + offset)) <= known.uncertainty_s + ROUNDING


@given(offsets, exchanges, st.floats(-DRIFT / 2, DRIFT / 2))
def test_a_drifting_clock_is_followed(
    offset: float, script: list[tuple[float, float, float]], drift: float
) -> None:
    for known in watch(offset, script, drift=drift):
        slack = abs(drift) * 10 + ROUNDING  # What the clock may drift within one exchange.
        assert known.low - slack <= offset + drift * known.at <= known.high + slack


def test_drift_is_no_step() -> None:
    for drift in (DRIFT / 2, -DRIFT / 2):
        for known in watch(0.123, [(1.0137, 0.001, 0.001)] * 5000, drift=drift):
            assert known.suspect is None
            assert abs(known.store_time(known.at) - (known.at * (1 + drift) + 0.123)) < 0.6


@given(offsets, exchanges)
def test_one_more_reply_never_makes_it_worse_than_that_reply_alone(
    offset: float, script: list[tuple[float, float, float]]
) -> None:
    for known, (_, there, back) in zip(watch(offset, script), script, strict=True):
        assert known.uncertainty_s <= (1 + there + back) / 2 + ROUNDING


def test_many_quick_replies_give_a_fraction_of_a_second() -> None:
    *_, known = watch(0.123, [(0.0137, 0.001, 0.001)] * 200)
    assert known.uncertainty_s < 0.01


def reply(known: Offset | None, offset: float, sent: float) -> Offset:
    """What is known after a reply, 0.1 s later, of a store whose clock is off by ``offset``."""
    return observe(known, sent_at=sent, received_at=sent + 0.1, second=math.floor(sent + 0.05 + offset))


def test_the_first_reply_is_believed() -> None:
    assert reply(None, 5000.0, sent=10.0).store_time(10.05) == pytest.approx(5010.5)


@given(offsets, exchanges, st.floats(10, 1e8), st.sampled_from([1, -1]))
def test_a_single_outlier_never_moves_the_time(
    offset: float, script: list[tuple[float, float, float]], step: float, direction: int
) -> None:
    *_, before = watch(offset, script)
    during = reply(before, offset + direction * step, before.at + 1)
    assert (during.low, during.high, during.at) == (before.low, before.high, before.at)
    after = reply(during, offset, before.at + 2)
    assert after == reply(before, offset, before.at + 2)


@given(offsets, exchanges, st.floats(10, 1e8), st.sampled_from([1, -1]))
def test_outliers_that_disagree_with_each_other_move_nothing(
    offset: float, script: list[tuple[float, float, float]], step: float, direction: int
) -> None:
    *_, before = watch(offset, script)
    known = before
    for count in range(1, 5):
        known = reply(known, offset + direction * count * step, before.at + count)
        assert (known.low, known.high, known.at) == (before.low, before.high, before.at)


@given(offsets, exchanges, st.floats(10, 1e8), st.sampled_from([1, -1]), st.floats(0, 500))
def test_a_step_that_a_second_reply_confirms_is_followed(
    offset: float, script: list[tuple[float, float, float]], step: float, direction: int, pause: float
) -> None:
    *_, before = watch(offset, script)
    there = offset + direction * step
    after = reply(reply(before, there, before.at + 1), there, before.at + 1 + pause)
    assert after.suspect is None
    assert after.low - 2 * ROUNDING <= there <= after.high + 2 * ROUNDING
    assert after.uncertainty_s <= (1 + 0.1) / 2 + ROUNDING


def test_only_the_next_reply_can_confirm_a_step() -> None:
    known = reply(None, 1000.0, sent=10.0)
    for count, offset in enumerate([5000.0, 9000.0, 5000.0, 9000.0], start=11):
        known = reply(known, offset, sent=count)
        assert known.store_time(0.0) == pytest.approx(1000.5, abs=0.1)


def test_a_reply_that_fits_both_speaks_for_what_was_known() -> None:
    known = reply(reply(None, 1000.0, sent=10.0), 1010.0, sent=11.0)
    assert known.suspect is not None
    slow = observe(known, sent_at=12.0, received_at=42.0, second=1025)
    assert slow.suspect is None
    assert abs(slow.store_time(42.0) - 1042.0) <= 1


def test_only_a_suspected_step_of_seconds_is_worth_a_question() -> None:
    known = reply(None, 1000.0, sent=10.0)
    assert not known.is_doubtful
    assert not reply(known, 1002.0, sent=11.0).is_doubtful
    assert reply(known, 1005.0, sent=11.0).is_doubtful
    assert reply(known, 995.0, sent=11.0).is_doubtful


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@given(st.timedeltas(timedelta(0), CLOCK_SET))
def test_a_small_step_back_holds_the_time(step: timedelta) -> None:
    assert steady(NOON, NOON - step) == NOON


@given(st.timedeltas(CLOCK_SET + timedelta(microseconds=1), timedelta(days=9999)))
def test_a_large_step_back_is_followed(step: timedelta) -> None:
    assert steady(NOON, NOON - step) == NOON - step


@given(st.timedeltas(timedelta(0), timedelta(days=9999)))
def test_a_step_ahead_is_followed(step: timedelta) -> None:
    assert steady(NOON, NOON + step) == NOON + step


def test_knowledge_goes_stale() -> None:
    known = observe(None, sent_at=10.0, received_at=10.1, second=1000)
    assert not known.is_stale(10.1 + STALE_AFTER_S)
    assert known.is_stale(10.2 + STALE_AFTER_S)


async def opened(server: ScriptedServer) -> S3Store:
    return await S3Store.open(
        "bucket", endpoint=server.endpoint, region="us-east-1", credentials=Credentials("id", "secret")
    )


async def ahead_s(store: S3Store) -> float:
    return (await store.now()).timestamp() - time.time()


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_the_date_of_a_server_error_is_not_the_stores_time(status: int) -> None:
    wrong = answer(status, date=time.time() + 86400)
    async with scripted_server(wrong, wrong, wrong) as server:
        store = await opened(server)
        try:
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await store.get("key")
                assert abs(await ahead_s(store)) < 2
        finally:
            await store.close()


async def test_a_store_that_only_fails_is_unavailable_rather_than_without_a_clock() -> None:
    async with scripted_server(head=answer(503)) as server:
        with pytest.raises(Unavailable, match="503"):
            await opened(server)


async def test_a_step_that_one_reply_hints_at_is_confirmed_by_asking() -> None:
    tomorrow = time.time() + 86400
    async with scripted_server(answer(200, 'ETag: "e"', date=tomorrow), head=answer(200)) as server:
        store = await opened(server)
        try:
            server.head = lambda _: answer(200, date=tomorrow)
            await store.get("key")
            assert abs(await ahead_s(store) - 86400) < 3
        finally:
            await store.close()


async def test_one_wrong_date_is_refuted_by_asking_again() -> None:
    async with scripted_server(answer(200, 'ETag: "e"', date=time.time() + 86400)) as server:
        store = await opened(server)
        try:
            await store.get("key")
            assert abs(await ahead_s(store)) < 2
        finally:
            await store.close()


@pytest.mark.parametrize("step_s", [86400, -86400])
async def test_a_store_whose_clock_was_set_is_followed_once_two_replies_say_so(step_s: int) -> None:
    there = answer(200, 'ETag: "e"', date=time.time() + step_s)
    async with scripted_server(there, there) as server:
        store = await opened(server)
        try:
            assert abs(await ahead_s(store)) < 2
            await store.get("key")
            await store.get("key")
            assert abs(await ahead_s(store) - step_s) < 3
        finally:
            await store.close()
