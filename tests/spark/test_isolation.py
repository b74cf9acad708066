# ruff: noqa: F811
"""Attempts on Spark read and write with credentials of their own, in one session that all of them share.

A frame takes its credentials with it to the processes of Spark. SeaweedFS enforces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolation_spark_operators as operators
import pytest
from pyspark.sql import SparkSession

from qo.api.contract.task import DataAccess
from qo.config.spark import BucketAccess, SparkSettings
from qo.config.worker import CredentialUse
from qo.core.pipeline.dag import Job
from qo.dispatcher.state.database import State, open_state
from support.dispatcher.isolated_sites import Site, all_rights, isolated_site  # noqa: F401
from support.dispatcher.pipelines import dag, job, source
from support.dispatcher.states import create_tables
from support.servers.s3 import S3Server
from support.servers.sts import sts_server  # noqa: F401

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.usefixtures("all_rights")]

OPENER = "isolation_spark_operators:open_executor"
SETTINGS = SparkSettings(class_archive=False)


def on_spark(name: str, reads: str, function: str, **fields: Any) -> Job:
    return job(name, reads=reads, runtime="spark", operator=f"isolation_spark_operators:{function}", **fields)


SHOP = dag(
    "shop",
    source("orders"),
    on_spark("secret", "orders", "rows"),
    on_spark("clean", "orders", "rows"),
    on_spark("daily", "clean", "double"),
    on_spark("ledger", "clean", "double", update_strategy="append", unique_key=["id"]),
    on_spark("late", "clean", "read_late"),
    on_spark("thief", "clean", "reach_out"),
)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    """What the database is makes no difference to Spark."""
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


def parquet(here: Site, name: str) -> list[str]:
    return [uri for uri in here.written(name) if uri.endswith(".parquet")]


async def test_a_job_on_spark_that_tries_anothers_prefix_is_refused_by_the_server(
    spark: SparkSession, books: State, tmp_path: Path, sts_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with isolated_site(books, tmp_path, sts_server, SHOP, opener=OPENER, spark=SETTINGS) as here:
        for name in ("secret", "clean", "daily", "ledger"):
            done = await here.run(name, "p1")
            assert (done["status"], done["data_access"]) == ("completed", DataAccess.ATTEMPT), done
        assert (await here.run("clean", "p2"))["status"] == "completed"
        # An append reads what its own job has committed before.
        assert (await here.run("ledger", "p2"))["status"] == "completed"
        theirs, own = parquet(here, "secret"), parquet(here, "clean")
        places = [theirs[0].rpartition("/")[0], f"s3://{here.bucket}/root/mine"]
        monkeypatch.setattr(operators, "PLACES", {"read": [*theirs, *own], "write": places})
        done = await here.run("thief", "p1")
        assert done["status"] == "completed", done
        assert {f"read {uri}" for uri in theirs} <= set(operators.REFUSED)
        assert {f"write {uri}" for uri in places} <= set(operators.REFUSED)
        assert sum(operators.READ) == 3  # Of its own input, the partition that it has pinned.
        # A frame that is used when its credentials have ended gets others where it is read.
        assert (await here.run("late", "p1"))["status"] == "completed"
        assert parquet(here, "late")


async def test_s3a_is_not_isolated_and_says_so(books: State, tmp_path: Path, sts_server: S3Server) -> None:
    through_s3a = SparkSettings(class_archive=False, bucket_access=BucketAccess.S3A)
    how: dict[str, Any] = {"opener": OPENER, "spark": through_s3a, "use": CredentialUse.REQUIRED}
    async with isolated_site(books, tmp_path, sts_server, SHOP, **how) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["outcome"]) == ("pending", "rescheduled"), done
        assert "s3a" in done["error"]
        assert here.written("clean") == []
    async with isolated_site(books, tmp_path, sts_server, SHOP, **how | {"use": CredentialUse.AUTO}) as here:
        # It runs with the rights of the worker, and fails here only for want of the jars.
        done = await here.run("clean", "p2")
        assert done["data_access"] == DataAccess.S3A, done
