"""Handlers that hang, or raise what cannot be written: the worker and its other tasks go on."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.core.task import Status, Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.roster import validate_worker_id
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.loop.outcome import text_of
from qo.worker.service import make_worker_id
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, config, ended, hasty, until, virtual_queue, working

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


@pytest.fixture
def queue() -> Queue:
    return Queue(MemoryStore(), ambient=hasty())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging handlers wait for; opened at the end, so that no thread outlives its test."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.mark.fast
async def test_a_hung_thread_keeps_its_slot_so_nothing_fails_without_having_begun(
    queue: Queue, gate: threading.Event
) -> None:
    ran: list[int] = []

    def hangs(input: Any) -> None:
        gate.wait(60)

    def quick(input: Any, ctx: Context) -> str:
        ran.append(ctx.attempt)
        return "done"

    stuck = await queue.submit_many([NewTask("hangs", n, Options(timeout_s=0.1, max_retries=0)) for n in range(2)])
    async with working(queue, app_of(hangs, quick), concurrency=2):
        for task in stuck:
            last_error = (await ended(queue, task.id)).last_error or ""
            assert last_error.startswith("timed out after 0.1 s: ")
        waits = await queue.submit("quick", options=Options(timeout_s=0.1, retry_policy=AT_ONCE))
        await asyncio.sleep(0.3)  # Longer than its timeout: would it be claimed, it would fail.
        assert (await queue.get(waits.id)).status is P
        gate.set()
        done = await ended(queue, waits.id)
    assert (done.status, done.attempt, done.retry_count, ran) == (C, 1, 0, [1])


@pytest.mark.fast
async def test_slots_that_are_not_stuck_go_on_working(queue: Queue, gate: threading.Event) -> None:
    def hangs(input: Any) -> None:
        gate.wait(60)

    def quick(input: Any) -> None: ...

    stuck = await queue.submit("hangs", options=Options(timeout_s=0.1, max_retries=0))
    async with working(queue, app_of(hangs, quick), concurrency=2):
        await ended(queue, stuck.id)
        for task in await queue.submit_many([NewTask("quick", n) for n in range(5)]):
            assert (await ended(queue, task.id)).status is C


@pytest.mark.fast
async def test_a_task_whose_thread_still_runs_is_not_given_back(
    queue: Queue, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    def hangs(input: Any) -> None:
        begun.set()
        gate.wait(60)

    task = await queue.submit("hangs", options=Options(timeout_s=60))
    worker = Worker(queue, app_of(hangs), config(shutdown_grace_s=0, cancel_grace_s=0.1))
    running = asyncio.create_task(worker.run())
    await until(lambda: _true(begun.is_set()))
    worker.stop()
    tally = await running
    assert (tally.released, (await queue.get(task.id)).status) == (0, R), "nobody else may begin it beside us"
    assert f"task {task.id}: its handler will not stop" in caplog.text


@pytest.mark.fast
async def test_an_async_handler_that_will_not_stop_does_not_keep_the_worker(queue: Queue) -> None:
    begun, enough = asyncio.Event(), asyncio.Event()

    async def stubborn(input: Any) -> None:
        begun.set()
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue

    task = await queue.submit("stubborn", options=Options(timeout_s=60))
    worker = Worker(queue, app_of(stubborn), config(shutdown_grace_s=0, cancel_grace_s=0.1))
    running = asyncio.create_task(worker.run())
    try:
        await begun.wait()
        worker.stop()
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done, "the worker waits for ever"
        assert (running.result().released, (await queue.get(task.id)).status) == (0, R)
    finally:
        enough.set()
        await running


STUCK = """
import asyncio, sys, time
from pathlib import Path

import qo
from qo.config.origins import load
from qo.worker import worker
from qo.worker.service import run_worker

worker.BREAK_OFF_S = 0.2
app = qo.App()

@app.task("thread")
def thread(input):
    Path(input).touch()
    time.sleep(60)

@app.task("coroutine")
async def coroutine(input):
    Path(input).touch()
    while True:
        try:
            await asyncio.sleep(0.01)
        except:
            pass

async def main():
    settings = load({})
    async with qo.connect(settings) as queue:
        await run_worker(queue, app, settings)

asyncio.run(main())
print("ended well")
"""


@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_a_worker_process_ends_although_a_handler_hangs(tmp_path: Path, kind: str) -> None:
    store, begun = f"local:{tmp_path / 'store'}", tmp_path / "begun"
    async with qo.connect(store) as queue:
        task = await queue.submit(kind, str(begun))
        soon = {"QO_SHUTDOWN_GRACE_S": "0", "QO_CANCEL_GRACE_S": "0.5", "QO_POLL_MAX_MS": "100"}
        environment = {**os.environ, "QO_STORE": store, **soon}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STUCK, env=environment, stdout=-1, stderr=-1
        )
        try:
            await until(lambda: asyncio.to_thread(begun.exists))
            process.terminate()
            out, _ = await asyncio.wait_for(process.communicate(), 15)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        assert (process.returncode, out) == (0, b"ended well\n")
        assert (await queue.get(task.id)).status is R, "left to its lease"


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit(3)


class BareRetry(Retry):
    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class BareReschedule(Reschedule):
    def __init__(self) -> None:
        Exception.__init__(self, "bare")


def _retry_after(delay_s: Any) -> Retry:
    said = Retry("odd")
    said.delay_s = delay_s
    return said


HOSTILE: list[tuple[BaseException, str]] = [
    (OSError("caf\udce9"), "OSError: caf?"),
    (Reject("caf\udce9"), "caf?"),
    (Speechless(), "Speechless"),
    (BareRetry(), "bare"),
    (BareReschedule(), "AttributeError: "),
    (_retry_after(float("nan")), "UsageError: delay_s must be between"),
    (_retry_after("soon"), "UsageError: delay_s must be a number"),
]


@pytest.mark.fast
@pytest.mark.parametrize(("error", "told"), HOSTILE, ids=lambda case: type(case).__name__)
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_handler_raises_is_reported(
    queue: Queue, kind: str, error: BaseException, told: str
) -> None:
    def raises_sync(input: Any) -> None:
        raise error

    async def raises_async(input: Any) -> None:
        raise error

    handler = raises_sync if kind == "sync" else raises_async
    task = await _outcome(queue, handler)
    assert task.status is F
    assert (task.last_error or "").startswith(told)


@pytest.mark.fast
def test_an_error_that_exits_when_it_is_read_ends_nothing() -> None:
    assert text_of(Exits()) == "Exits"


@pytest.mark.fast
async def test_an_output_that_cannot_be_encoded_fails_the_task(queue: Queue) -> None:
    async def deep(input: Any) -> Any:
        nested: list[Any] = []
        for _ in range(100_000):
            nested = [nested]
        return nested

    assert (await _outcome(queue, deep)).status is F


@pytest.mark.fast
async def test_a_surrogate_in_the_source_of_an_error_is_no_obstacle(queue: Queue) -> None:
    async def raises(input: Any) -> None:
        raise KeyError("x") from ValueError("caf\udce9")

    task = await _outcome(queue, raises)
    assert (task.status, task.last_error) == (F, "KeyError: 'x'")
    assert "ValueError: caf?" in (task.traceback or "")


@pytest.mark.fast
@pytest.mark.parametrize("what", ["renew", "report", "share"])
def test_a_surprise_in_one_heartbeat_costs_nobody_the_next(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug met while renewing, reporting or looking round is logged, and the leases are still held."""

    async def main() -> None:
        queue = virtual_queue()

        async def slow(input: Any) -> str:
            await asyncio.sleep(input)
            return "done"

        bad = await queue.submit("slow", 200, Options(timeout_s=300))
        good = await queue.submit("slow", 200, Options(timeout_s=300))
        _break(what, queue, bad, monkeypatch)
        async with working(queue, app_of(slow)):
            await asyncio.sleep(150)
            held = await queue.get(good.id)
            assert (await queue.store.now() - held.updated_at).total_seconds() < 30, "renewed a moment ago"
            await asyncio.sleep(100)
            assert (await queue.get(good.id)).output == "done"

    virtual.run(main())
    assert "Traceback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def _break(what: str, queue: Queue, bad: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    from qo.queue import roster

    renew, report = queue.renew, roster.report
    reports = 0

    async def renew_all_but_one(claim: Any, *arguments: Any, **options: Any) -> Task:
        if claim.task.id == bad.id:
            raise ZeroDivisionError
        return await renew(claim, *arguments, **options)

    async def report_once(*arguments: Any) -> None:
        nonlocal reports
        reports += 1
        if reports > 1:
            raise ZeroDivisionError
        await report(*arguments)

    async def last_heard(*arguments: Any) -> Any:
        raise ZeroDivisionError

    match what:
        case "renew":
            monkeypatch.setattr(queue, "renew", renew_all_but_one)
        case "report":
            monkeypatch.setattr(roster, "report", report_once)
        case _:
            monkeypatch.setattr(roster, "last_heard", last_heard)


@pytest.mark.fast
def test_a_renewal_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        queue = virtual_queue()

        async def slow(input: Any) -> str:
            await asyncio.sleep(input)
            return "done"

        tasks = await queue.submit_many([NewTask("slow", 200, Options(timeout_s=300)) for _ in range(6)])
        renew = queue.renew

        async def hangs(claim: Any, *arguments: Any, **options: Any) -> Task:
            if claim.task.id != tasks[-1].id:
                await asyncio.sleep(40)
            return await renew(claim, *arguments, **options)

        monkeypatch.setattr(queue, "renew", hangs)
        async with working(queue, app_of(slow)):
            for _ in range(18):
                await asyncio.sleep(10)
                held = await queue.get(tasks[-1].id)
                assert (await queue.store.now() - held.updated_at).total_seconds() < 60

    virtual.run(main())


async def _outcome(queue: Queue, function: Callable[..., Any]) -> Task:
    """What one attempt that is also the last makes of a task, well before its lease would run out."""
    options = Options(max_retries=0, max_reschedules=0, timeout_s=3600, retry_policy=AT_ONCE)
    task = await queue.submit(function.__name__, None, options)
    async with working(queue, app_of(function)):
        return await ended(queue, task.id)


async def _true(value: bool) -> bool:
    return value


@pytest.mark.fast
@pytest.mark.parametrize("host", ["büro-säule", "…", "a" * 300, ""])
def test_a_host_of_any_name_gives_its_workers_a_valid_one(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    name = make_worker_id(Queue(MemoryStore()))
    assert validate_worker_id(name) == name
