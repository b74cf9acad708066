"""Two versions of one pipeline on Spark, whose rows say by which code they were made: in the driver, and in Spark's
Python processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import sqlalchemy as sa

from qo.api.delivery import deploy_version
from qo.dispatcher.state import schema
from qo.pipeline.loading import load_for_deploy
from support.dispatcher.sites import DAG, Site
from support.spark import session
from support.stores.queues import until

WITHIN_S = 240.0

PIPELINE = f"""\
name: {DAG}
jobs:
  - name: feed
    activation: source
    source: {{kind: manual}}
    outputs: 1
  - name: priced
    activation: reactive
    runtime: spark
    operator: shop.prices:priced
    inputs: [{{from: {{job: feed}}}}]
    execution_strategy: PerPartition
    outputs: 1
"""
OPERATORS = """\
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from shop import rates


@F.udf(LongType())
def in_a_python_process(number):
    from shop.rates import rate  # Imported where Spark runs Python, when it runs.
    return number * rate()


@F.udf(LongType())
def by_the_module(number):
    return number * rates.rate()


def priced(spark):
    numbers = spark.range(1, 2).withColumn("driver", F.lit(rates.RATE))
    return numbers.withColumn("lazily", in_a_python_process("id")).withColumn("named", by_the_module("id"))
"""


def write(home: Path, rate: int, mark: str = "") -> None:
    (home / "shop").mkdir(parents=True, exist_ok=True)
    (home / "shop" / "__init__.py").write_text("")
    (home / "pipeline.yaml").write_text(PIPELINE)
    (home / "shop" / "prices.py").write_text(OPERATORS)
    (home / "shop" / "rates.py").write_text(f"{mark}RATE = {rate}\n\n\ndef rate():\n    return RATE\n")


async def deployed(site: Site, home: Path) -> int:
    whole = load_for_deploy(str(home / "pipeline.yaml"))
    return (await deploy_version(site.client, DAG, whole.source, whole.bundle))["version"]


def made(site: Site, version: int) -> dict[str, dict[str, Any]]:
    """The row of each partition that a version has, be it active or not."""
    parts, pointers, versions = schema.partitions, schema.version_generations, schema.dag_versions
    query = (
        sa.select(parts.c.partition_key, parts.c.location, parts.c.files)
        .join(pointers, pointers.c.generation_id == parts.c.generation_id)
        .join(versions, versions.c.id == pointers.c.version_id)
        .join(schema.datasets, schema.datasets.c.id == parts.c.dataset_id)
        .where(versions.c.number == version, schema.datasets.c.job == "priced")
    )
    with site.state.read() as tx:
        rows = tx.all(query)
    return {row["partition_key"]: _row(site, row) for row in rows}


def _row(site: Site, row: Any) -> dict[str, Any]:
    directory = site.directory / row["location"].removeprefix("file:")
    tables = [parquet.read_table(directory / name).to_pylist() for name in row["files"]]
    (found,) = [each for table in tables for each in table]
    return found


async def wait_for(site: Site, version: int, wanted: dict[str, int]) -> None:
    rows = {key: {"id": 1, "driver": rate, "lazily": rate, "named": rate} for key, rate in wanted.items()}

    async def same() -> bool:
        site.hasten()
        failed = [task["last_error"] for task in site.tasks("priced") if task["status"] == "failed"]
        assert not failed, failed
        return made(site, version) == rows

    try:
        await until(same, within_s=WITHIN_S, every_s=0.2)
    except TimeoutError:
        raise AssertionError(f"{made(site, version)}, not {rows}") from None


async def run_versions(site: Site, mark: str = "", **settings: str) -> None:
    """Two versions, one after the other and then both at once, by one worker that is never restarted."""
    home = site.directory / "project"
    command = ("worker", "--runtime", "spark", "--id", "w1")
    given = {"QO_DISPATCHER_INTERNAL_URL": f"http://127.0.0.1:{site.ports[1]}", **session.ENVIRONMENT, **settings}
    write(home, 1, mark)
    async with site.dispatcher(), site._process("spark", *command, **given):
        first = await deployed(site, home)
        await site.emit("p1")
        await wait_for(site, first, {"p1": 1})
        write(home, 2, mark)
        second = await deployed(site, home)
        await site.emit("p2")
        await wait_for(site, second, {"p1": 2, "p2": 2})
        await wait_for(site, first, {"p1": 1, "p2": 1})
