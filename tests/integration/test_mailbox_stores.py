"""What ``test_mailbox.py`` says of workers, where it takes real time, real stores or child processes to see it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import child_functions
import pytest

from qo.core import keys
from qo.core.task import Status, Task
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.port import LIST_LIMIT_MAX, Page, Stored, Unchanged
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.loop.state import State
from qo.worker.observe import status
from qo.worker.worker import Worker
from support.stores.queues import another, app_of, config, ended, until, working
from support.worker.checked_worker import books

__all__ = ["books"]

C, F = Status.COMPLETED, Status.FAILED


async def true(value: object) -> bool:
    return bool(value)


async def test_15b_two_workers_on_any_store_never_take_live_work_from_each_other(queue: Queue) -> None:
    over = asyncio.Event()
    ran: list[str] = []

    async def slow(input: Any, ctx: Context) -> None:
        ran.append(ctx.task_id)
        await asyncio.sleep(3)

    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=60)) for n in range(8)])
    monitor = asyncio.create_task(Monitor(another(queue), MonitorConfig(check_interval_s=0.2)).run(over))
    async with (
        working(another(queue), app_of(slow), worker_id="w0", concurrency=4, lease_s=2) as first,
        working(another(queue), app_of(slow), worker_id="w1", concurrency=4, lease_s=2) as second,
    ):
        for task in tasks:
            done = await ended(queue, task.id)
            assert (done.status, done.attempt, done.retry_count) == (C, 1, 0)
    over.set()
    await monitor
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert first.stats.acked + second.stats.acked == 8


async def open_local(path: Path) -> Queue:
    return Queue(await LocalStore.open(path, forget=keys.EPHEMERAL))


@contextmanager
def monitored(path: Path) -> Iterator[None]:
    """A monitor that checks all the time, on a thread of its own, whatever happens on this one."""
    over = threading.Event()

    async def check() -> None:
        async with await open_local(path) as queue:
            monitor = Monitor(queue)
            while not over.is_set():
                await monitor.check()
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(check()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_18_a_handler_that_blocks_misses_no_renewal(tmp_path: Path, kind: str) -> None:
    """One that blocks the event loop, and a plain function on its thread: the keeper has a thread of its own."""
    path, app = tmp_path / "store", App()
    blocked_s, lease_s = 6.0, 4.0  # Even if the machine has no time for us for two seconds.

    def blocks(input: Any) -> str:
        time.sleep(blocked_s)
        return "done"

    async def blocks_the_loop(input: Any) -> str:
        return blocks(input)

    app.task("blocks")(blocks if kind == "thread" else blocks_the_loop)
    async with await open_local(path) as queue:
        task = await queue.submit("blocks")
        worker = Worker(queue, app, config(lease_s=lease_s), open_queue=lambda: open_local(path))
        with monitored(path):
            running = asyncio.create_task(worker.run())
            done = await ended(queue, task.id)
            worker.stop()
            stats = await running
        history = await queue.history(task.id)
    assert (done.output, done.attempt, stats.acked, stats.lost) == ("done", 1, 1, 0)
    held = [each for each in history if each.status is Status.RUNNING]
    assert len(held) >= 4, "claimed, and renewed about every third of the lease"
    for before, after in pairwise([*held, done]):
        assert before.lease_expires_at is not None
        assert after.updated_at < before.lease_expires_at


def ask(worker: Worker, path: str) -> tuple[int, str]:
    assert worker.http is not None
    connection = HTTPConnection(worker.http, timeout=20)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


class Breakable(MemoryStore):
    broken = False

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        if self.broken and prefix.startswith(keys.READY):
            raise ZeroDivisionError("this should never happen")
        return await super().list(prefix, start_after=start_after, limit=limit)

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        if self.broken and key == keys.BOARD:  # A worker that rests reads the board instead of listing.
            raise ZeroDivisionError("this should never happen")
        return await super().get_if_changed(key, etag)


@pytest.mark.fast
async def test_21a_a_worker_whose_mailbox_died_says_so_finishes_what_runs_and_ends_with_the_error() -> None:
    store, go, begun = Breakable(), asyncio.Event(), asyncio.Event()
    queue = Queue(store)

    async def work(input: Any) -> str:
        begun.set()
        await go.wait()
        return "done"

    task = await queue.submit("work")
    worker = Worker(queue, app_of(work), config(concurrency=2, http="127.0.0.1:0"))
    running = asyncio.create_task(worker.run())
    await begun.wait()
    assert await asyncio.to_thread(ask, worker, "/livez") == (200, "ok\n")
    store.broken = True
    await worker.reached(State.FAILED)
    code, said = await asyncio.to_thread(ask, worker, "/livez")
    assert (code, "its mailbox died" in said) == (503, True)
    assert (await asyncio.to_thread(ask, worker, "/readyz"))[0] == 503
    go.set()
    with pytest.raises(ZeroDivisionError):
        await running
    assert (await queue.get(task.id)).output == "done", "what ran was finished and reported"
    assert worker.state is State.STOPPED


async def test_21b_a_worker_whose_loop_is_blocked_says_so_and_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "LOOP_BLOCKED_S_MAX", 1.5)
    queue, go = Queue(MemoryStore()), threading.Event()
    seen: list[str] = []

    async def blocks(input: Any) -> None:
        go.wait(20)

    def watch() -> None:
        while not seen:
            code, said = ask(worker, "/livez")
            if code == 503:
                seen.append(said)
            time.sleep(0.05)
        go.set()

    async with working(queue, app_of(blocks), http="127.0.0.1:0") as worker:
        await until(lambda: true(worker.http))
        watcher = asyncio.create_task(asyncio.to_thread(watch))
        task = await queue.submit("blocks")
        assert (await ended(queue, task.id)).status is C
        await watcher
        assert "the event loop has been blocked" in seen[0]

        async def recovered() -> bool:
            return (await asyncio.to_thread(ask, worker, "/livez"))[0] == 200

        await until(recovered)


def in_children(*names: str) -> App:
    app = App()
    for name in names:
        app.task(name, kind="process")(getattr(child_functions, name))
    return app


async def test_23_a_child_that_the_kernel_kills_fails_only_its_own_task() -> None:
    queue = Queue(MemoryStore())
    once = Options(max_retries=0)
    doomed = await queue.submit("dies_or_sleeps", {"dies": True}, once)
    others = await queue.submit_many(
        [NewTask("dies_or_sleeps", {"dies": False, "s": 0.5}, once) for _ in range(4)]
    )
    async with working(queue, in_children("dies_or_sleeps"), processes=3, concurrency=5) as worker:
        failed = await ended(queue, doomed.id)
        for other in others:
            done = await ended(queue, other.id)
            assert (done.output, done.attempt) == ("done", 1)
        after = await queue.submit("dies_or_sleeps", {"dies": False, "s": 0}, once)
        assert (await ended(queue, after.id)).output == "done"
    assert failed.status is F
    assert "SIGKILL" in (failed.last_error or "")
    assert (worker.stats.acked, worker.stats.dead, worker.stats.lost) == (5, 1, 0)


async def outputs(queue: Queue, tasks: list[Task]) -> Counter[int]:
    done = [await ended(queue, task.id) for task in tasks]
    assert {(task.status, task.attempt) for task in done} == {(C, 1)}, "no replacement costs a task anything"
    return Counter(task.output for task in done)


async def test_24a_children_are_replaced_by_count_while_there_is_a_backlog() -> None:
    queue = Queue(MemoryStore())
    tasks = await queue.submit_many([NewTask("pid", 0.01) for _ in range(16)])
    async with working(queue, in_children("pid"), processes=2, process_tasks_max=3):
        pids = await outputs(queue, tasks)
    assert max(pids.values()) <= 3
    assert len(pids) >= 6


async def test_24b_children_are_replaced_by_memory_while_there_is_a_backlog() -> None:
    queue = Queue(MemoryStore())
    tasks = await queue.submit_many([NewTask("grows", 100_000_000) for _ in range(6)])
    async with working(queue, in_children("grows"), processes=1, process_memory_max_mb=180):
        pids = await outputs(queue, tasks)
    assert len(pids) >= 2
    assert max(pids.values()) <= 3
