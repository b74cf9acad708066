"""A dispatcher, its workers and its scheduler as processes, and the state and stores that they share.

    async def test_something(site):        # fixtures: embedded, servers, site (both)
        async with site.dispatcher(), site.worker("w1"):
            await site.deploy(pipeline(job("a"), job("b", "a")))
            await site.emit("p1", "p2")
            await site.completed({"a": 2, "b": 2})
        site.audit(["a", "b"], ["p1", "p2"])

``embedded`` is what a user gets without any settings; ``servers`` is PostgreSQL and a bucket; ``on_postgres`` has its
state there, and is otherwise embedded.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import qo
from qo.api.public_client import UserClient
from qo.config.dispatcher import DispatcherSettings
from qo.core.task import Task
from qo.dispatcher.auth.local_tokens import local_admin_token
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx, open_state
from qo.queue.queue import Queue
from qo.store.queue_manifest import Proof, record_proof
from support.cli.command import Qo
from support.dispatcher import accounting
from support.servers.ports import free_ports
from support.stores.queues import until

if TYPE_CHECKING:
    from support.servers.postgres import PostgresServer
    from support.servers.s3 import S3Server

DAG = "shop"
LEASE_S = 60  # Of tasks that nobody should lose, however slow the machine.
SHORT_LEASE_S = 5  # Of those that are to be lost: the shortest that a pipeline may ask for.
WITHIN_S = 90.0
TESTS = Path(__file__).parents[2]
SETTINGS = {
    "QO_DISPATCHER_TICK_MS": "50",
    "QO_DISPATCHER_RECONCILE_S": "1",
    "QO_DISPATCHER_SWEEP_S": "10",
    "QO_CONCURRENCY": "4",
    "QO_POLL_MAX_MS": "100",
    "QO_LEASE_S": "15",
    "QO_CONTROL_S": "0.3",
    "QO_HEARTBEAT_S": "0.5",
    "QO_MONITOR_CHECK_INTERVAL_S": "0.3",
    "QO_LOG": "warning",
    "PYTHONPATH": os.pathsep.join([str(TESTS / "apps"), str(TESTS)]),
    "PYTHONFAULTHANDLER": "1",  # A process that crashes says where.
}


# Pipelines


def pipeline(*jobs: Mapping[str, Any], lease_s: int = LEASE_S) -> str:
    """The jobs behind one manual source, ``feed``."""
    feed = {
        "name": "feed",
        "activation": "source",
        "runtime": "dispatcher",
        "operator": "noop",
        "source": {"kind": "manual"},
        "outputs": 1,
        "update_strategy": "replace",
    }
    defaults = {"heartbeat_timeout_seconds": lease_s, "max_attempts": 10}
    return json.dumps({"name": DAG, "defaults": defaults, "jobs": [feed, *jobs]})


def job(name: str, reads: str = "feed", operator: str = "copy", outputs: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "activation": "reactive",
        "runtime": "python",
        "operator": f"dispatcher_operators:{operator}",
        "inputs": [{"from": {"job": reads}}],
        "execution_strategy": "PerPartition",
        "outputs": outputs,
        **({"update_strategy": "replace"} if outputs else {}),
        **fields,
    }


# Processes


class Process:
    """One ``qo`` that runs until it is stopped, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.process = process
        self._out, self._err = out, err

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def code(self, *, within_s: float = 30.0) -> int:
        """How it ended."""
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    @property
    def said(self) -> str:
        return self._err.read_text()

    async def begun(self) -> Any:
        """The document that it prints once it serves."""

        async def printed() -> Any:
            assert self.process.returncode is None, f"ended with {self.process.returncode}: {self.said}"
            text = self._out.read_text()
            return json.loads(text) if text.rstrip().endswith("}") else None

        return await until(printed, within_s=WITHIN_S, every_s=0.03)


class Site:
    def __init__(self, directory: Path, state_url: str, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.ports = free_ports(6)  # Of up to three dispatchers.
        self._state_url = state_url
        self._environment = {**SETTINGS, "QO_STATE": state_url, **environment}
        self._started = 0
        self._state: State | None = None
        self._client: UserClient | None = None

    async def close(self) -> None:
        if self._state is not None:
            self._state.close()
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def dispatcher(self, number: int = 0, **settings: str) -> AsyncIterator[Process]:
        """A dispatcher that serves; the same number has the same addresses again."""
        outside, inside = self.ports[2 * number : 2 * number + 2]
        given = {
            "QO_DISPATCHER_LISTEN": f"127.0.0.1:{outside}",
            "QO_DISPATCHER_INTERNAL_LISTEN": f"127.0.0.1:{inside}",
            **settings,
        }
        async with self._process(f"dispatcher-{number}", "dispatcher", "--json", **given) as process:
            await process.begun()
            yield process

    @asynccontextmanager
    async def worker(self, worker_id: str, number: int = 0, **settings: str) -> AsyncIterator[Process]:
        """A worker of the dispatcher of that number. It may be there before the dispatcher is."""
        given = {"QO_DISPATCHER_INTERNAL_URL": f"http://127.0.0.1:{self.ports[2 * number + 1]}", **settings}
        command = ("worker", "--runtime", "python", "--id", worker_id)
        async with self._process(worker_id, *command, **given) as process:
            yield process

    @asynccontextmanager
    async def scheduler(self, **settings: str) -> AsyncIterator[Process]:
        given = {"QO_DISPATCHER_INTERNAL_URL": f"http://127.0.0.1:{self.ports[1]}", **settings}
        async with self._process("scheduler", "scheduler", **given) as process:
            yield process

    @asynccontextmanager
    async def _process(self, name: str, *args: str, **settings: str) -> AsyncIterator[Process]:
        """Whatever happens, it is gone at the end of the block, even if it was frozen."""
        self._started += 1
        out, err = (self.directory / f"{name}-{self._started}.{kind}" for kind in ("out", "err"))
        command = self.qo(**settings)
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = await asyncio.create_subprocess_exec(
                *command.command(*args),
                cwd=self.directory,
                env=command.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
            )
        try:
            yield Process(process, out, err)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def qo(self, **settings: str) -> Qo:
        """The command, in this site."""
        return Qo(self.directory, {**self._environment, **settings})

    # What people do

    @property
    def client(self) -> UserClient:
        """Asks the first dispatcher, and waits for it where it is away."""
        if self._client is None:
            token = local_admin_token(DispatcherSettings(secrets_dir=str(self.directory / ".qo/secrets")))
            self._client = UserClient(f"http://127.0.0.1:{self.ports[0]}", token, patience_s=WITHIN_S)
        return self._client

    async def deploy(self, source: str) -> Any:
        return await self.client.post(f"/v1/dags/{DAG}/versions", {"source": source})

    async def emit(self, *partitions: str) -> Any:
        """Announce the partitions. Asked again with the same ones, it says nothing new."""
        events = [{"output": 0, "partition_key": each} for each in partitions]
        body = {"idempotency_key": ",".join(partitions)[:200], "events": events}
        return await self.client.post(f"/v1/sources/{DAG}/feed/events", body)

    async def feed(self, batches: int, *, each: int = 4, every_s: float = 0.2) -> list[str]:
        """Announce partitions at a steady pace; their names."""
        said: list[str] = []
        for batch in range(batches):
            names = [f"p{batch}-{number}" for number in range(each)]
            await self.emit(*names)
            said += names
            await asyncio.sleep(every_s)
        return said

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[Queue]:
        """The queue of wake-ups."""
        async with qo.connect(f"local:{self.directory / '.qo' / 'queues' / 'python'}") as queue:
            yield queue

    async def woken(self, at_least: int) -> list[Task]:
        """The messages in the queue, once there are as many."""

        async def enough() -> list[Task] | None:
            async with self.queue() as queue:
                found = await queue.list(limit=1000)
            return found if len(found) >= at_least else None

        return await until(enough, within_s=WITHIN_S, every_s=0.2)

    # What is, and what is waited for

    @property
    def state(self) -> State:
        if self._state is None:
            self._state = open_state(self._state_url)
        return self._state

    def tasks(self, name: str) -> list[Mapping[str, Any]]:
        with self.state.read() as tx:
            return list(tx.all(sa.select(schema.tasks).where(schema.tasks.c.job == name)))

    def task(self, name: str) -> Mapping[str, Any]:
        (found,) = self.tasks(name)
        return found

    def attempts(self, task_id: str) -> list[str | None]:
        """How its attempts ended."""
        table = schema.attempts
        query = sa.select(table.c.outcome).where(table.c.task_id == task_id).order_by(table.c.attempt)
        with self.state.read() as tx:
            return list(tx.execute(query).scalars())

    def notes(self, what: str) -> Counter[str]:
        """How often operators did that, by job and partition."""
        path = self.directory / "notes"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return Counter(f"{job_name} {partition}" for job_name, partition, _, done in lines if done == what)

    async def noted(self, what: str, times: int) -> None:
        async def enough() -> bool:
            return self.notes(what).total() >= times

        await until(enough, within_s=WITHIN_S, every_s=0.02)

    async def completed(self, wanted: Mapping[str, int], *, hasten: bool = True) -> None:
        """As many tasks of these jobs have been completed, none of them is left, and what they said was heard."""

        async def all_done() -> bool:
            if hasten:
                await asyncio.to_thread(self.hasten)
            done = await asyncio.to_thread(self._counts, wanted)
            assert not [key for key in done if key[1] in ("failed", "cancelled")]
            all_ended = done == {(name, "completed"): number for name, number in wanted.items()}
            return all_ended and not await asyncio.to_thread(self._unrouted)

        try:
            await until(all_done, within_s=WITHIN_S, every_s=0.1)
        except TimeoutError:
            raise AssertionError(f"{self._counts(wanted)}, not {wanted}") from None

    def _unrouted(self) -> int:
        events = schema.events
        with self.state.read() as tx:
            return tx.value(sa.select(sa.func.count()).where(events.c.state == "pending"))

    def _counts(self, names: Collection[str]) -> dict[tuple[str, str], int]:
        table = schema.tasks
        query = sa.select(table.c.job, table.c.status, sa.func.count()).where(table.c.job.in_(sorted(names)))
        with self.state.read() as tx:
            return {
                (name, status): n for name, status, n in tx.execute(query.group_by(table.c.job, table.c.status))
            }

    def hasten(self) -> None:
        """As if the rests before the next attempts were over: they take half a minute and more."""
        table = schema.tasks
        with self.state.read() as tx:
            resting = sa.and_(table.c.status == "pending", table.c.available_at > tx.now)
            if tx.one(sa.select(table.c.id).where(resting).limit(1)) is None:
                return
        with self.state.write() as tx:
            resting = sa.and_(table.c.status == "pending", table.c.available_at > tx.now)
            tx.execute(sa.update(table).where(resting).values(available_at=tx.now))

    def lapse(self, worker_id: str) -> None:
        """As if the leases of a worker that is gone had run out: they take five seconds and more."""
        table = schema.tasks
        held = sa.and_(table.c.status == "running", table.c.worker_id == worker_id)
        with self.state.write() as tx:
            tx.execute(sa.update(table).where(held).values(lease_expires_at=tx.now))

    def audit(self, names: Sequence[str], partitions: Collection[str]) -> None:
        """Nothing is lost and nothing doubled, by every record that there is."""
        with self.state.read() as tx:
            for name in names:
                _audit_job(tx, name, sorted(partitions))
            for dataset_id in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
                books = accounting.check(tx, dataset_id)
                assert books.problems == ()
                assert books.tallied.get("", {}).get("pending", 0) == 0

    def committed(self, name: str) -> dict[str, list[str]]:
        """The URIs of the committed files of a job's only output, by partition."""
        parts, made = schema.partitions, schema.tasks
        query = sa.select(parts).join(made, made.c.id == parts.c.task_id).where(made.c.job == name)
        with self.state.read() as tx:
            return {
                row["partition_key"]: [f"{row['location'].rstrip('/')}/{each}" for each in row["files"]]
                for row in tx.all(query)
            }

    def read(self, name: str) -> dict[str, str]:
        """What was committed, by partition."""
        return {partition: "".join(map(self.body, uris)) for partition, uris in self.committed(name).items()}

    def body(self, uri: str) -> str:
        """Of one file."""
        return (self.directory / uri.removeprefix("file:")).read_text()


def _audit_job(tx: Tx, name: str, partitions: Sequence[str]) -> None:
    tasks, attempts, commits = schema.tasks, schema.attempts, schema.commits
    rows = tx.all(sa.select(tasks).where(tasks.c.job == name))
    assert sorted(row["partition_key"] for row in rows) == partitions, name
    assert {row["status"] for row in rows} == {"completed"}, name
    ended = sa.select(attempts.c.task_id).join(tasks, tasks.c.id == attempts.c.task_id)
    accepted = tx.execute(ended.where(tasks.c.job == name, attempts.c.outcome == "completed")).scalars().all()
    assert sorted(accepted) == sorted(row["id"] for row in rows), name
    made = sa.select(commits.c.partition_key).join(tasks, tasks.c.id == commits.c.task_id)
    assert sorted(tx.execute(made.where(tasks.c.job == name)).scalars().all()) == partitions, name


class BucketSite(Site):
    """With the queue, and the data, in a bucket."""

    def __init__(self, directory: Path, state_url: str, server: S3Server, bucket: str) -> None:
        self.server, self.bucket = server, bucket
        super().__init__(directory, state_url, {**server.environment(bucket), "QO_DATA": f"s3://{bucket}/data"})

    @asynccontextmanager
    async def queue(self) -> AsyncIterator[Queue]:
        async with Queue(await self.server.open_store(self.bucket, prefix="queues/python")) as queue:
            yield queue

    def body(self, uri: str) -> str:
        key = uri.removeprefix(f"s3://{self.bucket}/")
        return self.server.admin.get_object(Bucket=self.bucket, Key=key)["Body"].read().decode()


async def proven(server: S3Server, bucket: str) -> None:
    """As ``qo doctor`` leaves a bucket."""
    store = await server.open_store(bucket)
    proof = Proof(proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(store, proof)
    await store.close()


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[Site]:
    """Nothing is set: SQLite and a local store, below the directory."""
    site = Site(tmp_path, f"sqlite:{tmp_path / '.qo' / 'state.db'}", {})
    yield site
    await site.close()


@pytest.fixture
async def on_postgres(tmp_path: Path, postgres_server: PostgresServer) -> AsyncIterator[Site]:
    """PostgreSQL, and all else as a user gets it without any settings."""
    site = Site(tmp_path, postgres_server.make_database(), {})
    yield site
    await site.close()


@pytest.fixture
async def servers(
    tmp_path: Path, postgres_server: PostgresServer, s3_server: S3Server, s3_bucket: str
) -> AsyncIterator[BucketSite]:
    """PostgreSQL, and a bucket for queue and data."""
    await proven(s3_server, s3_bucket)
    site = BucketSite(tmp_path, postgres_server.make_database(), s3_server, s3_bucket)
    yield site
    await site.close()


@pytest.fixture(params=["embedded", pytest.param("servers", marks=[pytest.mark.s3, pytest.mark.long])])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)
