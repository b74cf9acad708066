"""The layers that stop an attempt, catch what it raises, and log it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.testing import virtual
from qo.worker.api.handler import make_handler
from qo.worker.api.request import Request
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.executors.threads import ThreadExecutor
from qo.worker.layers import (
    ServiceOptions,
    catch,
    concurrency_limit,
    default_layers,
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


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def started(service: Service, *names: str, **fields: Any) -> list[asyncio.Task[Outcome]]:
    async def run(name: str) -> Outcome:
        return await service(attempt(name, **fields))

    return [asyncio.create_task(run(name)) for name in names]


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

    request = attempt(timeout_s=0.01, handler=make_handler("work", plain))
    outcome = await stack(timeout(), catch())(calling(threads.call))(request)
    assert outcome == Retried("timed out after 0.01 s", timed_out=True)
    assert await asyncio.to_thread(asked.wait, 60)
    threads.close()


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
