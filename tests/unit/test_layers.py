"""The layers of the service stack, each alone and all together."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.errors import UsageError
from qo.testing import virtual
from qo.worker.api.handler import Rate, describe
from qo.worker.api.request import Overloaded, Request
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.executors.threads import ThreadExecutor
from qo.worker.layers import (
    ServiceOptions,
    buffer,
    catch,
    concurrency_limit,
    default_layers,
    load_shed,
    log,
    rate_limit,
    timeout,
)
from qo.worker.layers.stack import Layer, Service, stack
from qo.worker.loop.cancel import Stopped, Why
from qo.worker.loop.outcome import Acked, Dead, Outcome, Released, Retried
from support.worker.layer_requests import attempt, calling

pytestmark = pytest.mark.fast


async def instantly(request: Request) -> None:
    pass


def sleeping(seconds: float) -> Callable[[Request], Awaitable[None]]:
    async def work(request: Request) -> None:
        await asyncio.sleep(seconds)

    return work


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


# The stack


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
    assert request.patient
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


# Shedding and buffering


async def test_shedding_gives_the_task_back_and_never_burns_a_retry() -> None:
    async def full(request: Request) -> Outcome:
        assert not request.patient
        raise Overloaded("everything is taken", 7.0)

    request = attempt()
    assert await load_shed()(full)(request) == Released("no room: everything is taken", 7.0, shed=True)
    assert request.patient


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


# Limits


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
        await service(attempt(patient=False))
    assert refused.value.retry_after_s > 0
    door.open.set()
    await running


def test_a_rate_limit_refuses_until_there_is_room_again() -> None:
    async def main() -> None:
        limit = rate_limit(2, per_s=10.0)
        service = limit(calling(instantly))
        assert limit.room() == 2
        for _ in range(2):
            assert await service(attempt(patient=False)) == Acked()
        assert limit.room() == 0
        with pytest.raises(Overloaded) as refused:
            await service(attempt(patient=False))
        assert refused.value.retry_after_s == pytest.approx(10.0)
        await asyncio.sleep(refused.value.retry_after_s)
        assert limit.room() == 2
        assert await service(attempt(patient=False)) == Acked()
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
            await limit(calling(work))(attempt(patient=False))
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


# Timeouts


def test_an_attempt_is_stopped_when_its_time_is_over_and_told_why() -> None:
    seen: list[Why | None] = []

    async def work(request: Request) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            seen.append(request.cancel.why)
            raise

    async def main() -> None:
        service = stack(timeout(), catch())(calling(work))
        assert await service(attempt(timeout_s=30.0)) == Retried("timed out after 30 s", timed_out=True)
        assert asyncio.get_running_loop().time() == 30.0
        this = asyncio.current_task()
        assert this is not None
        assert this.cancelling() == 0

    virtual.run(main())
    assert seen == [Why.TIMEOUT]


def test_no_timeout_means_none() -> None:
    async def main() -> None:
        assert await timeout()(calling(sleeping(10 * 86_400.0)))(attempt(timeout_s=None)) == Acked()

    virtual.run(main())


def test_the_handlers_own_timeout_is_not_ours() -> None:
    async def work(request: Request) -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(60)

    async def main() -> None:
        outcome = await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0))
        assert isinstance(outcome, Retried)
        assert outcome.error == "TimeoutError"
        assert not outcome.timed_out

    virtual.run(main())


@pytest.mark.parametrize("limit", [concurrency_limit(1), rate_limit(1, per_s=25.0)], ids=["concurrency", "rate"])
def test_waiting_for_a_permit_does_not_count_towards_the_timeout(limit: Layer) -> None:
    async def main() -> None:
        service = stack(timeout(), limit, catch())(calling(sleeping(25)))
        assert await asyncio.gather(*started(service, *"abc", timeout_s=30.0)) == [Acked()] * 3
        assert asyncio.get_running_loop().time() == pytest.approx(75.0)

    virtual.run(main())


def test_after_waiting_for_a_permit_the_whole_timeout_is_left_and_no_more() -> None:
    async def main() -> None:
        service = stack(timeout(), concurrency_limit(1), catch())(calling(sleeping(99)))
        late = Retried("timed out after 30 s", timed_out=True)
        assert await asyncio.gather(*started(service, *"ab", timeout_s=30.0)) == [late, late]
        assert asyncio.get_running_loop().time() == 60.0

    virtual.run(main())


def test_an_attempt_that_asks_for_more_time_gets_it() -> None:
    async def work(request: Request) -> None:
        await asyncio.sleep(20)
        request.clock.extend(30)
        await asyncio.sleep(99)

    async def main() -> None:
        outcome = await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0))
        assert outcome == Retried("timed out after 50 s", timed_out=True)
        assert asyncio.get_running_loop().time() == 50.0

    virtual.run(main())


@pytest.mark.parametrize("why", [Why.SHUTDOWN, Why.CANCELLED, Why.LOST])
def test_what_the_worker_gives_up_is_left_to_the_worker_even_if_the_time_is_over_too(why: Why) -> None:
    async def stubborn(request: Request) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(60)  # Cleans up for longer than it may.

    async def main() -> None:
        request = attempt(timeout_s=30.0)

        async def run() -> Outcome:
            return await stack(timeout(), catch())(calling(stubborn))(request)

        running = asyncio.create_task(run())
        await asyncio.sleep(10)
        request.cancel.request(why)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert request.cancel.why is why

    virtual.run(main())


def test_the_worker_may_give_up_an_attempt_that_does_not_stop_when_its_time_is_over() -> None:
    async def stubborn(request: Request) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            await asyncio.sleep(3_600)

    async def main() -> None:
        request = attempt(timeout_s=30.0)

        async def run() -> Outcome:
            return await stack(timeout(), catch())(calling(stubborn))(request)

        running = asyncio.create_task(run())
        await asyncio.sleep(40)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert request.cancel.why is Why.TIMEOUT
        assert asyncio.get_running_loop().time() == 40.0

    virtual.run(main())


def test_nothing_is_stopped_once_the_attempt_has_ended() -> None:
    async def main() -> None:
        request = attempt(timeout_s=30.0)
        assert await timeout()(calling(sleeping(10)))(request) == Acked()
        await asyncio.sleep(100)
        assert not request.cancel.requested

    virtual.run(main())


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        (None, Acked()),
        (Reject("no use"), Dead("no use")),
        (Reschedule(5), Released("the handler asked to come back later", 5, by_handler=True)),
        (Stopped("timed out"), Retried("timed out after 30 s", timed_out=True)),
    ],
    ids=["finishes", "rejects", "reschedules", "stops"],
)
def test_a_handler_has_the_last_word_when_its_time_is_over(ending: Exception | None, outcome: Outcome) -> None:
    async def work(request: Request) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if ending is not None:
                raise ending from None

    async def main() -> None:
        assert await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0)) == outcome
        await asyncio.sleep(0)  # Nothing of the cancellation is left behind.

    virtual.run(main())


def test_a_handler_that_breaks_while_it_is_stopped_has_timed_out() -> None:
    async def work(request: Request) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("cleaning up failed")

    async def main() -> None:
        outcome = await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0))
        assert isinstance(outcome, Retried)
        assert outcome.error == "timed out after 30 s"
        assert outcome.timed_out
        assert "cleaning up failed" in (outcome.traceback or "")

    virtual.run(main())


async def test_a_plain_function_that_stops_for_a_timeout_nobody_else_noticed_has_timed_out() -> None:
    async def work(request: Request) -> None:
        request.cancel.request(Why.TIMEOUT)
        await asyncio.to_thread(request.cancel.check)

    outcome = await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0))
    assert outcome == Retried("timed out after 30 s", timed_out=True)


async def test_a_plain_function_on_a_thread_times_out_and_is_asked_to_stop() -> None:
    asked = threading.Event()
    threads = ThreadExecutor(lambda: None)

    def plain(input: Any) -> None:
        request.cancel.wait(60)
        asked.set()
        request.cancel.check()

    request = attempt(timeout_s=0.01, handler=describe("work", plain))
    outcome = await stack(timeout(), catch())(calling(threads.call))(request)
    assert outcome == Retried("timed out after 0.01 s", timed_out=True)
    assert await asyncio.to_thread(asked.wait, 60)
    threads.close()


# Catching


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopAsyncIteration(), Retry("again")],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_handler_raises_is_an_outcome(error: BaseException) -> None:
    outcome = await catch()(calling(raising(error)))(attempt())
    assert isinstance(outcome, Retried)


async def test_something_cancelled_that_the_handler_waited_for_is_a_failed_attempt() -> None:
    async def work(request: Request) -> None:
        other = asyncio.get_running_loop().create_future()
        other.cancel()
        await other

    outcome = await stack(timeout(), catch())(calling(work))(attempt(timeout_s=30.0))
    assert isinstance(outcome, Retried)
    assert outcome.error == "CancelledError"


async def test_a_cancelled_attempt_is_no_failed_attempt() -> None:
    (running,) = started(stack(timeout(), catch())(calling(sleeping(60))), "t1", timeout_s=30.0)
    await settle()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_handler_that_stops_when_asked_is_judged_by_the_worker() -> None:
    async def work(request: Request) -> None:
        request.cancel.request(Why.CANCELLED)
        await asyncio.to_thread(request.cancel.check)

    with pytest.raises(asyncio.CancelledError):
        await stack(timeout(), log(), catch())(calling(work))(attempt(timeout_s=30.0))


async def test_stopping_without_having_been_asked_is_a_failed_attempt() -> None:
    assert isinstance(await catch()(calling(raising(Stopped("on a whim"))))(attempt()), Retried)


def test_an_attempt_that_is_thrown_away_with_its_loop_goes_quietly() -> None:
    async def work(request: Request) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> Any:
        run = catch()(calling(work))(attempt()).__await__()
        next(run)
        return run

    run = asyncio.run(main())
    with pytest.raises(GeneratorExit):
        run.throw(GeneratorExit)


# Logging


async def test_a_failure_is_logged_with_its_task_and_its_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "qo"):
        await stack(log(), catch())(calling(instantly))(attempt("fine"))
        await stack(log(), catch())(calling(raising(ValueError("no such address"))))(attempt("broken"))
    (record,) = caplog.records
    assert record.name == "qo.worker.layers.observe"
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("work broken#1 after 0.")
    assert record.getMessage().endswith("s: failed: ValueError: no such address")
    assert vars(record)["task_id"] == "broken"


async def test_the_layers_that_observe_see_outcomes_not_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "qo"):
        await stack(*default_layers(ServiceOptions()))(calling(raising(ValueError("x"))))(attempt())
    assert [record.getMessage().rsplit(" s: ")[1] for record in caplog.records] == ["failed: ValueError: x"]


async def test_every_start_and_end_is_logged_for_who_wants_to_debug(caplog: pytest.LogCaptureFixture) -> None:
    async def stopped(request: Request) -> None:
        request.cancel.request(Why.SHUTDOWN)
        raise asyncio.CancelledError

    with caplog.at_level(logging.DEBUG, "qo.worker"):
        await log()(calling(instantly))(attempt())
        await stack(log(), catch())(calling(raising(Reschedule(1))))(attempt())
        await stack(log(), catch())(calling(raising(Reject("no use"))))(attempt())
        with pytest.raises(asyncio.CancelledError):
            await stack(log(), catch())(calling(stopped))(attempt())
    said = [record.getMessage().rsplit("#1", 1)[1].split(": ", 1)[1] for record in caplog.records]
    ends = ["done", "given back: the handler asked to come back later", "failed for good: no use"]
    ends.append("stopped: the worker is shutting down")
    assert said == [line for end in ends for line in ("started", end)]


async def test_nothing_is_logged_when_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "qo"):
        await stack(log(), catch())(calling(raising(ValueError())))(attempt())
    assert not caplog.records
