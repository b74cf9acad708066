"""A pipeline with a sink, its dispatcher behind HTTP, and the database that its table is in."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, Outcome
from qo.config.location import local_path
from qo.config.settings import S3Settings, Settings
from qo.config.sink import SinkSettings
from qo.core.pipeline.dag import Dag
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.commits import removals
from qo.dispatcher.state.database import State
from qo.dispatcher.state.datasets import resolve
from qo.dispatcher.versions import cutover
from qo.sink.follower import SinkFollower
from qo.sink.piece_files import Files
from qo.store.blocking_files import BlockingFiles
from support.cli.command import Qo
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipeline_tasks import fence, manual_task, output, woken
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged
from support.servers.s3 import S3Server

Rows = Sequence[tuple[Any, ...]]


def with_sink(plain: Dag, name: str, **fields: Any) -> Dag:
    """The DAG, with a sink at a published dataset."""
    document = msgspec.to_builtins(plain)
    document["publish"][name] |= {"to": "postgres"} | fields
    return msgspec.convert(document, Dag)


_PLAIN = dag("shop", source("orders"), publish={"orders": "orders"})
SHOP = with_sink(_PLAIN, "orders")


def shop_with_files(file: str, **fields: Any) -> Dag:
    """The shop, whose orders are written as files for others."""
    return with_sink(_PLAIN, "orders", to="files", file=file, **fields)


@dataclass(frozen=True)
class Bucket:
    server: S3Server
    name: str


@dataclass
class Warehouse:
    state: State
    directory: Path
    url: str  # Of the data's database.
    dispatcher: Served
    service: SinkFollower
    bucket: Bucket | None = None  # Where the data is; None: below the directory.
    commits: int = 0
    pipeline: Dag = SHOP
    exports: str = ""  # Where files for others are written; "": the sink is a table.

    @property
    def root(self) -> str:
        return f"file:{self.directory / 'data'}" if self.bucket is None else f"s3://{self.bucket.name}/data"

    def commit(self, key: str, columns: Mapping[str, Any], *, version: int | None = None) -> None:
        """Commit a partition with one file of these columns."""
        file = io.BytesIO()
        pq.write_table(pa.table(dict(columns)), file)
        self.commit_file(key, file.getvalue(), len(next(iter(columns.values()))), version=version)

    def commit_file(self, key: str, body: bytes, rows: int, *, version: int | None = None) -> None:
        self.commits += 1
        job = live(loaded(self.state), "shop.orders", version)
        task = manual_task(self.state, job, f"{key}-{self.commits}")
        with self.state.write() as tx:
            woken(tx, task)
            held = claiming.claim(tx, ClaimRequest(task_id=task, worker_id="w"), self.root)
        assert isinstance(held, Claimed)
        made = output(held, partition_key=key, rows=rows)
        self._write(f"{made.location}/part-0.parquet", body)
        with self.state.write() as tx:
            request = CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=[made])
            completion.complete(tx, request, self.root)

    def _write(self, uri: str, body: bytes) -> None:
        if self.bucket is None:
            path = local_path(uri)
            path.parent.mkdir(parents=True)
            path.write_bytes(body)
        else:
            key = uri.removeprefix(f"s3://{self.bucket.name}/")
            self.bucket.server.admin.put_object(Bucket=self.bucket.name, Key=key, Body=body)

    def files(self) -> list[str]:
        """The keys of the objects with data."""
        assert self.bucket is not None
        listed = self.bucket.server.admin.list_objects_v2(Bucket=self.bucket.name, Prefix="data/")
        return [each["Key"] for each in listed.get("Contents", [])]

    def remove(self, key: str) -> None:
        with self.state.write() as tx:
            removals.remove(tx, resolve(tx, "shop.orders"), [key], by="ann", key=f"remove {key}")

    def stage(self, number: int) -> int:
        """Deploy an edited version; its number."""
        return staged(self.state, edited(self.pipeline, "orders", config={"v": number})).version

    def activate(self, version: int) -> None:
        with self.state.write() as tx:
            cutover.activate(tx, "shop", version, "ann", force=True)

    def roll_back(self) -> None:
        with self.state.write() as tx:
            cutover.rollback(tx, "shop", "ann")

    def query(self, text: str = "SELECT * FROM orders ORDER BY 1") -> Rows:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text.encode()).fetchall()

    async def states(self) -> list[dict[str, Any]]:
        answer = await self.dispatcher.get("/v1/datasets/orders", "reader")
        return answer.json()["sinks"]


def service_of(
    dispatcher: Served,
    url: str,
    client: Any = None,
    files: Files | None = None,
    *,
    exports: str = "",
    s3: S3Settings | None = None,
) -> SinkFollower:
    sink = SinkSettings(
        databases=(("data", url),) if url else (), directories=(("files", exports),) if exports else (), poll_ms=20
    )
    settings = Settings(sink=sink, s3=s3 or S3Settings())
    return SinkFollower(client or dispatcher.worker(), settings, files or BlockingFiles())


@asynccontextmanager
async def warehouse(state: State, directory: Path, url: str) -> AsyncIterator[Warehouse]:
    """The shop, deployed, with an empty database for its table."""
    deployed(state, SHOP)
    async with served(state, directory) as dispatcher, dispatcher.worker() as client:
        yield Warehouse(state, directory, url, dispatcher, service_of(dispatcher, url, client))


@asynccontextmanager
async def bucket_warehouse(state: State, directory: Path, url: str, server: S3Server) -> AsyncIterator[Warehouse]:
    """The same, with the data in a bucket. The variables of the process must lead to the server."""
    bucket = Bucket(server, server.make_bucket(versioned=False))
    deployed(state, SHOP)
    async with (
        served(state, directory, data=f"s3://{bucket.name}/data") as dispatcher,
        dispatcher.worker() as client,
    ):
        s3 = S3Settings(endpoint=server.endpoint, region=server.region)
        files = BlockingFiles(Settings(s3=s3), asyncio.get_running_loop())
        try:
            yield Warehouse(state, directory, url, dispatcher, service_of(dispatcher, url, client, files), bucket)
        finally:
            await files.close()


@asynccontextmanager
async def exporter(
    state: State, directory: Path, pipeline: Dag, server: S3Server | None = None
) -> AsyncIterator[Warehouse]:
    """A shop whose sink is files: below the directory, or in a bucket that has the data, too."""
    deployed(state, pipeline)
    bucket = None if server is None else Bucket(server, server.make_bucket(versioned=False))
    data = None if bucket is None else f"s3://{bucket.name}/data"
    exports = f"file:{directory / 'exports'}" if bucket is None else f"s3://{bucket.name}/exports"
    async with served(state, directory, data=data) as dispatcher, dispatcher.worker() as client:
        s3 = None if server is None else S3Settings(endpoint=server.endpoint, region=server.region)
        files = BlockingFiles() if s3 is None else BlockingFiles(Settings(s3=s3), asyncio.get_running_loop())
        service = service_of(dispatcher, "", client, files, exports=exports, s3=s3)
        try:
            yield Warehouse(state, directory, "", dispatcher, service, bucket, pipeline=pipeline, exports=exports)
        finally:
            await files.close()


def start_sink(shop: Warehouse) -> subprocess.Popen[str]:
    environ = {
        **({"QO_SINK_DATABASES": f"data={shop.url}"} if shop.url else {}),
        **({"QO_SINK_DIRECTORIES": f"files={shop.exports}"} if shop.exports else {}),
        "QO_SINK_POLL_MS": "20",
        "QO_DISPATCHER_INTERNAL_URL": shop.dispatcher.addresses.internal,
        "QO_WORKER_TOKEN": shop.dispatcher.tokens["worker"],
        "QO_LOG": "warning",
    }
    if shop.bucket is not None:
        environ |= shop.bucket.server.environment(shop.bucket.name)
    return Qo(shop.directory, environ).start("sink")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process brings it about.
            await asyncio.sleep(0.02)
