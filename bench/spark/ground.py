"""qo as ``qo up`` runs it, for one pipeline whose events we announce: dispatcher, SQLite, and one warm Spark worker."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from bench.spark.talking import ROOT
from qo.api.public_client import UserClient
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.pipeline.parsing import read
from qo.store.secret_files import read_secret
from qo.up.installation import Installation as Site
from qo.up.targets import Pipeline

WITHIN_S = 300.0
POLL_S = 0.5  # Rarely: on few cores, who looks on takes part. When tasks ended, they say themselves.
EMITTED_MAX = 500
SLOTS = 4  # Tasks side by side, and threads of every other side.

tasks, events = schema.tasks, schema.events

SMALL = """
name: small
defaults: {max_attempts: 1}
jobs:
  - {name: numbers, activation: source, outputs: 1, source: {kind: manual}}
  - name: totals
    activation: reactive
    runtime: spark
    operator: bench.spark.work:totals
    inputs: [{from: {job: numbers}}]
    execution_strategy: PerPartition
    outputs: 1
"""


class Installation:
    """Use it as a context; everything is gone after it."""

    def __init__(self, source: str, operators: Path = ROOT, *, within_s: float = WITHIN_S, **flags: Any) -> None:
        self._stack, self._within_s = ExitStack(), within_s
        self._source, self._operators, self._flags = source, operators, flags
        self._emitted = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qo-bench-")))
            self._runner = stack.enter_context(asyncio.Runner())
            home = self.directory / "qo"
            flags = {
                "store": f"local:{home}",
                "dispatcher.state": f"sqlite:{home}/state.db",
                "dispatcher.data": f"file:{home}/data",
                "dispatcher.secrets_dir": f"{home}/secrets",
                "worker.concurrency": str(SLOTS),
                **self._flags,
            }
            dag = read(self._source)
            self._dag = dag.name
            self._pipeline = Pipeline(dag, self._source, self._operators)
            self._site = Site(flags, None, [self._pipeline], home / "logs")
            self._runner.run(self._site.__aenter__())
            stack.callback(lambda: self._runner.run(self._site.__aexit__(None, None, None)))
            self._runner.run(self._begin())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def _begin(self) -> None:
        await self._site.start()
        await self._site.deploy(self._pipeline)
        self._site.start_workers(self._pipeline.runtimes)
        secrets = Path(self._site.settings.dispatcher.secrets_dir)
        token = read_secret(secrets / "admin.token").decode().strip()
        self._client = UserClient(self._site.public, token, patience_s=30.0)

    def emit(self, job: str, said: Sequence[Mapping[str, Any]]) -> None:
        """Announce something new for a source, as a program does."""
        self._runner.run(self._emit(job, said))

    async def _emit(self, job: str, said: Sequence[Mapping[str, Any]]) -> None:
        for low in range(0, len(said), EMITTED_MAX):
            self._emitted += 1
            body = {"idempotency_key": f"bench-{self._emitted}", "events": said[low : low + EMITTED_MAX]}
            await self._client.post(f"/v1/sources/{self._dag}/{job}/events", body)

    def completed(self, wanted: Mapping[str, int]) -> None:
        """Until so many tasks of these jobs are there and all have been completed, each at the first attempt."""
        self._runner.run(self._completed(wanted))

    async def _completed(self, wanted: Mapping[str, int]) -> None:
        deadline = time.monotonic() + self._within_s
        while (found := await self._site.read(self._counts)) != (found | wanted):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{found}, not {wanted}; {self._complaints()}")
            await asyncio.sleep(POLL_S)
        if bad := await self._site.read(_troubled):
            raise RuntimeError(f"{bad[0]['job']} took {bad[0]['attempt']} attempts: {bad[0]['last_error']}")

    def run(self, job: str, said: Sequence[Mapping[str, Any]], wanted: Mapping[str, int]) -> float:
        """Announce, and wait for what comes of it; how long it took until the last was committed."""
        began = datetime.now(UTC)
        self.emit(job, said)
        self.completed(wanted)
        query = sa.select(sa.func.max(tasks.c.completed_at).label("at")).where(tasks.c.job.in_(wanted))
        ended: datetime = self.rows(query)[0]["at"]
        return (ended - began).total_seconds()

    def small(self, sources: Sequence[Path]) -> float:
        """The trivial work, a task for each file; how long that took."""
        self.done = getattr(self, "done", 0) + len(sources)
        return self.run("numbers", [announced(path) for path in sources], {"totals": self.done})

    def rest(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def rows(self, query: sa.Select[Any]) -> list[Mapping[str, Any]]:
        return self._runner.run(self._site.read(lambda tx: list(tx.all(query))))

    def _counts(self, tx: Tx) -> dict[str, int]:
        """Completed tasks by job. Raises RuntimeError for one that has failed."""
        query = sa.select(tasks.c.job, tasks.c.status, sa.func.count()).group_by(tasks.c.job, tasks.c.status)
        found = list(tx.execute(query))
        if bad := [job for job, status, _ in found if status in ("failed", "cancelled", "expired")]:
            error = tx.value(sa.select(tasks.c.last_error).where(tasks.c.status == "failed").limit(1))
            raise RuntimeError(f"tasks of {bad} failed: {error}; {self._complaints()}")
        return {job: count for job, status, count in found if status == "completed"}

    def _complaints(self) -> str:
        logs = sorted((self.directory / "qo" / "logs").glob("*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in logs)


def announced(path: Path) -> dict[str, Any]:
    """The event that a file is there."""
    attributes = {"location": f"file:{path.parent}", "files": [path.name], "size": path.stat().st_size}
    return {"output": 0, "partition_key": f"{path.parent.name}-{path.stem}", "attributes": attributes}


def _troubled(tx: Tx) -> list[Mapping[str, Any]]:
    return list(tx.all(sa.select(tasks).where(tasks.c.attempt > 1).limit(1)))
