"""A pipeline of many jobs and very many partitions, made up in bulk: nothing is asked of the dispatcher for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import sqlalchemy as sa

from qo.api.contract.task import Outcome
from qo.core.pipeline.dag import Dag
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State
from support.dispatcher.pipeline_tasks import claimed, finish, partition_task
from support.dispatcher.pipelines import dag, deployed, job, live, loaded, source

_AT = {False: "'2026-01-01 00:00:00.000000'", True: "TIMESTAMPTZ '2026-01-01 00:00:00Z'"}
_KEY = {False: "printf('k%06d', i)", True: "'k' || lpad(CAST(i AS text), 6, '0')"}
_TASK = {False: "printf('t%06d', i)", True: "'t' || lpad(CAST(i AS text), 6, '0')"}


def wide_dag(jobs: int) -> Dag:
    """A source, and jobs that read it one after the other."""
    names = ["orders", *(f"step_{n:02}" for n in range(1, jobs))]
    return dag("wide", source("orders"), *(job(each, reads=of) for of, each in pairwise(names)))


def key(n: int) -> str:
    return f"k{n:06}"


def fill_wide(state: State, partitions: int, jobs: int = 20, lag: int = 0) -> None:
    """Deploy it, with so many partitions of the source; of each further job ``lag`` fewer, the newest of which lack."""
    deployed(state, wide_dag(jobs))
    with state.write() as tx:
        columns = "dataset_id, generation_id, partition_key, revision, rows, bytes, task_id, committed_at"
        live = topology.load(tx)
        for n, each in enumerate(sorted(live.jobs.values(), key=lambda job: job.job.name)):
            count = max(0, partitions - n * lag)
            made = each.outputs[0]
            values = (
                f"'{made.dataset_id}', '{made.generation_id}', {_KEY[tx.on_postgres]}, {n * partitions} + i + 1, 10, "
                f"100, {_TASK[tx.on_postgres]}, {_AT[tx.on_postgres]}"
            )
            numbers = f"SELECT CAST(0 AS BIGINT) AS i UNION ALL SELECT i + 1 FROM n WHERE i < {count - 1}"
            chosen = f"WITH RECURSIVE n (i) AS ({numbers}) SELECT {values} FROM n"
            if count:
                tx.execute(sa.text(f"INSERT INTO partitions ({columns}) {chosen}"))
            rows = schema.generation_rows
            sums = {
                "partitions": count,
                "rows": 10 * count,
                "bytes": 100 * count,
                "revision": (n + 1) * partitions,
            }
            tx.execute(sa.update(rows).where(rows.c.id == made.generation_id).values(**sums))
    if state.engine.dialect.name == "postgresql":
        with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.text("VACUUM ANALYZE partitions"))


def add_open_work(state: State, keys: Sequence[str], *, failed: int, running: int) -> None:
    """Give the first job after the source tasks for these keys: first ones that failed, then ones that run or wait."""
    step = live(loaded(state), "wide.step_01")
    tasks = [partition_task(state, step, each) for each in keys]
    for id_ in tasks[:failed]:
        finish(state, claimed(state, id_), Outcome.FATAL, error="the disk is full")
    for id_ in tasks[failed : failed + running]:
        claimed(state, id_)
