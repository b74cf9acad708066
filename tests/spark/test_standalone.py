"""The same work on a cluster: a master and two workers as processes of their own, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.dispatcher.sites import Site, embedded
from support.spark import session
from support.spark.children import Child, worked_out
from support.spark.clusters import standalone_cluster
from support.spark.versions import run_versions

__all__ = ["embedded"]

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    with standalone_cluster(tmp_path / "cluster") as cluster:
        yield cluster.url


def test_a_cluster_does_the_same(spark: SparkSession, master: str, tmp_path: Path) -> None:
    with Child(tmp_path, "standalone", master) as child:
        assert child.next() == worked_out(spark)
        assert child.next() == 2  # Both workers had a part in it.
        assert "was stopped" in child.next()
        assert child.process.wait(60) == 0


async def test_executors_of_a_cluster_run_the_code_of_the_tasks_version(embedded: Site, master: str) -> None:
    conf = {**dict(session.SETTINGS.conf), "spark.executor.memory": "500m", "spark.cores.max": "2"}
    settings = ",".join(f"{key}={value}" for key, value in conf.items())
    await run_versions(embedded, QO_SPARK_MASTER=master, QO_SPARK_CONF=settings)
