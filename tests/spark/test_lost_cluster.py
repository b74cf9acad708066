"""A cluster that is lost in the middle of a run: nothing is used up, everything is there in the end, and soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.dispatcher.sites import Process
from support.spark.clusters import CONF, connect_server, standalone_cluster
from support.spark.sites import Flow, Plant, feed, job, pipeline, planted
from support.stores.queues import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

PARTS = 24  # So that they are seen at work, and are not done when the cluster is killed.
LONG = 60  # Longer than it takes until a worker of Spark's has found the new master.
KEYS = ["a", "b"]
LOST_AFTER_S = "4"
BACK_WITHIN_S = 240.0  # A worker of Spark's that lost its master asks for it again every 5 to 15 s.


@asynccontextmanager
async def running(directory: Path, parts: int = PARTS, **settings: str) -> AsyncIterator[tuple[Flow, Process]]:
    """Tasks that may not fail once, at work on a cluster."""
    async with planted(directory / "site") as plant:
        (worker,) = await plant.workers("w1", **{"QO_SPARK_LOST_AFTER_S": LOST_AFTER_S, **settings})
        flow = await begun(plant, parts)
        yield flow, worker


async def begun(plant: Plant, parts: int) -> Flow:
    flow = Flow(plant.site, "cluster", ["slow"])
    flow.days = KEYS
    slow = job("slow", "spark_site_operators:slowly", config={"seconds": 0.5, "parts": parts}, timeout_seconds=300)
    await flow.deploy(pipeline("cluster", [feed(), slow], max_attempts=1))
    await flow.emit(*KEYS)

    async def at_work() -> bool:
        return any(_tasks(row).get("done", 0) > 0 for row in flow.tasks("slow"))

    await until(at_work, within_s=240, every_s=0.1)
    return flow


def _tasks(row: Mapping[str, Any]) -> Mapping[str, int]:
    return (row["progress"] or {}).get("tasks", {})


async def lost(worker: Process) -> None:
    async def noticed() -> bool:
        return "lost the Spark cluster" in worker.said

    await until(noticed, within_s=120, every_s=0.05)


async def explained(flow: Flow, word: str) -> None:
    """``qo why``, ``qo run show`` and the page say what is missing."""

    async def said() -> bool:
        for row in flow.tasks("slow"):
            why = await flow.site.client.get("/v1/why", target=row["id"])
            shown = await flow.site.client.get(f"/v1/tasks/{row['id']}")
            told = f"{shown['reschedule_reason']} {shown['progress']}"
            if word in "\n".join(why["lines"]) and word in told:
                return True
        return False

    await until(said, within_s=120, every_s=0.2)


async def completed(flow: Flow, parts: int = PARTS) -> None:
    """All of them, at no cost of attempts, with the right rows."""

    async def done() -> bool:
        rows = flow.tasks("slow")
        bad = [row["last_error"] for row in rows if row["status"] in ("failed", "cancelled")]
        assert not bad, bad
        return len(rows) == len(KEYS) and all(row["status"] == "completed" for row in rows)

    await until(done, within_s=BACK_WITHIN_S, every_s=0.1)
    assert {row["retry_count"] for row in flow.tasks("slow")} == {0}
    assert {outcome for _, _, outcome in flow.attempts()} <= {"completed", "rescheduled"}
    assert flow.table("slow") == sorted((2 * number,) for number in range(parts) for _ in KEYS)
    flow.audit()


def cluster_settings(url: str) -> dict[str, str]:
    conf = ",".join(f"{key}={value}" for key, value in CONF.items())
    return {"QO_SPARK_MASTER": url, "QO_SPARK_CONF": conf}


@pytest.mark.long
async def test_a_master_that_is_killed_and_comes_back_costs_no_attempt(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        async with running(tmp_path, LONG, **cluster_settings(cluster.url)) as (flow, worker):
            cluster.master.kill()
            await asyncio.to_thread(cluster.start_master)
            await lost(worker)  # The new master does not know the application, and has its executors ended.
            await completed(flow, LONG)


@pytest.mark.long
async def test_a_cluster_that_is_gone_as_a_whole_is_waited_for(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        async with running(tmp_path, **cluster_settings(cluster.url)) as (flow, worker):
            cluster.master.kill()
            for each in cluster.workers:
                each.kill()
            await lost(worker)
            await explained(flow, "nobody listens there any more")
            await asyncio.to_thread(cluster.start)
            await completed(flow)


@pytest.mark.long
async def test_workers_that_are_killed_and_come_back_cost_no_attempt(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        async with running(tmp_path, **cluster_settings(cluster.url)) as (flow, worker):
            for each in cluster.workers:
                each.kill()
            await lost(worker)
            await explained(flow, "waits for Spark executors")  # Of the session that was made anew.
            await asyncio.to_thread(cluster.start_workers)
            await completed(flow)


@pytest.mark.long
async def test_executors_that_are_killed_cost_no_attempt(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path / "cluster", workers=1) as cluster:
        patient = {**cluster_settings(cluster.url), "QO_SPARK_LOST_AFTER_S": "60"}
        async with running(tmp_path, **patient) as (flow, worker):
            assert len(cluster.kill_executors()) == 1
            await completed(flow)
            assert "lost the Spark cluster" not in worker.said  # Spark itself gets others.


@pytest.mark.long
async def test_a_connect_server_that_is_killed_and_comes_back_costs_no_attempt(tmp_path: Path) -> None:
    with connect_server(tmp_path / "connect") as server:
        async with running(tmp_path, QO_SPARK_REMOTE=server.url) as (flow, worker):
            server.daemon.kill()
            await lost(worker)
            await explained(flow, "nobody listens there any more")
            await asyncio.to_thread(server.start)
            await completed(flow)
