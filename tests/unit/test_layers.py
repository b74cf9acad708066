"""The service stack: order, shedding, buffering and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.errors import UsageError
from qo.testing import virtual
from qo.worker.api.handler import Rate
from qo.worker.api.request import Overloaded, Request
from qo.worker.layers import (
    ServiceOptions,
    buffer,
    catch,
    concurrency_limit,
    default_layers,
    load_shed,
    rate_limit,
)
from qo.worker.layers.stack import Layer, Service, stack
from qo.worker.loop.outcome import Acked, Outcome, Released
from support.worker.layer_requests import attempt, calling

pytestmark = pytest.mark.fast


async def instantly(request: Request) -> None:
    pass


def raising(error: BaseException) -> Callable[[Request], Awaitable[None]]:
    async def work(request: Request) -> None:
        raise error

    return work


class Door:
    """Work that waits until it is let go; remembers in which order it began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.open = asyncio.Event()

    async def work(self, request: Request) -> None:
        self.begun.append(request.task.id)
        await self.open.wait()


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def hold_up(seconds: float) -> None:
    """What a handler does to the event loop that computes in it."""
    time.sleep(seconds)


def started(service: Service, *names: str, **fields: Any) -> list[asyncio.Task[Outcome]]:
    async def run(name: str) -> Outcome:
        return await service(attempt(name, **fields))

    return [asyncio.create_task(run(name)) for name in names]


async def test_the_first_layer_is_the_outermost() -> None:
    order: list[str] = []

    def noting(name: str) -> Layer:
        def layer(inner: Service) -> Service:
            async def run(request: Request) -> Outcome:
                order.append(f"{name} in")
                outcome = await inner(request)
                order.append(f"{name} out")
                return outcome

            return run

        return layer

    await stack(noting("a"), noting("b"))(calling(instantly))(attempt())
    assert order == ["a in", "b in", "b out", "a out"]


async def test_the_default_layers_hand_the_outcome_through() -> None:
    async def answer(request: Request) -> int:
        return 42

    options = ServiceOptions(concurrency_limit=2, rate_limit=Rate(5))
    request = attempt(timeout_s=30.0)
    assert await stack(*default_layers(options))(calling(answer))(request) == Acked(42)
    assert request.may_wait
    assert request.started
    assert not request.places


async def test_the_default_layers_shed_what_finds_no_permit_if_nothing_is_to_wait() -> None:
    door = Door()
    service = stack(*default_layers(ServiceOptions(buffer=None, concurrency_limit=1)))(calling(door.work))
    (first,) = started(service, "first")
    await settle()
    assert isinstance(await service(attempt()), Released)
    door.open.set()
    assert await first == Acked()


async def test_given_limits_stand_in_the_place_of_those_of_the_options() -> None:
    shared = concurrency_limit(1)
    door = Door()
    one, other = (
        stack(*default_layers(ServiceOptions(concurrency_limit=9), [shared]))(calling(door.work)) for _ in range(2)
    )
    tasks = [*started(one, "one"), *started(other, "other")]
    await settle()
    assert door.begun == ["one"]
    door.open.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("wrong", [{"buffer": 0}, {"timeout_s": 0}, {"concurrency_limit": 0}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServiceOptions(**wrong)


async def test_shedding_gives_the_task_back_and_never_burns_a_retry() -> None:
    async def full(request: Request) -> Outcome:
        assert not request.may_wait
        raise Overloaded("everything is taken", 7.0)

    request = attempt()
    assert await load_shed()(full)(request) == Released("no room: everything is taken", 7.0, shed=True)
    assert request.may_wait


async def test_a_refusal_passes_through_the_layer_that_catches() -> None:
    """A limit among the user's own layers lies inside of it."""
    door = Door()
    service = stack(load_shed(), catch(), concurrency_limit(1))(calling(door.work))
    (first,) = started(service, "first")
    await settle()
    assert isinstance(await service(attempt()), Released)
    door.open.set()
    await first


async def test_as_many_as_the_buffer_holds_wait_and_the_next_is_shed() -> None:
    door = Door()
    service = stack(load_shed(), buffer(2), concurrency_limit(1))(calling(door.work))
    tasks = started(service, "runs", "waits", "waits too", "shed")
    await settle()
    assert [task.done() for task in tasks] == [False, False, False, True]
    assert isinstance(tasks[3].result(), Released)
    door.open.set()
    assert await asyncio.gather(*tasks[:3]) == [Acked()] * 3
    assert door.begun == ["runs", "waits", "waits too"]


async def test_what_runs_takes_no_place_in_the_buffer() -> None:
    door = Door()
    service = stack(load_shed(), buffer(1))(calling(door.work))
    tasks = started(service, *"abcde")
    await settle()
    assert door.begun == [*"abcde"]
    door.open.set()
    assert await asyncio.gather(*tasks) == [Acked()] * 5


async def test_a_patient_request_waits_in_front_of_a_full_buffer_in_its_turn() -> None:
    door = Door()
    service = stack(buffer(1), concurrency_limit(1))(calling(door.work))
    tasks = started(service, *"abcde")
    await settle()
    assert door.begun == ["a"]
    door.open.set()
    assert await asyncio.gather(*tasks) == [Acked()] * 5
    assert door.begun == [*"abcde"]


async def test_a_place_in_the_buffer_is_free_again_whatever_became_of_who_held_it() -> None:
    door = Door()
    service = stack(load_shed(), buffer(1), concurrency_limit(1))(calling(door.work))
    running, waiting = started(service, "runs", "waits")
    await settle()
    waiting.cancel()
    await settle()
    assert waiting.cancelled()
    (another,) = started(service, "another")
    door.open.set()
    assert await asyncio.gather(running, another) == [Acked(), Acked()]


async def test_a_request_that_a_layer_answers_leaves_the_buffer_too() -> None:
    async def cached(request: Request) -> Outcome:
        return Acked("from the cache")

    service = stack(load_shed(), buffer(1), buffer(1))(cached)
    for _ in range(3):
        assert await service(attempt()) == Acked("from the cache")


async def test_a_concurrency_limit_lets_in_as_many_as_it_says_in_the_order_they_came() -> None:
    limit, door = concurrency_limit(2), Door()
    service = limit(calling(door.work))
    assert limit.room() == 2
    tasks = started(service, *"abcde")
    await settle()
    assert door.begun == ["a", "b"]
    assert limit.room() == 0
    door.open.set()
    await asyncio.gather(*tasks)
    assert door.begun == [*"abcde"]
    assert limit.room() == 2


async def test_nobody_overtakes_who_waits_for_a_permit() -> None:
    """Between the moment a permit is given back and the moment its next holder runs, a newcomer finds it taken."""
    limit, door = concurrency_limit(1), Door()
    service = limit(calling(door.work))
    first, second = started(service, "first", "second")
    await settle()
    first.add_done_callback(lambda _: newcomers.extend(started(service, "newcomer")))
    newcomers: list[asyncio.Task[Outcome]] = []
    door.open.set()
    await second
    await newcomers[0]
    assert door.begun == ["first", "second", "newcomer"]


async def test_a_permit_comes_back_when_its_holder_fails_or_is_cancelled_at_any_moment() -> None:
    limit, door = concurrency_limit(1), Door()
    with pytest.raises(ValueError, match="broken"):
        await limit(calling(raising(ValueError("broken"))))(attempt())
    service = limit(calling(door.work))
    running, waiting, handed_over = started(service, "runs", "waits", "third")
    await settle()
    waiting.cancel()
    running.cancel()
    await asyncio.sleep(0)  # Now the third has been given the permit, and has not run yet.
    handed_over.cancel()
    await asyncio.gather(running, waiting, handed_over, return_exceptions=True)
    assert limit.room() == 1


async def test_a_full_limit_refuses_a_request_that_is_not_to_wait() -> None:
    limit, door = concurrency_limit(1), Door()
    service = limit(calling(door.work))
    (running,) = started(service, "runs")
    await settle()
    with pytest.raises(Overloaded) as refused:
        await service(attempt(may_wait=False))
    assert refused.value.retry_after_s > 0
    door.open.set()
    await running


def test_a_rate_limit_refuses_until_there_is_room_again() -> None:
    async def main() -> None:
        limit = rate_limit(2, per_s=10.0)
        service = limit(calling(instantly))
        assert limit.room() == 2
        for _ in range(2):
            assert await service(attempt(may_wait=False)) == Acked()
        assert limit.room() == 0
        with pytest.raises(Overloaded) as refused:
            await service(attempt(may_wait=False))
        assert refused.value.retry_after_s == pytest.approx(10.0)
        await asyncio.sleep(refused.value.retry_after_s)
        assert limit.room() == 2
        assert await service(attempt(may_wait=False)) == Acked()
        await asyncio.sleep(1_000)
        assert limit.room() == 2

    virtual.run(main())


def test_a_rate_limit_makes_patient_requests_wait_in_their_order() -> None:
    async def main() -> None:
        begun: list[tuple[str, float]] = []

        async def work(request: Request) -> None:
            begun.append((request.task.id, asyncio.get_running_loop().time()))

        limit = rate_limit(Rate(2, per_s=1.0))
        tasks = started(limit(calling(work)), *"abcdef")
        await asyncio.sleep(0)
        assert limit.room() == 0
        with pytest.raises(Overloaded) as refused:
            await limit(calling(work))(attempt(may_wait=False))
        assert refused.value.retry_after_s == pytest.approx(3.0)  # After the four that wait.
        tasks[3].cancel()  # Its turn goes to the next.
        await asyncio.gather(*tasks, return_exceptions=True)
        assert begun == [("a", 0.0), ("b", 0.0), ("c", 1.0), ("e", 1.0), ("f", 2.0)]

    virtual.run(main())


async def test_nobody_overtakes_who_waits_for_a_token_in_a_loop_that_was_held_up() -> None:
    begun: list[str] = []

    async def work(request: Request) -> None:
        begun.append(request.task.id)

    service = rate_limit(1, per_s=0.01)(calling(work))
    waiting = started(service, "first", "second")
    await settle()
    hold_up(0.02)  # The second's token is there, but nobody has told it.
    await service(attempt("newcomer"))
    await asyncio.gather(*waiting)
    assert begun == ["first", "second", "newcomer"]
