"""Workers come and go under load: every task is run once, by whoever is there."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from qo.core.task import Status, Task
from qo.queue.options import NewTask, Options
from support.process_family import pause, resume
from support.stores.queues import AT_ONCE, until
from support.worker.processes import Place, WorkerProcess, stages

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED

WORKERS = 3
ROUNDS = 2  # How often each is replaced.
TASKS_MIN = 300
BATCH, BATCH_EVERY_S = 10, 0.3


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.long])])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(f"{request.param}_place")


async def _stream(place: Place, notes: Path, rolled: asyncio.Event) -> list[Task]:
    """Submit at a steady pace while the workers are replaced."""
    tasks: list[Task] = []
    while not rolled.is_set() or len(tasks) < TASKS_MIN:
        batch = [
            NewTask(
                "noted" if n % 2 else "noted_plain",
                {"notes": str(notes), "s": 0.02 + 0.003 * n},
                Options(max_retries=0),
            )
            for n in range(BATCH)
        ]
        tasks += await place.queue.submit_many(batch)
        if not rolled.is_set():
            await asyncio.sleep(BATCH_EVERY_S)
    return tasks


def _running(notes: Path) -> Counter[str]:
    """How many tasks each worker runs, as far as its handlers have told."""
    lines = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    begun = Counter(worker for _, what, worker in lines if what == "begin")
    return begun - Counter(worker for _, what, worker in lines if what == "end")


async def test_a_rolling_restart_under_load_runs_every_task_once(place: Place, tmp_path: Path) -> None:
    notes, rolled = tmp_path / "notes", asyncio.Event()
    names = (f"w{n}" for n in itertools.count())
    settings = {"QO_CONCURRENCY": "2", "QO_LEASE_S": "30"}
    async with AsyncExitStack() as stack:

        async def start() -> WorkerProcess:
            return await stack.enter_async_context(place.worker(next(names), **settings))

        async def busy(worker: WorkerProcess) -> bool:
            return _running(notes)[worker.worker_id] > 0

        workers = [await start() for _ in range(WORKERS)]
        streaming = asyncio.create_task(_stream(place, notes, rolled))
        gone: list[WorkerProcess] = []
        for n in range(ROUNDS * WORKERS):
            leaving = workers[n % WORKERS]
            workers[n % WORKERS] = await start()
            await place.reported(workers[n % WORKERS].worker_id, "running")
            await until(lambda leaving=leaving: busy(leaving), every_s=0.003)
            leaving.signal(signal.SIGTERM)
            assert await leaving.code() == 0
            gone.append(leaving)
        rolled.set()
        tasks = await streaming
        done = await place.ended(tasks)
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert await worker.code() == 0
    assert {(task.status, task.retry_count) for task in done} == {(C, 0)}
    assert sum(worker.stats["completed"] for worker in (*gone, *workers)) == len(done)
    assert sum(worker.stats["lost"] for worker in (*gone, *workers)) == 0
    assert await place.roster() == {}
    assert Counter(line.split()[0] for line in notes.read_text().splitlines()) == {task.id: 2 for task in done}
    _assert_no_overlap(notes)
    await _assert_linear(place, done)


def _assert_no_overlap(notes: Path) -> None:
    """A second run of a task, were there one, begins after the first has ended."""
    running: dict[str, str] = {}
    for line in notes.read_text().splitlines():
        task_id, what, worker = line.split()
        if what == "begin":
            assert task_id not in running
            running[task_id] = worker
        else:
            assert running.pop(task_id) == worker
    assert running == {}


async def _assert_linear(place: Place, done: list[Task]) -> None:
    """Claimed, given back any number of times, and completed at last: never twice, and by whoever held it."""
    histories = await asyncio.gather(*(place.queue.history(task.id) for task in done))
    for task, history in zip(done, histories, strict=True):
        turns = [stage for n in range(1, task.attempt) for stage in ((R, n), (P, n))]
        assert stages(history) == [(P, 0), *turns, (R, task.attempt), (C, task.attempt)]
        assert [state.status for state in history].count(C) == 1
        assert task.output == history[-2].worker_id


# With leased shards

LEASING = {"QO_SHARD_LEASING_TTL_S": "2", "QO_SHARD_LEASING_RENEW_S": "0.5", "QO_SHARD_LEASING": "1"}
UNITS = 16


def _tasks(count: int) -> list[NewTask]:
    return [NewTask("work", {"s": 0.01, "n": n}, Options(retry_policy=AT_ONCE)) for n in range(count)]


async def test_leased_shards_of_the_dead_and_the_frozen_go_to_the_others(place: Place) -> None:
    names = ("w0", "w1", "w2", "w3")
    async with AsyncExitStack() as stack:
        workers = {
            name: await stack.enter_async_context(place.worker(name, "--shard-leasing", **LEASING))
            for name in names
        }

        async def spread(among: tuple[str, ...]) -> dict[str, set[str]] | None:
            """Who owns what, once it is shared out evenly."""
            shown = await place.roster()
            owned = {name: set(shown[name].shards) if name in shown else set[str]() for name in among}
            whole = set().union(*owned.values())
            mean = UNITS / len(among)
            even = all(abs(len(units) - mean) <= 1 for units in owned.values())
            return owned if even and len(whole) == UNITS == sum(map(len, owned.values())) else None

        first = await place.queue.submit_many(_tasks(32))
        owned = await until(lambda: spread(names), within_s=30, every_s=0.1)
        shown = {worker["worker_id"]: set(worker["shards"]) for worker in await place.json("worker", "list")}
        assert shown == owned
        assert {task.status for task in await place.ended(first)} == {C}

        workers["w0"].signal(signal.SIGKILL)
        pause(workers["w1"].process.pid)
        second = await place.queue.submit_many(_tasks(32))
        assert {task.status for task in await place.ended(second)} == {C}
        await until(lambda: spread(("w2", "w3")), within_s=30, every_s=0.1)

        resume(workers["w1"].process.pid)
        await until(lambda: spread(("w1", "w2", "w3")), within_s=30, every_s=0.1)
        third = await place.queue.submit_many(_tasks(16))
        assert {task.status for task in await place.ended(third)} == {C}
        for name in ("w1", "w2", "w3"):
            workers[name].signal(signal.SIGTERM)
            assert await workers[name].code() == 0
