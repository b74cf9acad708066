"""Real worker processes, killed, stopped and frozen: no task is lost, and none is completed twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import qo
from qo.core.task import Status, Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.manifest import Proof, record_proof
from stores import AT_ONCE, until

if TYPE_CHECKING:
    from servers import S3Server

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED

WORKER = """
import asyncio, json, time
from pathlib import Path

import qo
from qo.config.sources import load
from qo.worker.service import run_worker

app = qo.App()

@app.task("work")
async def work(input, ctx):
    await asyncio.sleep(input["s"])
    return ctx.worker_id

@app.task("freeze")
def freeze(input, ctx):
    Path(input["begun"], ctx.worker_id).touch()
    while not Path(input["go"]).exists():
        time.sleep(0.01)
    return ctx.worker_id

async def main():
    settings = load({})
    async with qo.connect(settings) as queue:
        tally = await run_worker(queue, app, settings)
    print(json.dumps({name: getattr(tally, name) for name in ("claimed", "completed", "lost", "released")}))

asyncio.run(main())
"""

# Short enough for a test, long enough for a busy machine.
SETTINGS = {
    "QO_CONCURRENCY": "4",
    "QO_POLL_MAX_MS": "100",
    "QO_HEARTBEAT_S": "0.5",
    "QO_MONITOR_CHECK_INTERVAL": "0.2",
    "QO_LOG": "warning",
}


class Place:
    """A store that processes share, and how they are told of it."""

    def __init__(self, environment: dict[str, str], queue: Queue) -> None:
        self.environment = environment
        self.queue = queue

    @asynccontextmanager
    async def worker(self, worker_id: str, **settings: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A worker process; whatever happens, it is gone at the end of the block."""
        environment = {**os.environ, **SETTINGS, **self.environment, "QO_WORKER_ID": worker_id, **settings}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, env=environment, stdout=-1, stderr=-1
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()

    async def ended(self, tasks: Sequence[Task], *, within_s: float = 60.0) -> list[Task]:
        async def all_ended() -> list[Task] | None:
            now = [await self.queue.get(task.id) for task in tasks]
            return now if all(task.ended for task in now) else None

        return await until(all_ended, within_s=within_s, every_s=0.1)


@pytest.fixture
async def local_place(tmp_path: Path) -> AsyncIterator[Place]:
    store = f"local:{tmp_path / 'store'}"
    async with qo.connect(store) as queue:
        yield Place({"QO_STORE": store}, queue)


@pytest.fixture
async def s3_place(s3_server: S3Server, s3_env: dict[str, str]) -> AsyncIterator[Place]:
    store = await s3_server.open_store(s3_env["S3_BUCKET"])
    proof = Proof(proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(store, proof)
    async with Queue(store) as queue:
        yield Place(s3_env, queue)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(f"{request.param}_place")


def _work(count: int, s: float, **options: Any) -> list[NewTask]:
    return [NewTask("work", {"s": s, "n": n}, Options(retry_policy=AT_ONCE, **options)) for n in range(count)]


async def _counted(queue: Queue, status: Status, worker_id: str, at_least: int) -> list[Task] | None:
    found = [task for task in await queue.list(status=status) if task.worker_id == worker_id]
    return found if len(found) >= at_least else None


def _stages(history: Sequence[Task]) -> list[tuple[Status, int]]:
    """What a task went through, renewals of one lease left out."""
    return list(dict.fromkeys((state.status, state.attempt) for state in history))


async def test_what_a_killed_worker_held_is_finished_by_another(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(40, 0.2, timeout_s=3))
    async with place.worker("victim") as victim, place.worker("survivor") as survivor:

        async def frozen_with_tasks_in_hand() -> bool:
            victim.send_signal(signal.SIGSTOP)
            if await _counted(queue, R, "victim", 1):
                return True
            victim.send_signal(signal.SIGCONT)
            return False

        await until(lambda: _counted(queue, C, "victim", 2))
        await until(frozen_with_tasks_in_hand)
        victim.kill()
        assert await victim.wait() == -signal.SIGKILL
        done = await place.ended(tasks)
        survivor.terminate()
        assert await survivor.wait() == 0
    assert {task.status for task in done} == {C}
    cut_off = 0
    for task in done:
        history = await queue.history(task.id)
        if task.attempt == 1:
            assert _stages(history) == [(P, 0), (R, 1), (C, 1)]
        else:
            cut_off += 1
            assert _stages(history) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]
            (why,) = {state.last_error for state in history if (state.status, state.attempt) == (P, 1)}
            assert why == "lease expired: worker victim did not finish attempt 1 in time"
            assert task.output == "survivor"
    assert 1 <= cut_off <= 4, "what the victim held, and only that"


async def test_a_terminated_worker_finishes_what_it_holds_and_loses_nothing(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(12, 0.5))
    async with place.worker("ada") as worker:
        held = await until(lambda: _counted(queue, R, "ada", 2))
        worker.terminate()
        out, _ = await worker.communicate()
    assert worker.returncode == 0
    now = [await queue.get(task.id) for task in tasks]
    assert {task.status for task in now} <= {P, C}
    assert {task.id for task in held} <= {task.id for task in now if task.status is C}
    assert all((task.status, task.attempt) in ((P, 0), (C, 1)) for task in now)
    assert b'"released": 0' in out
    async with place.worker("bob"):
        assert {task.attempt for task in await place.ended(tasks)} == {1}


async def test_a_worker_without_grace_gives_back_what_it_holds_at_no_cost(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(4, 60, max_retries=0))
    async with place.worker("ada", QO_SHUTDOWN_GRACE_S="0") as worker:
        await until(lambda: _counted(queue, R, "ada", 4))
        worker.terminate()
        out, _ = await worker.communicate()
    assert worker.returncode == 0
    assert b'"released": 4' in out
    for task in tasks:
        now = await queue.get(task.id)
        assert (now.status, now.attempt, now.retry_count) == (P, 1, 0)


async def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing(place: Place, tmp_path: Path) -> None:
    queue = place.queue
    begun, go = tmp_path / "begun", tmp_path / "go"
    begun.mkdir()
    options = Options(timeout_s=1.5, retry_policy=AT_ONCE)
    task = await queue.submit("freeze", {"begun": str(begun), "go": str(go)}, options)
    # A heartbeat that never comes, so that only its completion can tell it.
    async with place.worker("zombie", QO_NO_MONITOR="1", QO_HEARTBEAT_S="3600") as zombie:
        await until(lambda: asyncio.to_thread((begun / "zombie").exists))
        zombie.send_signal(signal.SIGSTOP)
        go.touch()
        async with place.worker("successor") as successor:
            (done,) = await place.ended([task])
            zombie.send_signal(signal.SIGCONT)
            zombie.terminate()
            out, err = await zombie.communicate()
            successor.terminate()
            assert await successor.wait() == 0
    assert (done.output, done.attempt) == ("successor", 2)
    assert await queue.get(task.id) == done
    assert _stages(await queue.history(task.id)) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]
    assert zombie.returncode == 0
    assert b'"lost": 1' in out
    assert b"the lease belongs to someone else now" in err
