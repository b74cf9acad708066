"""Calls that wait at the same time are answered together, and each gets its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from qo.dispatcher.http.gathering import Gatherer
from qo.errors import Unavailable, UsageError


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


class Doubling:
    """Answers twice the number; refuses odd ones, and with them all that came along. Waits until it may go on."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_go_on = threading.Event()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.groups.append(list(numbers))
        self.may_go_on.wait(10)
        if odd := [each for each in numbers if each % 2]:
            raise UsageError(f"{odd[0]} is odd")
        return [2 * each for each in numbers]


def one_lane(doubling: Doubling, executor: ThreadPoolExecutor, most: int = 64) -> Gatherer[int, int]:
    return Gatherer(doubling, executor, key=lambda number: number, most=most, lanes=1)


async def test_calls_that_come_meanwhile_are_answered_together(executor: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    gatherer = one_lane(doubling, executor, most=3)
    calls = [asyncio.create_task(gatherer.answer(number)) for number in (2, 4, 6, 8, 10)]
    await asyncio.sleep(0)
    doubling.may_go_on.set()
    assert await asyncio.gather(*calls) == [4, 8, 12, 16, 20]
    assert [len(each) for each in doubling.groups] == [3, 2]


async def test_a_call_that_is_refused_takes_no_other_with_it(executor: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    doubling.may_go_on.set()
    gatherer = one_lane(doubling, executor)
    first, odd, last = await asyncio.gather(*map(gatherer.answer, (2, 3, 4)), return_exceptions=True)
    assert (first, last) == (4, 8)
    assert isinstance(odd, UsageError)


async def test_calls_about_the_same_are_never_together(executor: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    doubling.may_go_on.set()
    gatherer = one_lane(doubling, executor)
    assert await asyncio.gather(*map(gatherer.answer, (2, 2, 4, 2))) == [4, 4, 8, 4]
    assert all(len(each) == len(set(each)) for each in doubling.groups)


async def test_a_database_that_is_away_is_asked_once_for_all(executor: ThreadPoolExecutor) -> None:
    asked: list[int] = []

    def away(numbers: Sequence[int]) -> list[int]:
        asked.append(len(numbers))
        raise Unavailable("the state database does not answer")

    gatherer = Gatherer[int, int](away, executor, key=lambda number: number, lanes=1)
    answers = await asyncio.gather(*map(gatherer.answer, range(5)), return_exceptions=True)
    assert [type(each) for each in answers] == [Unavailable] * 5
    assert asked == [5]


async def test_a_caller_that_is_gone_disturbs_nobody(executor: ThreadPoolExecutor) -> None:
    doubling = Doubling()
    gatherer = one_lane(doubling, executor)
    gone, stays = (asyncio.create_task(gatherer.answer(number)) for number in (2, 4))
    await asyncio.sleep(0)
    gone.cancel()
    doubling.may_go_on.set()
    assert await stays == 8
    assert await gatherer.answer(6) == 12


async def test_a_call_that_follows_an_answer_at_once_is_answered(executor: ThreadPoolExecutor) -> None:
    """In the very turn of the event loop in which the lane of the one before ends."""
    doubling = Doubling()
    doubling.may_go_on.set()
    gatherer = one_lane(doubling, executor)
    number = 2
    async with asyncio.timeout(10):
        for _ in range(20):
            number = await gatherer.answer(number) % 1000 * 2
