"""Everything that was stored, read beside the processes that stored it: by SQL, and by another client of the bucket."""

from __future__ import annotations

import asyncio
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as parquet
import sqlalchemy as sa

from chaos import history
from chaos.ground import Ground
from chaos.load import SALES, SPARK_JOBS
from chaos.notes import Execution, executions
from qo.core import keys, wire
from qo.core.task import Task
from qo.dispatcher import accounting, reading
from qo.dispatcher.state import schema
from qo.spark.appending import uris_of
from qo.store.retrying import Retrying
from sites import DAG

Row = Mapping[str, Any]
Deaths = Sequence[tuple[float, float]]
READS_AT_ONCE = 32
STAMP_S = 2.0  # The server tells whole seconds, and a write takes its time.


@dataclass(frozen=True, slots=True)
class Version:
    task: Task
    written: float  # Says the server.


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
    written = await histories(ground, ground.load_bucket, "")
    woken: dict[str, list[Version]] = {}
    for runtime in ("python", "spark"):
        woken |= await histories(ground, ground.site.bucket, f"queues/{runtime}/")
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


# The bucket


async def histories(ground: Ground, bucket: str, prefix: str) -> dict[str, list[Version]]:
    """By key: every version of every task object, oldest first."""
    versions = await asyncio.to_thread(_versions, ground, bucket, prefix + keys.TASKS)
    found: defaultdict[str, list[Version]] = defaultdict(list)
    store = Retrying(await ground.s3.open_store(bucket))
    try:
        for at in range(0, len(versions), READS_AT_ONCE):
            some = versions[at : at + READS_AT_ONCE]
            bodies = await asyncio.gather(*(store.get(key, version=version) for key, version, _ in some))
            for (key, _, written), stored in zip(some, bodies, strict=True):
                assert stored is not None, f"a version of {key} is listed and cannot be read"
                found[key].append(Version(wire.decode_task(stored.body, key), written))
    finally:
        await store.close()
    return dict(found)


def _versions(ground: Ground, bucket: str, prefix: str) -> list[tuple[str, str, float]]:
    """Keys, versions and when they were written, oldest first. The server lists those of a key newest first."""
    pages = ground.s3.admin.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    listed = [
        (each["Key"], each["VersionId"], each["LastModified"].timestamp())
        for page in pages
        for each in page.get("Versions", ())
    ]
    return listed[::-1]


def _standing(versions: Mapping[str, Sequence[Version]], deaths: Deaths) -> dict[str, list[Task]]:
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
                rows += _rows_of(_body(ground, uri), piece.partition_key, is_parquet=job in SPARK_JOBS)
        if (after := page.after) is None:
            return sorted(rows)


def _body(ground: Ground, uri: str) -> bytes:
    key = uri.removeprefix(f"s3://{ground.site.bucket}/")
    return ground.s3.admin.get_object(Bucket=ground.site.bucket, Key=key)["Body"].read()


def _rows_of(body: bytes, partition: str | None, *, is_parquet: bool) -> list[tuple[Any, ...]]:
    if not is_parquet:
        return [(partition, line) for line in body.decode().splitlines()]
    table = parquet.ParquetFile(io.BytesIO(body)).read()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
