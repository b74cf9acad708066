"""Dagster, in one process with one Spark session: a run for each partition, or one run for all of them.

    each    a partitioned asset, materialised partition by partition as they arrive: a run each, from a pool of threads
    small   one run of a job that maps an op over the partitions, all of which are known beforehand

Its executors are ``in_process`` and ``multiprocess``. The second starts a process for each step, and so a Spark session
for each, which takes seconds; the first is the fast one here. Runs and events are kept in SQLite, as it comes.
"""

import time  # No annotations from the future: Dagster looks at those of its ops.
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from bench.spark import sessions, work
from bench.spark.talking import serve

_session: list[SparkSession] = []
_sources: dict[str, tuple[str, str]] = {}  # By partition: what to read, and where to write.
_arrived = dg.DynamicPartitionsDefinition(name="arrived")
_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


@dg.asset(partitions_def=_arrived)
def partition_totals(context: dg.AssetExecutionContext) -> None:
    work.done(_session[0], *_sources[context.partition_key])


@dg.op(out=dg.DynamicOut(str), config_schema={"sources": [str]})
def partitions(context: dg.OpExecutionContext) -> Iterator[dg.DynamicOutput[str]]:
    for source in context.op_config["sources"]:
        yield dg.DynamicOutput(source, mapping_key=Path(source).stem)


@dg.op(config_schema={"target": str})
def totals(context: dg.OpExecutionContext, source: str) -> None:
    work.done(_session[0], source, f"{context.op_config['target']}/{Path(source).stem}")


@dg.job(executor_def=dg.in_process_executor)
def small_tasks() -> None:
    partitions().map(totals)


class Side:
    def open(self, conf: dict[str, str], environment: dict[str, str], home: str, threads: int) -> None:
        _session.append(sessions.opened(conf, environment))
        Path(home).mkdir()
        self._instance = dg.DagsterInstance.local_temp(home)
        self._pool = ThreadPoolExecutor(threads)

    def each(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        keys = {f"{Path(target).name}-{Path(source).stem}": source for source in sources}
        _sources.update({key: (source, f"{target}/{key}") for key, source in keys.items()})

        def materialised(key: str) -> None:
            dg.materialize([partition_totals], instance=self._instance, partition_key=key, run_config=_QUIET)

        began = time.perf_counter()
        self._instance.add_dynamic_partitions("arrived", list(keys))
        list(self._pool.map(materialised, keys))
        return {"seconds": time.perf_counter() - began}

    def small(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        ops = {
            "partitions": {"config": {"sources": list(sources)}},
            "totals": {"config": {"target": target}},
        }
        began = time.perf_counter()
        small_tasks.execute_in_process(run_config={**_QUIET, "ops": ops}, instance=self._instance)
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, each=side.each, small=side.small)
