"""Workers as processes, on stores that processes share. Import the fixtures in a ``conftest.py`` to use them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import qo
from qo.core.task import Status, Task
from qo.queue import roster
from qo.queue.queue import Queue
from qo.store.queue_manifest import Proof, record_proof
from support.cli.command import Answer, Qo
from support.stores.queues import until

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

# Short enough for a test, long enough for a machine that stands still for a few seconds now and then.
LEASE_S = 5.0
SETTINGS = {
    "QO_CONCURRENCY": "4",
    "QO_POLL_MAX_MS": "100",
    "QO_LEASE_S": str(LEASE_S),
    "QO_CONTROL_S": "0.3",
    "QO_HEARTBEAT_S": "0.5",
    "QO_MONITOR_CHECK_INTERVAL_S": "0.2",
    "QO_LOG": "warning",
    "PYTHONPATH": str(Path(__file__).parents[2] / "apps"),
}


class WorkerProcess:
    """One ``qo worker``, and what it said."""

    def __init__(self, worker_id: str, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.worker_id = worker_id
        self.process = process
        self._out, self._err = out, err

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def code(self, *, within_s: float = 20.0) -> int:
        """How it ended."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    @property
    def stats(self) -> dict[str, Any]:
        """What it told at its end."""
        return json.loads(self._out.read_text())

    @property
    def said(self) -> str:
        return self._err.read_text()


class Place:
    """A store that processes share, and how they are told of it."""

    def __init__(self, queue: Queue, environment: dict[str, str], directory: Path) -> None:
        self.queue = queue
        self.directory = directory
        self._environment = environment
        self._started = 0

    @asynccontextmanager
    async def worker(self, worker_id: str, *options: str, **settings: str) -> AsyncIterator[WorkerProcess]:
        """A worker process; whatever happens, it is gone at the end of the block."""
        self._started += 1
        out, err = (self.directory / f"{worker_id}-{self._started}.{name}" for name in ("out", "err"))
        command = self._qo(**settings)
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = await asyncio.create_subprocess_exec(
                *command.command("worker", "--app", "process_handlers:app", "--id", worker_id, "--json", *options),
                cwd=self.directory,
                env=command.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
            )
        try:
            yield WorkerProcess(worker_id, process, out, err)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def qo(self, *args: str, **settings: str) -> Answer:
        """The command, in a process of its own."""
        return await asyncio.to_thread(self._qo(**settings), *args)

    async def ok(self, *args: str, **settings: str) -> str:
        answer = await self.qo(*args, **settings)
        assert answer.code == 0, answer
        return answer.out

    async def json(self, *args: str, **settings: str) -> Any:
        return json.loads(await self.ok(*args, "--json", **settings))

    def _qo(self, **settings: str) -> Qo:
        return Qo(self.directory, {**SETTINGS, **self._environment, **settings})

    # What is, and what is waited for

    async def now(self, tasks: Sequence[Task]) -> list[Task]:
        return list(await asyncio.gather(*(self.queue.get(task.id) for task in tasks)))

    async def ended(self, tasks: Sequence[Task], *, within_s: float = 40.0) -> list[Task]:
        async def all_ended() -> list[Task] | None:
            now = await self.now(tasks)
            return now if all(task.ended for task in now) else None

        return await until(all_ended, within_s=within_s, every_s=0.05)

    async def held(self, worker_id: str, at_least: int = 1) -> list[Task]:
        """What the worker holds, once it is as much as that."""
        return await self.counted(Status.RUNNING, worker_id, at_least)

    async def counted(self, status: Status, worker_id: str, at_least: int) -> list[Task]:
        async def enough() -> list[Task] | None:
            found = [task for task in await self.queue.list(status=status) if task.worker_id == worker_id]
            return found if len(found) >= at_least else None

        return await until(enough, every_s=0.03, within_s=60)

    async def roster(self) -> dict[str, roster.WorkerInfo]:
        return {info.worker_id: info for info in await roster.workers(self.queue.store)}

    async def reported(self, worker_id: str, state: str) -> roster.WorkerInfo:
        """The worker's report, once it says this."""

        async def says_so() -> roster.WorkerInfo | None:
            info = await roster.find(self.queue.store, worker_id)
            return info if info is not None and info.state == state else None

        return await until(says_so, every_s=0.03, within_s=60)


@pytest.fixture
async def local_place(tmp_path: Path) -> AsyncIterator[Place]:
    store = f"local:{tmp_path / 'store'}"
    async with qo.connect(store) as queue:
        yield Place(queue, {"QO_STORE": store}, tmp_path)


@pytest.fixture
async def s3_place(s3_server: S3Server, s3_env: dict[str, str], tmp_path: Path) -> AsyncIterator[Place]:
    store = await s3_server.open_store(s3_env["S3_BUCKET"])
    proof = Proof(proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(store, proof)
    async with Queue(store) as queue:
        yield Place(queue, s3_env, tmp_path)


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(f"{request.param}_place")


def stages(history: Sequence[Task]) -> list[tuple[Status, int]]:
    """What a task went through, renewals of one lease left out."""
    return list(dict.fromkeys((state.status, state.attempt) for state in history))
