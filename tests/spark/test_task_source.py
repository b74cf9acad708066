"""A queue as a table: every task once, every version in order, from the embedded store and from a real bucket."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

import qo
from qo.config.origins import load
from qo.config.settings import Settings
from qo.core import keys
from qo.errors import UsageError
from qo.queue.options import Options
from qo.queue.queue import Claim, Queue
from qo.spark.io import task_source
from qo.spark.io.task_source import parse_options
from qo.store.opening import open_store
from qo.store.queue_manifest import Proof, record_proof
from support.stores.queues import AT_ONCE

pytestmark = pytest.mark.spark

MAIL, REPORT = 6, 3
Told = Callable[[str, Settings], tuple[DataFrame, DataFrame]]


async def filled(queue: Queue) -> None:
    """Mails that complete at once, and reports of which one is tried twice and one fails."""
    for number in range(MAIL):
        await queue.submit("mail", {"to": number})
    for number in range(REPORT):
        await queue.submit("report", {"number": number}, Options(max_retries=1, retry_policy=AT_ONCE))
    tries: dict[str, int] = {}
    for task in [*await queue.list(limit=100)]:
        while True:
            claim = await queue.claim(task.id, worker_id="w", lease_s=60)
            assert isinstance(claim, Claim)
            tries[task.id] = tries.get(task.id, 0) + 1
            wanted = {"mail": 0, "report": int((claim.task.input or {}).get("number", 0))}[task.task_type]
            if tries[task.id] > wanted:
                await queue.complete(claim, {"done": True})
                break
            failed = await queue.fail(claim, "no paper")
            if failed.status == "failed":
                break
    await queue.store.put(f"{keys.TASKS}00/not-a-task.json", b"{")  # A stranger's.


@pytest.fixture
def example() -> ModuleType:
    path = Path(__file__).parents[2] / "examples" / "latency" / "latency.py"
    spec = importlib.util.spec_from_file_location("latency", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def told(spark: SparkSession) -> Iterator[Told]:
    """The tasks of a store and their history, with what holds of every store."""
    kept: list[DataFrame] = []

    def tell(store: str, settings: Settings) -> tuple[DataFrame, DataFrame]:
        tasks = task_source.tasks(spark, store, settings=settings).cache()
        history = task_source.tasks(spark, store, history=True, settings=settings).cache()
        kept.extend((tasks, history))
        assert tasks.rdd.getNumPartitions() == task_source.GROUPS
        assert tasks.count() == tasks.select("id").distinct().count() == MAIL + REPORT
        # Submitted, claimed, completed: a version each.
        assert history.where("type = 'mail'").count() == 3 * MAIL
        newest = history.where("latest").select("id", "status", "attempt", "output")
        assertDataFrameEqual(newest, tasks.select("id", "status", "attempt", "output"))
        failed = tasks.where("status = 'failed'").collect()
        assert [(row.type, row.input, row.worker_id) for row in failed] == [("report", '{"number": 2}', None)]
        return tasks, history

    yield tell
    for frame in kept:
        frame.unpersist()


def worked_out(spark: SparkSession, example: ModuleType, tasks: DataFrame, history: DataFrame) -> None:
    """What the example says of them."""
    kept = "type string, tasks long, retried long, retries long, failed long, last_error string"
    expected = [("mail", MAIL, 0, 0, 0, None), ("report", REPORT, 2, 2, 1, "no paper")]
    assertDataFrameEqual(example.retries(tasks), spark.createDataFrame(expected, kept))
    asked = {"latency": example.latency(tasks), "waits": example.waits(history), "runs": example.runs(history)}
    found = {name: {row.type: row for row in frame.collect()} for name, frame in asked.items()}
    for rows in found.values():
        assert rows.keys() == {"mail", "report"}
        assert all(0 <= row.p50 <= row.p90 <= row.p99 <= row.most < 60 for row in rows.values())
    assert {type_: row.n for type_, row in found["runs"].items()} == {"mail": MAIL, "report": REPORT + 2}


async def test_an_embedded_queue_is_read_in_parallel(
    spark: SparkSession, example: ModuleType, told: Told, tmp_path: Path
) -> None:
    store = f"local:{tmp_path / 'queue'}"
    async with qo.connect(store) as queue:
        await filled(queue)
        worked_out(spark, example, *told(store, load({"store": store})))  # While others have it open.
    task_source.register(spark)
    reader = spark.read.format("qo").option("store", store).option("groups", "3")
    assert reader.option("type", "mail").option("status", "completed").load().count() == MAIL
    assert reader.option("type", "report").option("status", "failed").load().count() == 1


@pytest.mark.s3
async def test_a_queue_in_a_bucket_is_read_with_the_credentials_of_who_asks(
    told: Told, s3_env: dict[str, str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_env.items():
        monkeypatch.setenv(name, value)
    store = f"s3://{s3_bucket}/work"
    settings = load({"store": store})
    opened, _ = await open_store(settings)
    proof = Proof(proven_at=await opened.now(), server="tests", checks=(), conditional_delete=True, versioned=True)
    await record_proof(opened, proof)
    await opened.close()
    async with qo.connect(settings) as queue:
        await filled(queue)
    told(store, settings)


def test_options_that_cannot_be_meant_are_refused() -> None:
    for given, said in {
        "store": "needs the option 'store'",
        "nope": "no option 'nope'",
    }.items():
        with pytest.raises(UsageError, match=said):
            parse_options({} if given == "store" else {"store": "local:.qo", given: "x"})
    for wrong in ({"history": "perhaps"}, {"status": "tired"}, {"groups": "many"}):
        with pytest.raises(UsageError, match="cannot be read"):
            parse_options({"store": "local:.qo", **wrong})
    with pytest.raises(UsageError, match="inside one process"):
        parse_options({"store": "memory:"})
    assert Path(parse_options({"store": "local:.qo"}).store.removeprefix("local:")).is_absolute()
