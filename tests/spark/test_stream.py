"""Streams: every batch becomes one segment, once, whichever attempts have been at it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.agent.operator_run import QualityFailed, Run
from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CommitRequest,
    LastSegment,
    OutputBody,
    StandingAnswer,
)
from qo.config.settings import Settings
from qo.config.spark import SparkSettings
from qo.dispatcher.attempts import claiming, segments
from qo.dispatcher.engine.loops import source_monitor
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import LeaseLost, UsageError
from qo.spark.engine.classic import ClassicEngine
from qo.spark.executor import SparkExecutor
from qo.spark.stream.checkpoint import is_committed
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken, Stopped, Why
from support.dispatcher.pipeline_tasks import all_of, fence, lapse, tasks_of, woken
from support.dispatcher.pipelines import dag, deployed, live, source
from support.dispatcher.sites import DAG
from support.dispatcher.states import Clock, opened
from support.spark.sites import job, pipeline
from support.stores.queues import until

pytestmark = pytest.mark.spark


COLUMNS = [{"name": "id", "type": "long"}, {"name": "delay", "type": "int"}]


@pytest.fixture
def executor(spark: SparkSession) -> Iterator[SparkExecutor]:
    """Around the session of the tests, which is not its own to end."""
    chosen = Settings(spark=SparkSettings(class_archive=False))
    executor = SparkExecutor(chosen, ClassicEngine(chosen.spark))
    yield executor
    executor.close()
    assert spark.streams.active == []


@dataclass
class Direct:
    """Segments that are committed in the database itself, once nobody holds them up."""

    state: State
    held: Claimed
    root: str
    cancel: CancelToken
    held_up: Callable[[int], None] = lambda cursor: None
    slow: bool = False
    refused: list[int] = field(default_factory=list)

    def commit(self, outputs: Sequence[OutputBody]) -> bool:
        number = outputs[0].cursor or 0
        self.held_up(number)
        try:
            with self.state.write() as tx:
                request = CommitRequest(**fence(self.held), outputs=list(outputs))
                return not segments.commit(tx, request, self.root).paused
        except LeaseLost:
            self.refused.append(number)
            raise

    def last(self, output: int) -> LastSegment:
        with self.state.read() as tx:
            return segments.last(tx, self.held.work.task_id, output)

    def paused(self) -> bool:
        return self.slow


@dataclass
class Inflow:
    """A stream of the files of a directory, and attempts at it."""

    directory: Path
    state: State
    clock: Clock
    executor: SparkExecutor
    task_id: str = ""

    @property
    def root(self) -> str:
        return f"file:{self.directory / 'data'}"

    def deploy(self, **fields: Any) -> None:
        (self.directory / "incoming").mkdir()
        config = {"source": "files", "path": f"file:{self.directory / 'incoming'}", "format": "json"}
        config |= {"columns": COLUMNS, "trigger_seconds": 0, "options": {"maxFilesPerTrigger": 1}}
        fields = {"runtime": "spark", "operator": "stream", "config": config, **fields}
        wanted = dag("air", source("rows", "always_on", **fields))
        topology = deployed(self.state, wanted)
        source_monitor.tick(self.state)
        (task,) = tasks_of(self.state, live(topology, "air.rows"))
        self.task_id = task["id"]

    def drop(self, name: str, *ids: int, delay: int = 1) -> None:
        """A file arrives, whole."""
        text = "".join(json.dumps({"id": each, "delay": delay}) + "\n" for each in ids)
        (self.directory / name).write_text(text)
        (self.directory / name).rename(self.directory / "incoming" / f"{name}.json")

    def begin(self) -> tuple[Direct, Run]:
        with self.state.write() as tx:
            woken(tx, self.task_id)
            held = claiming.claim(tx, ClaimRequest(task_id=self.task_id, worker_id="w"), self.root)
        assert isinstance(held, Claimed), held
        cancel = CancelToken()
        direct = Direct(self.state, held, self.root, cancel)

        def unused(*_: Any) -> Any:
            raise AssertionError("not asked for here")

        run = Run(
            held.work,
            BlockingFiles(),
            cancel=cancel,
            progress=lambda value: None,
            emit=unused,
            wait=unused,
            more=unused,
            standing=lambda *_: StandingAnswer(pieces=[], revision=0),
            segments=direct,
        )
        return direct, run

    def lapse(self, direct: Direct) -> None:
        self.clock.advance(3600)
        lapse(self.state, direct.held)
        self.clock.advance(3600)

    def commits(self) -> list[dict[str, Any]]:
        return all_of(self.state, schema.commits)

    def rows(self, spark: SparkSession) -> list[int]:
        """Of all that is committed."""
        files = [f"{each['location']}{name}" for each in self.commits() for name in each["files"] or ()]
        return sorted(row.id for row in spark.read.parquet(*files).collect())

    async def there(self, number: int, running: asyncio.Task[None]) -> None:
        """So many rows are committed."""

        async def enough() -> bool:
            if running.done():
                await running
            return sum(each["rows"] for each in await asyncio.to_thread(self.commits)) >= number

        await until(enough, within_s=60)

    async def marked(self, number: int, running: asyncio.Task[None]) -> None:
        """Spark has marked the first attempt's batch of that number as done."""
        mark = self.checkpoints / "1" / "commits" / str(number)

        async def there() -> bool:
            if running.done():
                await running
            return mark.exists()

        await until(there, within_s=60)

    @property
    def checkpoints(self) -> Path:
        return self.directory / "data" / "_checkpoints" / self.task_id


@pytest.fixture
def inflow(tmp_path: Path, executor: SparkExecutor) -> Iterator[Inflow]:
    clock = Clock()
    with opened(f"sqlite:{tmp_path / 'state.db'}", clock) as state:
        yield Inflow(tmp_path, state, clock, executor)


async def stopped(task: asyncio.Task[None], run: Run, why: Why = Why.SHUTDOWN) -> None:
    run.cancel.request(why)
    task.cancel()
    await asyncio.wait({task}, timeout=30)
    assert task.done()
    if not task.cancelled():
        assert isinstance(task.exception(), Stopped | LeaseLost), task.exception()


async def test_each_batch_is_a_segment_and_a_stop_loses_and_doubles_nothing(
    inflow: Inflow, spark: SparkSession
) -> None:
    inflow.deploy(cursor_column="id")
    inflow.drop("a", 1, 2)
    inflow.drop("b", 3)
    direct, run = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(run))
    await inflow.there(3, running)
    direct.slow = True  # What reads it cannot keep up.
    inflow.drop("c", 4, 5)
    await stopped(running, run)
    assert [each["cursor"] for each in inflow.commits()] == [0, 1]

    inflow.lapse(direct)
    _, again = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(again))
    await inflow.there(5, running)
    inflow.drop("d", 6)
    await inflow.there(6, running)
    await stopped(running, again)
    assert inflow.rows(spark) == [1, 2, 3, 4, 5, 6]
    assert [(each["cursor"], each["attempt"]) for each in inflow.commits()] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert {"cursor_min": 4, "cursor_max": 5} in [each["stats"] for each in inflow.commits()]
    assert [each["cursor"] for each in all_of(inflow.state, schema.events)] == [0, 1, 2, 3]
    assert [each.name for each in inflow.checkpoints.iterdir()] == [
        "2"
    ]  # Nobody asks for the first one's any more.
    assert run.committed() == []  # Nothing is left for the end.


async def test_a_zombie_goes_on_and_its_batches_are_refused(inflow: Inflow, spark: SparkSession) -> None:
    inflow.deploy()
    inflow.drop("a", 1)
    zombie, run = inflow.begin()
    reached, go_on = threading.Event(), threading.Event()

    def held_up(number: int) -> None:
        if number == 1:
            reached.set()
            assert go_on.wait(60)

    zombie.held_up = held_up
    running = asyncio.create_task(inflow.executor.execute(run))
    await inflow.there(1, running)
    inflow.drop("b", 2)
    assert await asyncio.to_thread(reached.wait, 60)  # Written, and not committed.
    inflow.lapse(zombie)
    _, successor = inflow.begin()
    beside = asyncio.create_task(inflow.executor.execute(successor))
    await inflow.there(2, beside)  # What the zombie had read and not committed is read again.
    inflow.drop("c", 3)
    await inflow.there(3, beside)
    go_on.set()
    with pytest.raises(LeaseLost):
        await running
    assert zombie.refused == [1]
    inflow.drop("d", 4)
    await inflow.there(4, beside)
    await stopped(beside, successor)
    assert inflow.rows(spark) == [1, 2, 3, 4]
    assert [each["attempt"] for each in inflow.commits()] == [1, 2, 2, 2]


async def test_the_state_of_a_function_s_stream_goes_along_and_many_batches_without_rows_do_no_harm(
    inflow: Inflow, spark: SparkSession
) -> None:
    inflow.deploy(operator="spark_operators:seen_once")
    inflow.drop("a", 1, 2)
    direct, run = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(run))
    await inflow.there(2, running)
    for number in range(6):
        inflow.drop(f"known{number}", 1)
    await inflow.marked(6, running)  # Spark has forgotten the first batch meanwhile.
    await stopped(running, run)
    assert [(each["cursor"], each["rows"]) for each in inflow.commits()] == [(0, 2), (2, 0), (4, 0), (6, 0)]
    inflow.lapse(direct)
    inflow.drop("b", 2, 3)
    _, again = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(again))
    await inflow.there(3, running)
    inflow.drop("c", 1, 2, 3, 4)
    await inflow.there(4, running)
    await stopped(running, again)
    assert inflow.rows(spark) == [1, 2, 3, 4]
    assert [each["cursor"] for each in inflow.commits() if each["rows"]] == [0, 7, 8]


async def test_a_batch_that_is_not_good_enough_stops_the_stream_before_it(
    inflow: Inflow, spark: SparkSession
) -> None:
    inflow.deploy(
        expectations=[
            {"range": {"column": "delay", "max": 100}},
            {"unique": ["id"]},
            {"rows": {"min": 2}, "severity": "warn"},
        ]
    )
    inflow.drop("a", 1)
    _, run = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(run))
    await inflow.there(1, running)
    inflow.drop("b", 2, delay=500)
    with pytest.raises(QualityFailed, match="1 of 3 expectations failed: range delay"):
        await running
    assert [(each.cursor, each.rows) for each in run.rejected] == [(1, 1)]
    assert [each.passed for each in run.checks] == [False, True, False]
    assert inflow.rows(spark) == [1]
    assert len(inflow.commits()[0]["stats"]["failed_checks"]) == 1  # It was only warned of.


async def test_a_checkpoint_that_is_lost_is_an_error_and_no_new_beginning(inflow: Inflow) -> None:
    inflow.deploy()
    inflow.drop("a", 1)
    direct, run = inflow.begin()
    running = asyncio.create_task(inflow.executor.execute(run))
    await inflow.there(1, running)
    await stopped(running, run)
    inflow.lapse(direct)
    inflow.checkpoints.rename(inflow.checkpoints.parent / "elsewhere")
    _, again = inflow.begin()
    with pytest.raises(UsageError, match="has no record of batch 0, which is committed"):
        await inflow.executor.execute(again)


@pytest.mark.parametrize(
    ("name", "is_wanted"),
    [
        ("metadata", False),
        ("offsets/7", True),
        ("offsets/8", False),
        ("commits/3", True),
        ("commits/.9.crc", False),
        ("sources/0/9.compact", True),
        ("state/0/1/8.delta", True),
        ("state/0/1/9.delta", False),
        ("state/0/1/9.snapshot", False),
        ("state/0/1/left-keyToNumValues/9.delta", False),
        ("state/0/1/9_1a2b.zip", False),
        ("state/0/1/8_1a2b.changelog", True),
        ("state/0/1/SSTs/000009-1a2b.sst", True),
        ("state/0/_metadata/metadata", True),
        ("state/0/_metadata/v2/9", False),
        ("offsets/.8.a1.tmp", False),
    ],
)
def test_what_lies_beyond_the_last_commit_is_not_taken_over(name: str, is_wanted: bool) -> None:
    assert is_committed(name, 7) is is_wanted


def air(directory: Path) -> str:
    """A stream, and a job that reads each segment once."""
    config = {"source": "files", "path": f"file:{directory}", "format": "json", "columns": COLUMNS}
    rows = {
        "name": "rows",
        "activation": "source",
        "runtime": "spark",
        "operator": "stream",
        "config": config | {"trigger_seconds": 0},
        "source": {"kind": "always_on"},
        "outputs": 1,
    }
    query = "SELECT count(*) AS n, sum(id) AS total FROM rows"
    return pipeline(
        DAG, [rows, job("sums", "sql", "rows", config={"query": query}, execution_strategy="PerUpdate")]
    )
