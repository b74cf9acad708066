"""Pipelines in a test: a dispatcher, a worker and a state database in this process, on a clock that skips waiting.

    def test_a_day_becomes_its_total(qo_pipelines, qo_run):
        qo_pipelines.deploy(pipeline)
        qo_pipelines.emit("days.orders", "2024-01-01")
        qo_run(qo_pipelines.drain())
        assert qo_pipelines.read("daily_totals") == {"2024-01-01": [b"42"]}

The dispatcher's loops, its internal API, the queue and the worker are those of production, without ports and without
other processes. Only Python operators run; for those on Spark there is ``qo.testing.spark.run_operator``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa

from qo.agent.agent import WAKE, Agent
from qo.agent.heartbeats import HeartbeatThread, HeldTask
from qo.agent.operators import PythonExecutor
from qo.agent.run_input import uris
from qo.api.contract.task import EventBody, Piece
from qo.api.internal_client import DispatcherClient
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.words import plural
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.apps import close_app, internal_app
from qo.dispatcher.outbox.queues import KEY_SCOPE
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import open_state
from qo.dispatcher.state.upgrade import upgrade
from qo.dispatcher.versions.deploy import deploy
from qo.dispatcher.views import reading
from qo.errors import UsageError
from qo.pipeline.declare import Pipeline
from qo.pipeline.registry import DEFAULT
from qo.queue.options import NewTask, Options
from qo.store.blocking_files import BlockingFiles
from qo.testing.draining import DrainFailed
from qo.testing.memory_queue import MemoryQueue
from qo.worker.api.app import App

WORKER_TOKEN = "the-token-of-the-worker-in-a-test"
RUNTIMES = ("python", "dispatcher")
ROUNDS_MAX = 1_000
STEPS_MAX = 1_000
PENDING, COMPLETED, FAILED = "pending", "completed", "failed"
REPORTED_MAX = 20


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """A task of a pipeline."""

    id: str
    job: str  # dag.job
    partition_key: str | None
    cursor: int | None
    status: str
    attempts: int
    error: str | None
    traceback: str | None

    def __str__(self) -> str:
        about = self.partition_key if self.cursor is None else f"cursor {self.cursor}"
        return f"{self.job}@{about}  {self.status} after {plural(self.attempts, 'attempt')}: {self.error}"


@dataclass(frozen=True, slots=True)
class PipelinesDrained:
    ended: tuple[PipelineTask, ...]  # Those that ended during this drain, by time and then by name.
    remaining: tuple[PipelineTask, ...]  # Those that could not run: paused, or held back by a limit.

    @property
    def completed(self) -> tuple[PipelineTask, ...]:
        return tuple(ran for ran in self.ended if ran.status == COMPLETED)

    @property
    def failed(self) -> tuple[PipelineTask, ...]:
        return tuple(ran for ran in self.ended if ran.status == FAILED)


class Pipelines:
    """Everything that pipelines need, below one directory."""

    def __init__(self, directory: Path) -> None:
        settings = DispatcherSettings(
            state=f"sqlite:{directory / 'state.db'}",
            secrets_dir=str(directory / "secrets"),
            data=f"file:{directory / 'data'}",
        )
        self._queue = MemoryQueue()
        clock = self._queue.clock
        self.state = open_state(settings.state, ambient=self._queue.ambient, clock=lambda _: clock.now())
        upgrade(self.state)
        self._context = Context(
            state=self.state,
            settings=Settings(dispatcher=settings),
            keyring=KeyRing.open(directory / "secrets"),
            tokens=LocalTokens((WORKER_TOKEN,)),
        )
        self._dispatcher = Dispatcher(self.state, _WakeUpPublisher(self._queue), self._context.settings)
        self._secrets = directory / "secrets"

    def close(self) -> None:
        self._dispatcher.close()
        self.state.close()

    def deploy(self, pipeline: Pipeline) -> None:
        """Deploy a pipeline. Its first version is active at once; a later one is staged.

        Raises DefinitionError, and UsageError for operators that do not run in Python.
        """
        dag = pipeline.document()
        for job in dag.jobs:
            if job.runtime not in RUNTIMES:
                raise UsageError(
                    f"{dag.name}.{job.name} has the runtime {job.runtime!r}, but only Python operators run here: "
                    "leave the job out of this test, or use qo.testing.spark.run_operator"
                )
        with self.state.write() as tx:
            deploy(tx, dag, pipeline.to_yaml(), "test", DEFAULT)

    def emit(
        self,
        source: str,
        partition_key: str | None = None,
        *,
        cursor: int | None = None,
        start: int | None = None,
        end: int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Announce a new partition or cursor of a source, ``dag.job``."""
        dag, _, job = source.partition(".")
        event = EventBody(
            partition_key=partition_key, cursor=cursor, start=start, end=end, attributes=dict(attributes or {})
        )
        with self.state.write() as tx:
            emission.emit(tx, dag, job, key=tx.ambient.token(), events=[event], by="test")

    def read(self, dataset: str) -> dict[str | int, list[bytes]]:
        """Return the committed files of a dataset (a published name, or dag.job), by partition or cursor."""
        with self.state.read() as tx:
            page = reading.pieces(tx, dataset)
            pieces = page.pieces
            while page.after is not None:
                page = reading.pieces(tx, dataset, after=page.after)
                pieces = pieces + page.pieces
        storage = BlockingFiles()
        return {_name(piece): [storage.read(uri) for uri in uris(piece)] for piece in pieces}

    async def drain(self, *, may_fail: bool = False) -> PipelinesDrained:
        """Route events and run tasks until nothing is left to do, skipping the delays before retries.

        Raises DrainFailed, an AssertionError, if a task failed for good, unless ``may_fail``.
        """
        __tracebackhide__ = True
        before = {ran.id: ran for ran in self._tasks()}
        internal = internal_app(self._context)
        transport = httpx.ASGITransport(internal, raise_app_exceptions=False)
        try:
            async with DispatcherClient("http://qo", WORKER_TOKEN, transport=transport) as client:
                app = App()
                runner = Agent(client, _NoHeartbeats(), PythonExecutor(), BlockingFiles(), self._secrets)
                app.task(WAKE, timeout_s=None)(runner.wake)
                await self._work(app)
        finally:
            close_app(internal)
        now = [ran for ran in self._tasks() if before.get(ran.id) != ran]
        drained = PipelinesDrained(
            tuple(ran for ran in now if ran.status != PENDING),
            tuple(ran for ran in self._tasks() if ran.status == PENDING),
        )
        if drained.failed and not may_fail:
            raise DrainFailed(_describe_failures(drained))
        return drained

    async def _work(self, app: App) -> None:
        for _ in range(ROUNDS_MAX):
            await self._dispatcher.settle(STEPS_MAX)
            if (await self._queue.drain(app, for_s=0)).ended:
                continue
            next_at = self._next_at()
            if next_at is None:
                return
            self._queue.clock.reach(next_at)
        raise DrainFailed(f"the drain has not ended after {ROUNDS_MAX:,} rounds")

    def _next_at(self) -> datetime | None:
        """Return when the next task will be due."""
        due = schema.tasks.c.available_at
        with self.state.read() as tx:
            return tx.value(sa.select(sa.func.min(due)).where(schema.tasks.c.status == PENDING, due > tx.now))

    def _tasks(self) -> Sequence[PipelineTask]:
        tasks = schema.tasks.c
        query = sa.select(schema.tasks).order_by(tasks.updated_at, tasks.dag, tasks.job, tasks.partition_key)
        with self.state.read() as tx:
            rows = tx.all(query)
        return [
            PipelineTask(
                row["id"],
                f"{row['dag']}.{row['job']}",
                row["partition_key"],
                row["cursor"],
                str(row["status"]),
                row["attempt"],
                row["last_error"],
                row["traceback"],
            )
            for row in rows
        ]


class _WakeUpPublisher:
    """Publishes the wake-ups of all runtimes to one queue."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        tasks = [
            NewTask(
                WAKE,
                {"task_id": wake.task_id, "queue": queue},
                Options(key=wake.id, key_scope=KEY_SCOPE, priority=wake.priority),
            )
            for wake in wakes
        ]
        await self._queue.submit_many(tasks)


class _NoHeartbeats(HeartbeatThread):
    """Sends no heartbeats: the clock stands still while an operator runs, so no lease expires."""

    def __init__(self) -> None:
        pass

    def hold(self, held: HeldTask) -> None:
        pass

    def let_go(self, held: HeldTask) -> None:
        pass


def _name(piece: Piece) -> str | int:
    return piece.cursor if piece.cursor is not None else piece.partition_key or ""


def _describe_failures(drained: PipelinesDrained) -> str:
    failed = drained.failed
    lines = [f"{len(failed)} of {len(drained.ended)} tasks failed:"]
    lines += [f"  {ran}" for ran in failed[:REPORTED_MAX]]
    lines += [f"\n{ran.job}:\n{ran.traceback.rstrip()}" for ran in failed[:REPORTED_MAX] if ran.traceback]
    return "\n".join(lines)
