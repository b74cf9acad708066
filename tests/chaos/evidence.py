"""Everything that was stored, read beside the processes that stored it."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as parquet
import sqlalchemy as sa

from chaos import history
from chaos.ground import RUNTIMES, Ground
from chaos.load import SALES, SPARK_JOBS
from chaos.notes import Execution, executions
from chaos.versions import Histories, Version
from qo.core.task import Task
from qo.dispatcher.state import schema
from qo.dispatcher.views import reading
from qo.spark.io.appending import uris_of
from support.dispatcher import accounting
from support.dispatcher.sites import DAG

Row = Mapping[str, Any]
Deaths = Sequence[tuple[float, float]]
STAMP_S = 2.0  # The server tells whole seconds, and a write takes its time.


@dataclass(frozen=True)
class Evidence:
    fleet: Mapping[str, Sequence[Task]]  # The versions of every task of the queue, oldest first.
    wake_ups: Mapping[str, Sequence[Task]]  # The same of the queues between dispatcher and workers.
    tasks: Sequence[Row]  # Of the pipelines, as all that follows.
    attempts: Sequence[Row]
    commits: Sequence[Row]
    books: Sequence[str]  # What is wrong with the counts of events and deliveries.
    tables: Mapping[str, Sequence[tuple[Any, ...]]]  # By job: what a reader reads.
    executions: Sequence[Execution]
    torn: int  # Versions that a dying server has left behind, and that nobody was told of.


async def gather(ground: Ground, jobs: Sequence[str], deaths: Deaths) -> Evidence:
    """``deaths``: of the S3 server, each from when to when, by the time of day."""
    rows = {table.name: await asyncio.to_thread(_rows, ground, table) for table in _TABLES}
    written = await ground.read_queue()
    woken: dict[str, Sequence[Version]] = {}
    for runtime in RUNTIMES:
        woken |= await ground.read_wake_ups(runtime)
    fleet, wake_ups = (_standing(versions, deaths) for versions in (written, woken))
    return Evidence(
        fleet=fleet,
        wake_ups=wake_ups,
        tasks=rows["tasks"],
        attempts=rows["attempts"],
        commits=rows["commits"],
        books=await asyncio.to_thread(_books, ground),
        tables={name: await asyncio.to_thread(_table, ground, name) for name in jobs},
        executions=executions(ground.notes.read_text().splitlines()),
        torn=sum(map(len, (*written.values(), *woken.values())))
        - sum(map(len, (*fleet.values(), *wake_ups.values()))),
    )


# The queues


def _standing(versions: Histories, deaths: Deaths) -> dict[str, list[Task]]:
    found: dict[str, list[Task]] = {}
    for key, some in versions.items():
        torn = {each.task.token for each in some if any(a - STAMP_S <= each.written <= b for a, b in deaths)}
        found[key] = history.standing([each.task for each in some], lambda task, torn=torn: task.token in torn)
    return found


# The state


_TABLES = (schema.tasks, schema.attempts, schema.commits)


def _rows(ground: Ground, table: sa.Table) -> list[Row]:
    with ground.site.state.read() as tx:
        return list(tx.all(sa.select(table)))


def _books(ground: Ground) -> list[str]:
    wrong: list[str] = []
    with ground.site.state.read() as tx:
        for dataset_id in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
            books = accounting.check(tx, dataset_id)
            wrong += [f"dataset {dataset_id}: {each}" for each in books.problems]
            if left := books.tallied.get("", {}).get("pending", 0):
                wrong.append(f"dataset {dataset_id}: {left} events were never routed")
    return wrong


# The data


def _table(ground: Ground, job: str) -> list[tuple[Any, ...]]:
    """All rows of its output, sorted."""
    dag = SALES if job in SPARK_JOBS else DAG
    rows: list[tuple[Any, ...]] = []
    after: str | None = None
    while True:
        with ground.site.state.read() as tx:
            page = reading.pieces(tx, f"{dag}.{job}", after=after)
        for piece in page.pieces:
            for uri in uris_of([piece]):
                rows += _rows_of(ground.read_file(uri), piece.partition_key, is_parquet=job in SPARK_JOBS)
        if (after := page.after) is None:
            return sorted(rows)


def _rows_of(body: bytes, partition: str | None, *, is_parquet: bool) -> list[tuple[Any, ...]]:
    if not is_parquet:
        return [(partition, line) for line in body.decode().splitlines()]
    table = parquet.ParquetFile(io.BytesIO(body)).read()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
