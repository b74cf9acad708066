"""Attempts whose cluster is lost, or does not come, are given back at no cost: with an engine that only pretends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from qo.agent.completions import build_completion
from qo.agent.heartbeats import HeldTask
from qo.agent.operator_run import Run
from qo.agent.operators import ExecutorUnavailable
from qo.api.contract.task import Claimed, CompleteRequest, Outcome
from qo.config.settings import Settings
from qo.config.spark import SparkSettings
from qo.spark import executor
from qo.spark.engine import cluster_watch, supervisor
from qo.spark.engine.cluster_watch import Observation
from qo.spark.engine.endpoint import Reach
from qo.spark.engine.error_translation import SessionLost
from qo.spark.executor import FREE_LOSSES_MAX, SparkExecutor
from qo.testing.spark import make_run
from qo.worker.loop.cancel import Why
from support.spark.engines import BEGUN, FakeEngine
from support.stores.queues import until

pytestmark = pytest.mark.fast

HEALTHY = Observation(0.0, Reach.OPEN, 1, waiting=1)
GONE = Observation(0.0, Reach.REFUSED, 0, waiting=1)
STARVED = Observation(0.0, Reach.OPEN, 0, waiting=1)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    monkeypatch.setattr(supervisor, "IDLE_LOOK_S", 0.01)
    monkeypatch.setattr(supervisor, "PROBE_MIN_S", 0.01)
    monkeypatch.setattr(supervisor, "PROBE_MAX_S", 0.01)
    monkeypatch.setattr(cluster_watch, "AWAY_S", 0.05)
    monkeypatch.setattr(executor, "PROGRESS_S", 0.01)
    monkeypatch.setattr(executor, "STOP_S", 0.2)
    BEGUN.clear()
    return FakeEngine(seen=HEALTHY)


@pytest.fixture
def spark(engine: FakeEngine) -> Iterator[SparkExecutor]:
    made = SparkExecutor(Settings(spark=SparkSettings(lost_after_s=1.0)), engine)
    yield made
    made.close()


def work(operator: str = "waits_for_spark", task_id: str = "one", attempt: int = 1) -> Run:
    return make_run(f"support.spark.engines:{operator}", [], {}, [], task_id=task_id, attempt=attempt)


async def at_work(number: int = 1) -> None:
    async def begun() -> bool:
        return len(BEGUN) >= number

    await until(begun)


def completion(run: Run, error: BaseException) -> CompleteRequest:
    """What the dispatcher is told of an attempt that ended so."""
    claimed = Claimed.model_construct(
        work=run.work, attempt=1, lease_id="l", capability_token="t", heartbeat_s=1.0
    )
    ended = asyncio.get_running_loop().create_future()
    ended.set_exception(error)
    told = build_completion(HeldTask(claimed, run.cancel, run=run), ended)  # type: ignore[arg-type]
    assert told is not None
    return told


@pytest.mark.parametrize("operator", ["waits_for_spark", "ignores_spark"])
async def test_an_attempt_in_a_lost_session_is_given_back_with_the_reason(
    spark: SparkExecutor, engine: FakeEngine, operator: str
) -> None:
    run = work(operator)
    attempt = asyncio.create_task(spark.execute(run))
    await at_work()
    engine.seen = GONE
    with pytest.raises(ExecutorUnavailable, match=r"lost the Spark cluster .* nobody listens there") as caught:
        await attempt
    told = completion(run, caught.value)
    assert (told.outcome, told.retry_after_s) == (Outcome.RELEASED, executor.GIVE_BACK_S)
    assert "lost the Spark cluster spark://test:7077" in (told.error or "")
    run.cancel.request(Why.SHUTDOWN)


async def test_a_task_that_comes_while_the_cluster_is_away_waits_for_it_and_says_so(
    spark: SparkExecutor, engine: FakeEngine
) -> None:
    engine.seen = GONE
    run, told = work(), list[Any]()
    run.progress = told.append
    attempt = asyncio.create_task(spark.execute(run))

    async def waits() -> bool:
        return any("does not answer" in each.get("waiting", "") for each in told)

    await until(waits)
    assert BEGUN == []
    engine.seen = HEALTHY
    await at_work()

    async def goes_on() -> bool:
        return "waiting" not in told[-1]

    await until(goes_on)
    run.cancel.request(Why.SHUTDOWN)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt


async def test_a_cluster_that_does_not_come_back_holds_a_task_only_so_long(
    spark: SparkExecutor, engine: FakeEngine
) -> None:
    engine.seen = GONE
    with pytest.raises(ExecutorUnavailable, match=r"the Spark master at .* does not answer"):
        await spark.execute(work())
    assert BEGUN == []


@pytest.mark.parametrize("seen", [GONE, STARVED])
async def test_time_that_ran_out_for_want_of_a_cluster_costs_no_attempt(
    spark: SparkExecutor, engine: FakeEngine, seen: Observation
) -> None:
    engine.seen = seen
    run = work()
    attempt = asyncio.create_task(spark.execute(run))
    await asyncio.sleep(0)  # It has begun, also if the cluster was found missing before.

    async def missing() -> bool:
        return spark._supervisor.missing is not None

    await until(missing)
    run.cancel.request(Why.TIMEOUT)
    attempt.cancel()
    with pytest.raises(ExecutorUnavailable) as caught:
        await attempt
    assert completion(run, caught.value).outcome is Outcome.RELEASED


async def test_a_task_under_which_the_cluster_is_lost_again_and_again_pays_for_it(
    spark: SparkExecutor, engine: FakeEngine
) -> None:
    for number in range(FREE_LOSSES_MAX + 1):
        engine.seen = HEALTHY
        run = work(attempt=number + 1)
        attempt = asyncio.create_task(spark.execute(run))
        await at_work(number + 1)
        engine.seen = GONE
        wanted = ExecutorUnavailable if number < FREE_LOSSES_MAX else SessionLost
        with pytest.raises(wanted, match="nobody listens") as caught:
            await attempt
    assert completion(run, caught.value).outcome is Outcome.RETRYABLE


async def test_others_go_on_after_a_session_was_made_anew(spark: SparkExecutor, engine: FakeEngine) -> None:
    first = asyncio.create_task(spark.execute(work()))
    await at_work()
    engine.seen = GONE
    with pytest.raises(ExecutorUnavailable):
        await first
    second = asyncio.create_task(spark.execute(work(task_id="two")))
    await asyncio.sleep(0.05)
    assert BEGUN == ["one"]
    engine.seen = replace(HEALTHY, session=1)
    await at_work(2)
    assert engine.abandoned == 1
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
