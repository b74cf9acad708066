"""A dispatcher and Spark workers as processes, and small pipelines whose tables are known beforehand.

    async with planted(directory) as plant:
        await plant.workers("w1", "w2")
        flow = await plant.flow("shop")
        await flow.emit(*DAYS)
        await flow.completed()
        assert flow.tables() == flow.expected

Workers stay for whoever comes next: to start one costs several seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import sqlalchemy as sa

import qo
from qo.api.contract.task import Piece
from qo.config.dispatcher import DispatcherSettings
from qo.config.location import local_path
from qo.config.settings import Settings
from qo.dispatcher.state import schema
from qo.dispatcher.views import reading
from qo.queue.queue import Queue
from qo.spark.io.appending import uris_of
from support.cli.command import Qo
from support.dispatcher import accounting
from support.dispatcher.sites import SHORT_LEASE_S, Process, Site
from support.process_family import family_of, resume
from support.spark import session
from support.stores.queues import until

Row = tuple[Any, ...]
Tables = Mapping[str, list[Row]]

DAYS = [f"2024-03-{day:02}" for day in range(1, 4)]
WITHIN_S = 240.0  # Two cores, on which others work, too.
JOBS = ("orders", "clean", "daily", "ledger")


# Data


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    day: str
    account: str
    cents: int

    @property
    def line(self) -> str:
        return f"{self.id},{self.day},{self.account},{Decimal(self.cents) / 100:.2f}\n"


def orders_of(day: str, dearer: int = 0) -> list[Order]:
    """What was ordered on a day: always the same."""
    chance = random.Random(day)
    first = 1000 * int(day[-2:])
    return [
        Order(first + n, day, chance.choice("abcd"), chance.randrange(100, 10_000) + dearer) for n in range(40)
    ]


def landed(orders: Sequence[Order]) -> list[Order]:
    """As they stand in the file of a day: some of them twice."""
    return [*orders, *orders[::7]]


def land(directory: Path, orders: Sequence[Order]) -> None:
    """The file of a day, all at once."""
    path = directory / f"{orders[0].day}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text("id,day,account,amount\n" + "".join(each.line for each in landed(orders)))
    beside.replace(path)


def daily_of(orders: Iterable[Order], factor: int = 1) -> list[Row]:
    """By day and account: how many, and how much. Worked out without Spark."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for each in orders:
        number, cents = totals.get((each.day, each.account), (0, 0))
        totals[each.day, each.account] = number + 1, cents + each.cents * factor
    return sorted((*key, *values) for key, values in totals.items())


def tables_of(days: Iterable[str]) -> Tables:
    """What becomes of the orders of these days. Worked out without Spark, too."""
    by_day = [orders_of(day) for day in days]
    everything = [order for orders in by_day for order in orders]
    return {
        "orders": sorted(
            (each.id, each.day, each.account, Decimal(each.cents) / 100)
            for orders in by_day
            for each in landed(orders)
        ),
        "clean": sorted((each.id, each.day, each.account, each.cents) for each in everything),
        "daily": daily_of(everything),
        "ledger": sorted((each.id, each.cents) for each in everything),
    }


def feed(name: str = "feed") -> dict[str, Any]:
    """Emits what the test says."""
    return {
        "name": name,
        "activation": "source",
        "runtime": "dispatcher",
        "operator": "noop",
        "source": {"kind": "manual"},
        "outputs": 1,
        "update_strategy": "replace",
    }


def job(name: str, operator: str, reads: str = "feed", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "activation": "reactive",
        "runtime": "spark",
        "operator": operator,
        "inputs": [{"from": {"job": reads}}],
        "execution_strategy": "PerPartition",
        "outputs": 1,
        **fields,
    }


def shop(dag: str, landing: Path, *, factor: int = 1, ledger: bool = True, adding: int = 1, **clean: Any) -> str:
    """ingest -> clean -> daily, and a ledger that is added to, by so many at once."""
    types = {"id": "long", "day": "string", "account": "string", "amount": "decimal(10,2)"}
    ingest = {
        "format": "csv",
        "path": f"file:{landing}/{{partition_key}}.csv",
        "options": {"header": True},
        "columns": [{"name": name, "type": type_} for name, type_ in types.items()],
    }
    totals = "SELECT day, account, count(*) AS orders, sum(cents) AS cents FROM clean GROUP BY day, account"
    jobs = [
        feed(),
        job("orders", "ingest", config=ingest),
        job("clean", "spark_site_operators:clean", "orders", config={"factor": factor}, **clean),
        job("daily", "sql", "clean", config={"query": totals}),
    ]
    if ledger:
        added = {"update_strategy": "append", "unique_key": ["id"], "scaling": {"max_concurrency": adding}}
        jobs.append(job("ledger", "sql", "clean", config={"query": "SELECT id, cents FROM clean"}, **added))
    return pipeline(dag, jobs, publish={f"{dag}_daily": {"from": {"job": "daily"}}})


def pipeline(dag: str, jobs: Sequence[Mapping[str, Any]], max_attempts: int = 10, **fields: Any) -> str:
    defaults = {"heartbeat_timeout_seconds": SHORT_LEASE_S, "max_attempts": max_attempts}
    return json.dumps({"name": dag, "defaults": defaults, "jobs": list(jobs), **fields})


# Processes


@dataclass(frozen=True)
class Inside(Qo):
    """The command, started by another one."""

    wrapper: tuple[str, ...] = ()

    def command(self, *args: str) -> list[str]:
        return [*self.wrapper, *super().command(*args)]


class SparkSite(Site):
    """Nothing is set but what makes Spark start quickly."""

    def __init__(
        self, directory: Path, state_url: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """``state_url``: of a state that is not in the directory."""
        self._state_at = state_url or f"sqlite:{directory / '.qo' / 'state.db'}"
        scratch = directory / "scratch"  # What killed workers leave behind goes with the directory.
        scratch.mkdir(parents=True)
        own = {**session.ENVIRONMENT, "TMPDIR": str(scratch), "QO_LOG": "info", **(environment or {})}
        super().__init__(directory, self._state_at, own)
        self._wrapper: tuple[str, ...] = ()

    @property
    def data(self) -> Path:
        return self.directory / ".qo" / "data"

    @property
    def settings(self) -> Settings:
        """Of who reads the state itself."""
        own = self.directory / ".qo"
        return Settings(
            dispatcher=DispatcherSettings(
                state=self._state_at, data=f"file:{self.data}", secrets_dir=str(own / "secrets")
            )
        )

    def qo(self, **settings: str) -> Qo:
        return Inside(self.directory, {**self._environment, **settings}, self._wrapper)

    @asynccontextmanager
    async def worker(
        self, worker_id: str, number: int = 0, *, wrapper: tuple[str, ...] = (), **settings: str
    ) -> AsyncIterator[Process]:
        """A Spark worker whose session is ready. At the end its JVM is gone, too."""
        given = {"QO_DISPATCHER_INTERNAL_URL": f"http://127.0.0.1:{self.ports[2 * number + 1]}", **settings}
        family: list[int] = []
        try:
            async with AsyncExitStack() as stack:
                self._wrapper = wrapper
                try:
                    started = self._process(worker_id, "worker", "--runtime", "spark", "--id", worker_id, **given)
                    process = await stack.enter_async_context(started)
                finally:
                    self._wrapper = ()

                async def ready() -> bool:
                    assert process.process.returncode is None, process.said
                    return "Spark is ready" in process.said

                try:
                    await until(ready, within_s=WITHIN_S, every_s=0.05)
                finally:
                    family += family_of(process.process.pid)
                yield process
        finally:
            await _all_gone(family)

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[Queue]:
        async with qo.connect(f"local:{self.directory / '.qo' / 'queues' / 'spark'}") as queue:
            yield queue


async def _all_gone(family: Sequence[int]) -> None:
    """A JVM ends by itself when its worker does; one that was frozen has to be let go first."""
    resume(*family)

    async def gone() -> bool:
        return not any(map(_is_there, family))

    await until(gone, within_s=WITHIN_S, every_s=0.05)


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# One pipeline


class Flow:
    """A pipeline of the site, known by its name."""

    def __init__(self, site: SparkSite, dag: str, jobs: Collection[str] = JOBS) -> None:
        self.site, self.dag, self.jobs = site, dag, jobs
        self.days: Sequence[str] = DAYS
        self.landing = site.directory / "landing" / dag

    async def deploy(self, source: str) -> Any:
        return await self.site.client.post(f"/v1/dags/{self.dag}/versions", {"source": source})

    async def emit(self, *partitions: str, run: str = "1", source: str = "feed") -> None:
        events = [{"output": 0, "partition_key": each} for each in partitions]
        key = f"{run} {partitions[0]} {len(partitions)}"
        said = {"idempotency_key": key, "events": events}
        await self.site.client.post(f"/v1/sources/{self.dag}/{source}/events", said)

    def tasks(self, name: str | None = None) -> list[Mapping[str, Any]]:
        table = schema.tasks
        wanted = table.c.dag == self.dag if name is None else sa.and_(table.c.dag == self.dag, table.c.job == name)
        with self.site.state.read() as tx:
            return list(tx.all(sa.select(table).where(wanted).order_by(table.c.created_at)))

    def attempts(self) -> list[tuple[str, int, str | None]]:
        """Of every task: job, number and outcome."""
        table, tasks = schema.attempts, schema.tasks
        query = sa.select(tasks.c.job, table.c.attempt, table.c.outcome).join(tasks, tasks.c.id == table.c.task_id)
        with self.site.state.read() as tx:
            return [tuple(row) for row in tx.execute(query.where(tasks.c.dag == self.dag))]

    async def completed(self, wanted: Mapping[str, int] | None = None) -> None:
        """As many tasks of these jobs have been completed, and none is left."""
        want = wanted or dict.fromkeys(self.jobs, len(self.days))

        async def all_done() -> bool:
            await asyncio.to_thread(self.site.hasten)
            rows = await asyncio.to_thread(self.tasks)
            failed = [row["last_error"] for row in rows if row["status"] in ("failed", "cancelled")]
            assert not failed, failed
            done = [row["job"] for row in rows if row["status"] == "completed"]
            return all(done.count(name) == number for name, number in want.items()) and len(done) == len(rows)

        try:
            await until(all_done, within_s=WITHIN_S, every_s=0.2)
        except TimeoutError:
            shown = [(row["job"], row["partition_key"], row["status"], row["last_error"]) for row in self.tasks()]
            raise AssertionError(f"not completed: {shown}") from None

    def pieces(self, name: str) -> list[Piece]:
        with self.site.state.read() as tx:
            return list(reading.pieces(tx, f"{self.dag}.{name}").pieces)

    def table(self, name: str) -> list[Row]:
        """Exactly what is committed."""
        return rows_of(self.pieces(name))

    def tables(self) -> Tables:
        return {name: self.table(name) for name in self.jobs}

    @property
    def expected(self) -> Tables:
        """The tables of a quiet day."""
        tables = tables_of(self.days)
        return {name: tables[name] for name in self.jobs}

    def audit(self) -> None:
        """Everything was committed once, by an attempt that was accepted."""
        tasks, attempts, commits = schema.tasks, schema.attempts, schema.commits
        with self.site.state.read() as tx:
            for name in self.jobs:
                own = sa.and_(tasks.c.dag == self.dag, tasks.c.job == name)
                rows = tx.all(sa.select(tasks.c.id, tasks.c.partition_key, tasks.c.attempt).where(own))
                assert sorted(row["partition_key"] for row in rows) == list(self.days), name
                ended = sa.select(attempts.c.task_id, attempts.c.attempt).join(
                    tasks, tasks.c.id == attempts.c.task_id
                )
                good = tx.execute(ended.where(own, attempts.c.outcome == "completed")).all()
                made = sa.select(commits.c.task_id, commits.c.attempt).join(tasks, tasks.c.id == commits.c.task_id)
                found = tx.execute(made.where(own)).all()
                assert sorted(good) == sorted(found) == sorted((row["id"], row["attempt"]) for row in rows), name
            for dataset_id in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
                assert accounting.check(tx, dataset_id).problems == ()


def rows_of(pieces: Sequence[Piece]) -> list[Row]:
    """All rows of these pieces, in order."""
    found: list[Row] = []
    for uri in uris_of(pieces):
        table = parquet.ParquetFile(local_path(uri)).read()
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(found)


# All of it


class Plant:
    """A site at work."""

    def __init__(self, site: SparkSite) -> None:
        self.site = site
        self.stack = AsyncExitStack()
        self.serving: Process  # The dispatcher, once there is one.
        self._workers: dict[str, Process] = {}

    async def serve(self) -> None:
        """A dispatcher, in place of one that is gone."""
        self.serving = await self.stack.enter_async_context(self.site.dispatcher())

    async def workers(self, *names: str, **how: Any) -> list[Process]:
        """These, ready for work: those that are gone are started again."""
        missing = [each for each in names if each not in self._workers or self._gone(each)]
        # On a stack one by one, and started together.
        opened = [self.site.worker(each, **how) for each in missing]
        for name, process in zip(
            missing, await asyncio.gather(*map(self.stack.enter_async_context, opened)), strict=True
        ):
            self._workers[name] = process
        return [self._workers[each] for each in names]

    def running(self, name: str) -> Process | None:
        """A worker that was started and has not ended."""
        return self._workers[name] if name in self._workers and not self._gone(name) else None

    def _gone(self, name: str) -> bool:
        return self._workers[name].process.returncode is not None

    async def flow(self, dag: str, **how: Any) -> Flow:
        """A shop with its files, deployed."""
        flow = Flow(self.site, dag, JOBS if how.get("ledger", True) else JOBS[:-1])
        for day in flow.days:
            land(flow.landing, orders_of(day))
        await flow.deploy(shop(dag, flow.landing, **how))
        return flow


@asynccontextmanager
async def planted(
    directory: Path, state_url: str | None = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Plant]:
    """With a dispatcher, and no workers yet."""
    plant = Plant(SparkSite(directory, state_url, environment))
    try:
        async with plant.stack:
            await plant.serve()
            yield plant
    finally:
        await plant.site.close()
