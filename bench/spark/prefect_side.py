"""Prefect: one flow that maps a task over the partitions with a pool of threads, in one process with one Spark session.

Its server is a process of its own, with SQLite, as ``prefect server start`` has it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from pyspark.sql import SparkSession

from bench.spark import sessions, work
from bench.spark.talking import serve

_session: list[SparkSession] = []


@task
def totals(source: str, target: str) -> None:
    work.done(_session[0], source, f"{target}/{Path(source).stem}")


@flow
def small_tasks(sources: Sequence[str], target: str) -> None:
    totals.map(list(sources), target).wait()


class Side:
    def open(self, conf: dict[str, str], environment: dict[str, str], threads: int) -> None:
        _session.append(sessions.opened(conf, environment))
        self._flow = small_tasks.with_options(task_runner=ThreadPoolTaskRunner(max_workers=threads))

    def small(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        began = time.perf_counter()
        self._flow(list(sources), target)
        took = time.perf_counter() - began
        if len(list(Path(target).iterdir())) != len(sources):
            raise RuntimeError("some tasks failed")
        return {"seconds": took}


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, small=side.small)
