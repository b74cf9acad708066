"""Dagster: one run of a job that maps an op over the partitions, in one process with one Spark session.

Its executors are ``in_process`` and ``multiprocess``. The second starts a process for each step, and so a Spark session
for each, which takes seconds; the first is the fast one here. Runs and events are kept in SQLite, as it comes.
"""

import time  # No annotations from the future: Dagster looks at those of its ops.
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pyspark.sql import SparkSession

from bench.spark import sessions, work
from bench.spark.talking import serve

_session: list[SparkSession] = []


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
    def open(self, conf: dict[str, str], environment: dict[str, str], home: str) -> None:
        _session.append(sessions.opened(conf, environment))
        Path(home).mkdir()
        self._instance = dg.DagsterInstance.local_temp(home)

    def small(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        config = {
            "loggers": {"console": {"config": {"log_level": "ERROR"}}},
            "ops": {
                "partitions": {"config": {"sources": list(sources)}},
                "totals": {"config": {"target": target}},
            },
        }
        began = time.perf_counter()
        ran = small_tasks.execute_in_process(run_config=config, instance=self._instance)
        took = time.perf_counter() - began
        if not ran.success:
            raise RuntimeError("the run failed")
        return {"seconds": took}


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, small=side.small)
