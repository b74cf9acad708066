"""The loops and the dispatcher that runs them: nothing ends them, and killing it at any instant loses nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest, EventBody
from qo.config.dispatcher import PressureSettings
from qo.config.settings import Settings
from qo.dispatcher.attempts.claiming import claim
from qo.dispatcher.engine import metrics
from qo.dispatcher.engine.loop import FAILURES_MAX, Loop
from qo.dispatcher.engine.loops import reaper, release
from qo.dispatcher.engine.release_limits import Limits, limits, thresholds
from qo.dispatcher.http.serving import Addresses
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.service import Dispatcher, run_dispatcher
from qo.dispatcher.sources.emission import emit
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.tasks.creation import NewTask, create
from qo.errors import ConfigError, Unavailable
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", runtime="spark", operator="sql", max_attempts=2),
    job("pass", reads="orders", runtime="dispatcher", operator="noop"),
    job("after", reads="pass"),
)


class Heard:
    """Queues that remember every message, one for each id, as real ones do."""

    def __init__(self) -> None:
        self.wakes: dict[str, tuple[str, str]] = {}
        self.heard = asyncio.Event()

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        self.wakes.update({each.id: (queue, each.task_id) for each in wakes})
        self.heard.set()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    chosen = Settings()
    return replace(chosen, dispatcher=replace(chosen.dispatcher, data=f"file:{tmp_path / 'data'}"))


def said(state: State, *partitions: str, key: str = "k") -> None:
    with state.write() as tx:
        emit(
            tx,
            "shop",
            "orders",
            key=key,
            events=[EventBody(output=0, partition_key=p) for p in partitions],
            by="t",
        )


def tasks(state: State, name: str) -> Sequence[sa.RowMapping]:
    with state.read() as tx:
        return tx.all(sa.select(schema.tasks).where(schema.tasks.c.job == name).order_by(schema.tasks.c.id))


# One loop


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another thread may be who makes it true.
            await asyncio.sleep(0.005)


async def ended(loop: Loop, running: asyncio.Task[None]) -> None:
    loop.stop()
    async with asyncio.timeout(20):
        await running


@pytest.mark.fast
async def test_a_loop_goes_on_at_once_while_there_is_something_to_do_and_then_rests() -> None:
    left, rested = [3, 2, 1], asyncio.Event()

    async def tick() -> int:
        if left:
            return left.pop()
        rested.set()
        return 0

    worked = []
    loop = Loop("test", tick, rest_s=3600, on_work=lambda: worked.append(len(left)))
    running = asyncio.create_task(loop.run())
    await until(rested.is_set)
    assert worked == [2, 1, 0]
    assert (loop.health.ticks >= 3, loop.health.processed) == (True, 6)
    await ended(loop, running)


@pytest.mark.fast
async def test_a_tick_that_did_less_than_it_may_at_once_is_not_repeated_for_nothing() -> None:
    left, worked = [2, 3, 3], []

    async def tick() -> int:
        return left.pop() if left else 0

    loop = Loop("test", tick, rest_s=3600, batch=3, on_work=lambda: worked.append(len(left)))
    running = asyncio.create_task(loop.run())
    await until(lambda: len(worked) == 3)
    await asyncio.sleep(0)
    assert loop.health.ticks == 3
    loop.nudge()
    await until(lambda: loop.health.ticks == 4)
    await ended(loop, running)


@pytest.mark.fast
async def test_a_nudge_ends_the_rest_and_one_during_a_tick_is_not_forgotten() -> None:
    ticked = asyncio.Semaphore(0)

    async def tick() -> int:
        ticked.release()
        if loop.health.ticks == 0:
            loop.nudge()  # It speaks of something that this tick did not see.
        return 0

    loop = Loop("test", tick, rest_s=3600)
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(20):
        await ticked.acquire()
        await ticked.acquire()
        loop.nudge()
        await ticked.acquire()
    await ended(loop, running)


@pytest.mark.fast
async def test_a_tick_that_fails_is_tried_again_and_its_trouble_is_told_until_it_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    works, troubles = threading.Event(), []

    def tick() -> int:
        troubles.append(loop.trouble)
        if len(troubles) > FAILURES_MAX:
            works.set()
        if not works.is_set():
            raise Unavailable("the state database does not answer")
        return 0

    loop = Loop("test", tick, rest_s=0.01)
    running = asyncio.create_task(loop.run())
    await until(works.is_set)
    await until(lambda: loop.health.failing == 0)
    assert troubles[: FAILURES_MAX + 1] == [
        *[None] * FAILURES_MAX,
        f"test has failed {FAILURES_MAX} times in a row: the log says why",
    ]
    assert loop.trouble is None
    assert loop.health.failures == FAILURES_MAX
    assert "test failed" in caplog.text
    await ended(loop, running)


@pytest.mark.fast
@pytest.mark.parametrize("away", [True, False])
async def test_a_database_that_is_away_is_told_of_in_a_line_and_what_nobody_foresaw_with_its_trace(
    caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    """All loops meet a restart of the database at once: their traces are thousands of lines that say one thing."""
    failed = threading.Event()

    def tick() -> int:
        if failed.is_set():
            return 0
        failed.set()
        error = Unavailable("the state database does not answer") if away else KeyError("unforeseen")
        error.add_note("its driver says: connection refused")
        raise error

    loop = Loop("test", tick, rest_s=0.01)
    running = asyncio.create_task(loop.run())
    await until(lambda: loop.health.failures == 1)
    await ended(loop, running)
    assert ("Traceback" in caplog.text) is not away
    assert "its driver says: connection refused" in caplog.text


@pytest.mark.fast
async def test_stopping_waits_for_the_tick_under_way() -> None:
    began, may_end, done = threading.Event(), threading.Event(), []

    def tick() -> int:
        began.set()
        assert may_end.wait(20)
        done.append(1)
        return 1

    loop = Loop("test", tick, rest_s=3600)
    running = asyncio.create_task(loop.run())
    await until(began.is_set)
    loop.stop()
    may_end.set()
    async with asyncio.timeout(20):
        await running
    assert done == [1]


# The reaper


def woken(state: State, count: int) -> list[str]:
    clean = live(deployed(state, SHOP), "shop.clean")
    with state.write() as tx:
        made = create(tx, [NewTask(job=clean, dedupe_key=f"manual:{number}") for number in range(count)])
    release.tick(state, Limits())
    return [each.task_id for each in made]


def claimed(state: State, task_id: str) -> None:
    with state.write() as tx:
        assert claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/d").status == "claimed"


def test_a_lapsed_lease_is_taken_back_for_a_retry_and_the_last_one_fails(state: State, state_clock: Clock) -> None:
    [task] = woken(state, 1)
    for status, released in (("pending", None), ("failed", None)):
        claimed(state, task)
        assert reaper.tick(state) == 0, "it is still held"
        state_clock.advance(61)
        assert reaper.tick(state) == 1
        assert reaper.tick(state) == 0
        [row] = tasks(state, "clean")
        assert (row["status"], row["released_at"]) == (status, released)
        assert "lease expired" in row["last_error"]
        state_clock.advance(60)
        release.tick(state, Limits())


def test_reapers_at_once_take_each_task_back_once(state: State, state_clock: Clock) -> None:
    for task in woken(state, 20):
        claimed(state, task)
    state_clock.advance(61)
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.extend(reaper.tick(state, limit=3) for _ in range(20)))
        for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sum(counts) == 20
    assert {row["retry_count"] for row in tasks(state, "clean")} == {1}


# All together


async def test_an_event_becomes_tasks_and_wake_ups_and_then_there_is_nothing_left(
    state: State, settings: Settings
) -> None:
    deployed(state, SHOP)
    queues = Heard()
    dispatcher = Dispatcher(state, queues, settings)
    said(state, "a", "b")
    await dispatcher.settle()
    assert len(tasks(state, "clean")) == 2
    assert {row["status"] for row in tasks(state, "pass")} == {"completed"}
    assert sorted(queue for queue, _ in queues.wakes.values()) == ["python", "python", "spark", "spark"]
    assert await dispatcher.step() == 0


async def test_who_starts_functions_has_a_loop_of_its_own(state: State, settings: Settings) -> None:
    asked: list[int] = []

    def invoke() -> int:
        asked.append(1)
        return 0

    await Dispatcher(state, Heard(), settings, invoke=invoke).step()
    assert asked == [1]


async def test_a_running_dispatcher_that_is_nudged_does_not_wait_for_its_rest(
    state: State, settings: Settings
) -> None:
    deployed(state, SHOP)
    slow = replace(settings, dispatcher=replace(settings.dispatcher, tick_ms=60_000))
    queues, stop = Heard(), asyncio.Event()
    dispatcher = Dispatcher(state, queues, slow)
    running = asyncio.create_task(dispatcher.run(stop))
    await until(lambda: all(loop.health.ticks > 0 for loop in dispatcher.loops))
    async with asyncio.timeout(20):
        await asyncio.to_thread(said, state, "a")
        await asyncio.to_thread(dispatcher.nudge)
        while len(queues.wakes) < 2:
            await queues.heard.wait()
            queues.heard.clear()
        stop.set()
        await running
    assert dispatcher.trouble() == []
    dispatcher.nudge()  # Too late, and harmless.


async def test_two_dispatchers_at_once_do_everything_once(state: State, settings: Settings) -> None:
    deployed(state, SHOP)
    fast = replace(settings, dispatcher=replace(settings.dispatcher, tick_ms=50))
    queues, stop = Heard(), asyncio.Event()
    both = [Dispatcher(state, queues, fast) for _ in range(2)]
    running = [asyncio.create_task(each.run(stop)) for each in both]
    for number in range(5):
        await asyncio.to_thread(said, state, *(f"p{number}-{n}" for n in range(5)), key=str(number))
    async with asyncio.timeout(60):
        while len(queues.wakes) < 50:
            await queues.heard.wait()
            queues.heard.clear()
        stop.set()
        await asyncio.gather(*running)
    assert len(tasks(state, "clean")) == len(tasks(state, "after")) == 25
    assert len(queues.wakes) == len({task for _, task in queues.wakes.values()}) == 50
    assert [loop.health.failures for each in both for loop in each.loops if loop.health.failures] == []


class Killed(BaseException):
    """The process is gone: no handler sees it."""


class Mortal(State):
    """The same database, for a process that is killed around its n-th transaction."""

    def __init__(self, state: State, clock: Clock, dies_at: int, *, committed: bool) -> None:
        super().__init__(state.engine, clock=clock)
        self.left = dies_at
        self._committed = committed

    @contextmanager
    def write(self) -> Generator[Tx]:
        self.left -= 1
        dies = self.left == 0
        with super().write() as tx:
            yield tx
            if dies and not self._committed:
                raise Killed
        if dies:
            raise Killed


@pytest.mark.parametrize("committed", [True, False])
async def test_i5_killed_at_any_transaction_and_started_again_nothing_is_lost_or_doubled(
    state: State, state_clock: Clock, settings: Settings, committed: bool
) -> None:
    deployed(state, SHOP)
    patient = replace(settings.dispatcher, sweep_s=1e6, pressure=PressureSettings(age_s=1e6))  # Nobody works here.
    settings = replace(settings, dispatcher=patient)
    queues, dies_at, survived = Heard(), 0, False
    while not survived:
        dies_at += 1
        said(state, f"p{dies_at}", key=str(dies_at))
        mortal = Mortal(state, state_clock, dies_at, committed=committed)
        with suppress(Killed):
            await Dispatcher(mortal, queues, settings).settle()
            survived = mortal.left > 0
        state_clock.advance(outbox.TAKEN_S + 1)  # What the dead one had taken comes back.
    for _ in range(2):  # A lease lapses, and a retry has rested.
        state_clock.advance(61)
        await Dispatcher(state, queues, settings).settle()
    assert dies_at > 10
    for name in ("clean", "pass", "after"):
        found = tasks(state, name)
        assert len(found) == dies_at, name
    assert {row["status"] for row in tasks(state, "pass")} == {"completed"}
    for name in ("clean", "after"):
        ids = {row["id"] for row in tasks(state, name)}
        assert sorted(task for _, task in queues.wakes.values() if task in ids) == sorted(ids), name


# What is seen of it


async def test_the_metrics_show_what_is_under_way_and_how_the_loops_fare(state: State, settings: Settings) -> None:
    deployed(state, SHOP)
    dispatcher = Dispatcher(state, Heard(), settings)
    said(state, "a", "b")
    await dispatcher.settle()
    text = dispatcher.metrics.exposition(state).decode()
    assert 'qo_dispatcher_job_in_flight{dag="shop",job="clean"} 2.0' in text
    assert 'qo_dispatcher_operator_in_flight{operator="sql"} 2.0' in text
    assert "qo_dispatcher_outbox_late_seconds 0.0" in text
    assert 'qo_dispatcher_loop_failures_total{loop="release"} 0.0' in text
    assert all(name in text for name in metrics.NAMES)


# The process


@pytest.fixture
def whole(settings: Settings, state_url: str, tmp_path: Path) -> Settings:
    """Settings of a dispatcher that finds its own ports."""
    chosen = replace(
        settings.dispatcher,
        state=state_url,
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(tmp_path / "secrets"),
    )
    return replace(settings, store=f"local:{tmp_path / 'store'}", dispatcher=chosen)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_sets_up_its_state_serves_and_ends_at_a_signal(whole: Settings, number: int) -> None:
    begun: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run_dispatcher(whole, on_start=begun.set_result))
    async with asyncio.timeout(60):
        addresses = await begun
        async with httpx.AsyncClient(trust_env=False) as client:
            ready = await client.get(f"{addresses.public}/readyz")
            shown = await client.get(f"{addresses.internal}/metrics")
        os.kill(os.getpid(), number)
        await running
    assert ready.status_code == 200
    assert 'qo_dispatcher_loop_ticks_total{loop="release"}' in shown.text
    state = open_state(whole.dispatcher.state)
    deployed(state, SHOP)
    state.close()


async def test_an_address_that_is_taken_is_refused_by_name(whole: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"dispatcher\.listen"):
            await run_dispatcher(replace(whole, dispatcher=replace(whole.dispatcher, listen=at)))


@pytest.mark.fast
async def test_a_store_that_no_worker_could_share_is_refused() -> None:
    with pytest.raises(ConfigError, match="QO_STORE"):
        await run_dispatcher(replace(Settings(), store="memory:"))


@pytest.mark.fast
def test_operator_limits_are_read_from_the_settings() -> None:
    chosen = Settings().dispatcher
    assert limits(chosen) == Limits({}, 2 * chosen.pressure.depth)
    assert limits(replace(chosen, operator_limits=" compact=2, shop.feed:run=8 ,")) == Limits(
        {"compact": 2, "shop.feed:run": 8}, 2 * chosen.pressure.depth
    )


@pytest.mark.fast
@pytest.mark.parametrize("text", ["sql", "sql=", "=3", "sql=0", "sql=-1", "sql=x", "a=1,a=2", "a=²"])
def test_an_operator_limit_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="QO_OPERATOR_LIMITS"):
        limits(replace(Settings().dispatcher, operator_limits=text))


@pytest.mark.fast
def test_thresholds_of_single_queues_are_read_from_the_settings() -> None:
    chosen = Settings().dispatcher
    deep = replace(chosen, pressure=replace(chosen.pressure, queues=(("spark", "5000/60"), ("python", "2/7.5"))))
    found = thresholds(deep.pressure)
    assert (found.of_queue("spark").depth, found.of_queue("spark").age_s) == (5000, 60.0)
    assert (found.of_queue("python").depth, found.of_queue("python").age_s) == (2, 7.5)
    assert found.of_queue("lambda").depth == chosen.pressure.depth
    assert limits(deep).queue_depth == 10_000, "otherwise the deepest queue would never trip"


@pytest.mark.fast
@pytest.mark.parametrize("text", ["5", "5/", "/5", "0/5", "5/0", "a/b", "5/5/5", "-1/5", "²/5"])
def test_thresholds_that_cannot_be_read_are_refused_by_name(text: str) -> None:
    pressed = replace(Settings().dispatcher.pressure, queues=(("spark", text),))
    with pytest.raises(ConfigError, match=r"QO_PRESSURE_QUEUES: spark=.*such as spark=200/60"):
        thresholds(pressed)
