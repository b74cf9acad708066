"""Random histories with real processes: edits, deploys, rollbacks, workers that are killed, data that arrives and is
corrected. What serves in the end was made by the code of its version, from the inputs of its version."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from qo.cli.pipelines.deployment import Deployment
from qo.dispatcher.state import schema
from qo.errors import QoError, TaskFailed
from qo.pipeline.loading import load_for_deploy
from support.dispatcher.sites import DAG, WITHIN_S, Process, Site, embedded, servers, site
from support.stores.queues import until

__all__ = ["embedded", "servers", "site"]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 14
PIPELINE = f"""\
name: {DAG}
defaults: {{heartbeat_timeout_seconds: 5, max_attempts: 10}}
jobs:
  - {{name: feed, activation: source, source: {{kind: manual}}, outputs: 1}}
  - {{name: months, activation: source, source: {{kind: manual}}, outputs: 1}}
  - name: day
    activation: reactive
    runtime: python
    operator: ops:day
    inputs: [{{from: {{job: feed}}}}]
    execution_strategy: PerPartition
    outputs: 1
  - name: month
    activation: reactive
    runtime: python
    operator: ops:month
    inputs: [{{from: {{job: months}}}}, {{from: {{job: day}}, trigger: false}}]
    execution_strategy: PerPartition
    outputs: 1
"""
OPERATORS = """\
import json
import days
import months


def day(run):
    run.output().write("day.json", json.dumps({"code": days.CODE}), rows=1)


def month(run):
    read = [json.loads(body)["code"] for body in run.input("day").read()]
    run.output().write("month.json", json.dumps({"code": months.CODE, "days": read}), rows=1)
"""


class History:
    def __init__(self, site: Site, seed: int, stack: AsyncExitStack) -> None:
        self.site, self.rng, self.stack = site, random.Random(seed), stack
        self.home = site.directory / "project"
        self.home.mkdir()
        (self.home / "pipeline.yaml").write_text(PIPELINE)
        (self.home / "ops.py").write_text(OPERATORS)
        self.worker: Process | None = None
        self.workers = 0
        self.log: list[str] = []

    def edit(self, name: str, code: int) -> None:
        (self.home / f"{name}.py").write_text(f"CODE = {code}\n")
        self.log.append(f"{name} = {code}")

    async def deploy(self) -> None:
        whole = load_for_deploy(str(self.home / "pipeline.yaml"))
        work = Deployment(
            DAG, whole.source, whole.bundle, wait=True, activate=True, timeout_s=WITHIN_S, again=True
        )
        try:
            async with self._without_rests():
                done = await work.run(self.site.client, None)
        except TaskFailed as error:
            error.add_note(await self._describe())
            raise
        self.log.append(f"deployed {done['deployed']['version']}")

    @asynccontextmanager
    async def _without_rests(self) -> AsyncIterator[None]:
        """A task that was lost twice rests for up to a minute and a half before its next attempt."""

        async def hasten() -> None:
            while True:
                await asyncio.to_thread(self.site.hasten)
                await asyncio.sleep(0.5)

        hastening = asyncio.create_task(hasten())
        try:
            yield
        finally:
            hastening.cancel()
            with suppress(asyncio.CancelledError):
                await hastening

    async def _describe(self) -> str:
        """What is deployed, what each task waits for, and how it came to this."""
        rebuild = await self.site.client.get(f"/v1/dags/{DAG}/rebuild")
        table = schema.tasks
        with self.site.state.read() as tx:
            tasks = tx.all(sa.select(table).where(table.c.status.in_(["pending", "running"])))
            outbox = tx.all(sa.select(schema.outbox))
        lines = [*self.log, f"rebuild: {rebuild}", *(f"task: {row}" for row in tasks)]
        return "\n".join([*lines, *(f"outbox: {row}" for row in outbox)])

    async def rollback(self) -> None:
        with suppress(QoError):
            await self.site.client.post(f"/v1/dags/{DAG}/rollback", repeatable=False)
            self.log.append("rolled back")

    async def emit(self, name: str, key: str) -> None:
        body = {"idempotency_key": f"{key}-{self.rng.random()}", "events": [{"output": 0, "partition_key": key}]}
        await self.site.client.post(f"/v1/sources/{DAG}/{name}/events", body)
        self.log.append(f"{name} {key}")

    async def replace_worker(self) -> None:
        if self.worker is not None:
            self.worker.signal(signal.SIGKILL)
            await self.worker.code()
            self.site.lapse(f"w{self.workers}")
        self.workers += 1
        self.worker = await self.stack.enter_async_context(
            self.site.worker(f"w{self.workers}", PYTHONPATH=str(self.home))
        )
        self.log.append("worker replaced")

    async def step(self) -> None:
        match self.rng.randrange(7):
            case 0:
                self.edit("days", self.rng.randint(1, 3))
            case 1:
                self.edit("months", self.rng.randint(1, 3))
            case 2:
                await self.deploy()
            case 3:
                await self.rollback()
            case 4:
                await self.replace_worker()
            case 5:
                await self.emit("months", f"m{self.rng.randint(1, 2)}")
            case _:
                await self.emit("feed", f"d{self.rng.randint(1, 4)}")

    async def at_rest(self) -> bool:
        await asyncio.to_thread(self.site.hasten)
        table = schema.tasks
        with self.site.state.read() as tx:
            active = sa.select(schema.jobs.c.edition_id).join(
                schema.dags, schema.dags.c.active_version_id == schema.jobs.c.version_id
            )
            query = sa.select(table.c.status).where(table.c.edition_id.in_(active))
            left = {"pending", "running"} & set(tx.execute(query.distinct()).scalars())
            events = tx.value(sa.select(sa.func.count()).where(schema.events.c.state == "pending"))
        return not left and not events

    def check(self) -> None:
        codes, made = self._serving()
        for key, output in made["day"].items():
            assert output["code"] == codes["day"], (key, output, codes, self.log)
        for key, output in made["month"].items():
            assert output["code"] == codes["month"], (key, output, codes, self.log)
            assert set(output["days"]) <= {codes["day"]}, (key, output, codes, self.log)

    def _serving(self) -> tuple[dict[str, int], dict[str, dict[str, Any]]]:
        """The code of each job as the active version was deployed, and what it serves."""
        parts, pointers, dags, datasets = (
            schema.partitions,
            schema.version_generations,
            schema.dags,
            schema.datasets,
        )
        query = (
            sa.select(datasets.c.job, parts.c.partition_key, parts.c.location, parts.c.files)
            .join(pointers, pointers.c.generation_id == parts.c.generation_id)
            .join(dags, dags.c.active_version_id == pointers.c.version_id)
            .join(datasets, datasets.c.id == parts.c.dataset_id)
            .where(datasets.c.job.in_(["day", "month"]))
        )
        jobs = sa.select(schema.jobs.c.name, schema.jobs.c.definition).join(
            dags, dags.c.active_version_id == schema.jobs.c.version_id
        )
        with self.site.state.read() as tx:
            rows, prints = tx.all(query), {row["name"]: row["definition"].get("code") for row in tx.all(jobs)}
        made: dict[str, dict[str, Any]] = {"day": {}, "month": {}}
        for row in rows:
            body = self.site.body(f"{row['location'].rstrip('/')}/{row['files'][0]}")
            made[row["job"]][row["partition_key"]] = json.loads(body)
        return {name: self._code(name, prints[name]) for name in made}, made

    def _code(self, name: str, wanted: str) -> int:
        """What the code says that is known by this."""
        from qo.pipeline.code.fingerprint import fingerprint

        before = {each: (self.home / f"{each}.py").read_text() for each in ("days", "months")}
        try:
            for days in (1, 2, 3):
                for months in (1, 2, 3):
                    (self.home / "days.py").write_text(f"CODE = {days}\n")
                    (self.home / "months.py").write_text(f"CODE = {months}\n")
                    if fingerprint(f"ops:{name}", [self.home]) == wanted:
                        return days if name == "day" else months
        finally:
            for each, text in before.items():
                (self.home / f"{each}.py").write_text(text)
        raise AssertionError(f"no code of {name} is known by {wanted}")


@pytest.mark.parametrize("seed", range(6))
async def test_what_serves_was_made_by_the_code_of_its_version_whatever_happened(site: Site, seed: int) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(site.dispatcher())
        history = History(site, seed, stack)
        history.edit("days", 1)
        history.edit("months", 1)
        await history.replace_worker()
        await history.deploy()
        await history.emit("feed", "d1")
        await history.emit("months", "m1")
        for _ in range(STEPS):
            await history.step()
        await until(history.at_rest, within_s=WITHIN_S, every_s=0.2)
        history.check()
