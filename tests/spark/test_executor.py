"""From claimed work to files on disk: one session, attempts side by side, and an end for each that is asked to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import spark_operators
import sqlalchemy as sa
from pyspark.sql import SparkSession

from qo.agent.agent import WAKE, Agent
from qo.agent.heartbeats import HeartbeatThread
from qo.agent.operator_run import QualityFailed, Run
from qo.api.contract.task import ColumnBody, EventBody, InputMode, Piece, WorkInput, WorkOutput
from qo.api.internal_client import DispatcherClient
from qo.config.settings import Settings
from qo.config.spark import SparkSettings
from qo.core.pipeline.dag import SourceKind
from qo.dispatcher.auth.local_tokens import worker_tokens
from qo.dispatcher.outbox.queues import open_queue
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import UsageError
from qo.spark import executor as executing
from qo.spark.engine.classic import ClassicEngine
from qo.spark.engine.engine import Attempt, Loss
from qo.spark.engine.error_translation import SessionLost
from qo.spark.executor import SparkExecutor
from qo.store.blocking_files import BlockingFiles
from qo.testing.spark import make_run
from qo.worker.api.app import App
from qo.worker.loop.cancel import Why
from qo.worker.worker import Worker
from support.dispatcher.in_process_dispatcher import dispatching
from support.dispatcher.pipelines import dag, job, source
from support.spark.engines import FakeEngine
from support.stores.queues import config, until

pytestmark = pytest.mark.spark

COLUMNS = [ColumnBody(name="id", type="long"), ColumnBody(name="delay", type="integer")]


@pytest.fixture
def executor(spark: SparkSession) -> Iterator[SparkExecutor]:
    """Around the session of the tests, which is not its own to end."""
    chosen = Settings(spark=SparkSettings(class_archive=False))
    spark_operators.SEEN.clear()
    executor = SparkExecutor(chosen, ClassicEngine(chosen.spark))
    yield executor
    executor.close()
    assert spark.range(1).count() == 1


def orders(spark: SparkSession, directory: Path) -> WorkInput:
    """Three committed rows, in the files of two commits."""
    pieces: list[Piece] = []
    for number, rows in enumerate(([(1, 90), (2, 0)], [(3, 120)])):
        where = directory / "orders" / str(number)
        spark.createDataFrame(rows, "id long, delay int").coalesce(1).write.parquet(f"file:{where}")
        names = [each.name for each in where.glob("*.parquet")]
        pieces.append(Piece(revision=number, location=f"file:{where}/", files=names, bytes=1))
    return WorkInput(
        position=0,
        name="orders",
        dataset_id="orders",
        generation_id="g",
        mode=InputMode.WHOLE,
        columns=COLUMNS,
        pieces=pieces,
    )


def work(
    operator: str, directory: Path, given: WorkInput | None = None, *, outputs: int = 1, **fields: Any
) -> Run:
    listed = [
        WorkOutput(index=at, dataset_id="o", generation_id="g", prefix=f"file:{directory}/out/{operator}/{at}/")
        for at in range(outputs)
    ]
    name = operator if operator in ("sql", "check") else f"spark_operators:{operator}"
    inputs = [] if given is None else [given]
    return make_run(name, inputs, fields.pop("config", {}), listed, **{"task_id": operator, **fields})


async def stopped(executor: SparkExecutor, run: Run, why: Why = Why.TIMEOUT) -> None:
    """Ask it to stop once it is under way, as the runner does, and more than once."""
    task = asyncio.create_task(executor.execute(run))

    async def begun() -> bool:
        return run.work.operator.partition(":")[2] in spark_operators.SEEN

    await until(begun)
    run.cancel.request(why)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_inputs_become_outputs_with_columns_and_counts(
    executor: SparkExecutor, spark: SparkSession, tmp_path: Path
) -> None:
    run = work("late", tmp_path, orders(spark, tmp_path), config={"minutes": 60}, cursor_column="id")
    await executor.execute(run)
    (told,) = run.committed()
    assert (told.rows, told.stats) == (2, {"cursor_min": 1, "cursor_max": 3})
    assert [each.name for each in told.columns or []] == ["id", "delay"]
    assert run.result["outputs"]["0"]["rows"] == 2
    assert {"start", "read", "operator", "write"} <= run.result["seconds"].keys()
    files = [f"{told.location}{name}" for name in told.files]
    assert sorted(row.id for row in spark.read.parquet(*files).collect()) == [1, 3]

    both = work("halves", tmp_path, orders(spark, tmp_path / "again"), outputs=2)
    await executor.execute(both)
    assert [each.rows for each in both.committed()] == [1, 2]


async def test_a_gate_that_fails_keeps_the_output_for_inspection(
    executor: SparkExecutor, spark: SparkSession, tmp_path: Path
) -> None:
    expected = [{"not_null": ["id"]}, {"range": {"column": "delay", "max": 100}}, {"rows": {"min": 1}}]
    run = work("check", tmp_path, orders(spark, tmp_path), expectations=expected)
    with pytest.raises(QualityFailed, match=r"1 of 3 expectations failed: range delay \.\.100"):
        await executor.execute(run)
    assert [each.passed for each in run.checks] == [True, False, True]
    assert [each.rows for each in run.rejected] == [3]

    warned = work(
        "check", tmp_path / "b", orders(spark, tmp_path / "b"), expectations=[{**expected[1], "severity": "warn"}]
    )
    await executor.execute(warned)
    assert [each.rows for each in warned.committed()] == [3]
    assert [each.passed for each in warned.checks] == [False]


async def test_who_is_stopped_ends_and_nobody_else_does(
    executor: SparkExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "PROGRESS_S", 0.05)
    told: list[Any] = []
    beside = work("steady", tmp_path)
    beside.progress = told.append
    running = asyncio.create_task(executor.execute(beside))
    await stopped(executor, work("endless", tmp_path))
    await running
    assert beside.result["outputs"]["0"]["rows"] == 3
    assert not (tmp_path / "out" / "endless").exists()
    assert {each["phase"] for each in told} <= {"start", "operator", "write"}
    assert max(each["stages"]["done"] for each in told if "stages" in each) > 1


async def test_an_operator_that_goes_on_is_stopped_again(executor: SparkExecutor, tmp_path: Path) -> None:
    run = work("stubborn", tmp_path)
    await stopped(executor, run, Why.LOST)
    assert "stopped" in spark_operators.SEEN
    assert not (tmp_path / "out" / "stubborn").exists()  # It returned a frame, which nobody writes any more.


async def test_what_fails_in_the_rows_is_told_in_few_words(
    executor: SparkExecutor, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="as it must") as caught:
        await executor.execute(work("failing", tmp_path, orders(spark, tmp_path)))
    assert "\tat " not in str(caught.value)
    query = {"query": "SELECT nope FROM orders"}
    with pytest.raises(UsageError, match=r"UNRESOLVED_COLUMN"):
        await executor.execute(work("sql", tmp_path, orders(spark, tmp_path / "again"), config=query))


class Dead(FakeEngine):
    """An engine whose session dies under the operator."""

    def session(self, attempt: Attempt, *, lasting: bool = False) -> AbstractContextManager[SparkSession]:
        self.start()
        raise ConnectionResetError("nobody there")

    def alive(self) -> bool:
        return False

    def loss(self, attempt: Attempt) -> Loss | None:
        return Loss("it ran out of breath" if self.started == 2 else None)


async def test_a_lost_session_is_no_fault_of_the_operator(tmp_path: Path) -> None:
    engine = Dead(has_cluster=False)
    executor = SparkExecutor(Settings(), engine)
    for attempt, why in {1: "nobody there", 2: "it ran out of breath"}.items():
        with pytest.raises(SessionLost, match=f"the next attempt gets another: {why}"):
            await executor.execute(work("late", tmp_path, attempt=attempt))
    assert engine.started == 2  # Each begins by asking for a session.
    executor.close()


# With a dispatcher

SHOP = dag(
    "shop",
    source("files", "files", of={"path": "/nowhere"}),
    job(
        "orders",
        reads="files",
        runtime="spark",
        operator="ingest",
        config={"format": "csv", "options": {"header": True}},
    ),
    job("late", reads="orders", runtime="spark", operator="spark_operators:late", config={"minutes": 60}),
    job(
        "totals",
        reads="late",
        runtime="spark",
        operator="sql",
        config={"query": "SELECT count(*) AS late, max(delay) AS worst FROM late"},
        expectations=[{"rows": {"min": 1, "max": 1}}, {"range": {"column": "worst", "max": 1000}}],
    ),
)


@asynccontextmanager
async def plant(directory: Path, executor: SparkExecutor) -> AsyncIterator[State]:
    """A dispatcher at work, and a worker of the Spark runtime."""
    async with dispatching(directory, SHOP) as (state, settings, addresses):
        token = worker_tokens(settings.dispatcher)[-1]
        heart = HeartbeatThread(lambda: DispatcherClient(addresses.internal, token))
        storage = BlockingFiles(settings, asyncio.get_running_loop())
        queue = await open_queue(settings, "spark")
        client = DispatcherClient(addresses.internal, token)
        app = App()
        app.task(WAKE, timeout_s=None)(Agent(client, heart, executor, storage).wake)
        heart.start()
        worker = Worker(queue, app, replace(config(), concurrency=2))
        running = asyncio.create_task(worker.run())
        try:
            yield state
        finally:
            worker.stop()
            await running
            heart.stop()
            await client.close()
            await queue.close()


def tasks(state: State, name: str) -> list[dict[str, Any]]:
    with state.read() as tx:
        return [dict(row) for row in tx.all(sa.select(schema.tasks).where(schema.tasks.c.job == name))]


async def test_files_that_arrive_become_tables_through_the_dispatcher(
    executor: SparkExecutor, spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "monday.csv").write_text("id,delay\n1,90\n2,0\n3,120\n")
    (tmp_path / "tuesday.csv").write_text("id,delay\n4,five\n")  # Learnt from monday: delays are numbers.

    def say(state: State, day: str) -> None:
        about = {"location": f"file:{tmp_path}/", "files": [f"{day}.csv"]}
        with state.write() as tx:
            events = [EventBody(partition_key=day, attributes=about)]
            emission.emit(tx, "shop", "files", key=day, events=events, by="tests", kind=SourceKind.FILES)

    async with plant(tmp_path, executor) as state:

        async def ended() -> list[dict[str, Any]]:
            rows = await asyncio.to_thread(tasks, state, "totals")
            return [row for row in rows if row["status"] == "completed"]

        await asyncio.to_thread(say, state, "monday")
        (done,) = await until(ended, within_s=60)
        assert done["output"]["outputs"]["0"]["rows"] == 1

        async def failed() -> list[dict[str, Any]]:
            rows = await asyncio.to_thread(tasks, state, "orders")
            return [row for row in rows if row["status"] == "failed"]

        await asyncio.to_thread(say, state, "tuesday")
        (refused,) = await until(failed, within_s=60)
        assert refused["attempt"] == 1  # No retry would mend it.
        assert "tuesday.csv: 1 row, in column 'delay' (int), such as '4,five'" in refused["last_error"]
        with state.read() as tx:
            commits, datasets = schema.commits, schema.datasets
            made = sa.select(commits).join(datasets, datasets.c.id == commits.c.dataset_id)
            (row,) = tx.all(made.where(datasets.c.job == "totals"))
        frame = spark.read.parquet(*(f"{row['location']}{name}" for name in row["files"]))
        assert [tuple(each) for each in frame.collect()] == [(2, 120)]
