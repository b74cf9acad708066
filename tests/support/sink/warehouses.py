"""A pipeline with a sink, its dispatcher behind HTTP, and the database that its table is in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
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
from qo.config.settings import Settings
from qo.config.sink import SinkSettings
from qo.core.pipeline.dag import Dag
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.commits import removals
from qo.dispatcher.state.database import State
from qo.dispatcher.state.datasets import resolve
from qo.dispatcher.versions import cutover
from qo.sink.follower import SinkFollower
from qo.store.blocking_files import BlockingFiles
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipeline_tasks import fence, manual_task, output, woken
from support.dispatcher.pipelines import dag, deployed, edited, live, loaded, source, staged

Rows = Sequence[tuple[Any, ...]]


def with_sink(plain: Dag, name: str, **fields: Any) -> Dag:
    """The DAG, with a sink at a published dataset."""
    document = msgspec.to_builtins(plain)
    document["publish"][name] |= {"to": "postgres", **fields}
    return msgspec.convert(document, Dag)


SHOP = with_sink(dag("shop", source("orders"), publish={"orders": "orders"}), "orders")


@dataclass
class Warehouse:
    state: State
    directory: Path
    url: str  # Of the data's database.
    dispatcher: Served
    service: SinkFollower
    commits: int = 0

    def commit(self, key: str, columns: Mapping[str, Any], *, version: int | None = None) -> None:
        """Commit a partition with one file of these columns."""
        self.commits += 1
        root = f"file:{self.directory / 'data'}"
        job = live(loaded(self.state), "shop.orders", version)
        task = manual_task(self.state, job, f"{key}-{self.commits}")
        with self.state.write() as tx:
            woken(tx, task)
            held = claiming.claim(tx, ClaimRequest(task_id=task, worker_id="w"), root)
        assert isinstance(held, Claimed)
        made = output(held, partition_key=key, rows=len(next(iter(columns.values()))))
        place = local_path(str(made.location))
        place.mkdir(parents=True)
        pq.write_table(pa.table(dict(columns)), place / "part-0.parquet")
        with self.state.write() as tx:
            request = CompleteRequest(**fence(held), outcome=Outcome.SUCCESS, outputs=[made])
            completion.complete(tx, request, root)

    def remove(self, key: str) -> None:
        with self.state.write() as tx:
            removals.remove(tx, resolve(tx, "shop.orders"), [key], by="ann", key=f"remove {key}")

    def stage(self, number: int) -> int:
        """Deploy an edited version; its number."""
        return staged(self.state, edited(SHOP, "orders", config={"v": number})).version

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


def service_of(dispatcher: Served, url: str, client: Any = None) -> SinkFollower:
    settings = Settings(sink=SinkSettings(databases=(("data", url),), poll_ms=20))
    return SinkFollower(client or dispatcher.worker(), settings.sink, BlockingFiles(settings))


@asynccontextmanager
async def warehouse(state: State, directory: Path, url: str) -> AsyncIterator[Warehouse]:
    """The shop, deployed, with an empty database for its table."""
    deployed(state, SHOP)
    async with served(state, directory) as dispatcher, dispatcher.worker() as client:
        yield Warehouse(state, directory, url, dispatcher, service_of(dispatcher, url, client))
