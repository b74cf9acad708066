"""Prefect, in one process with one Spark session: a flow run for each partition, or one for all of them.

    each    a flow, run partition by partition as they arrive, from a pool of threads
    small   one run of a flow that maps a task over the partitions, all of which are known beforehand

Its server is a process of its own, with SQLite, as ``prefect server start`` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner
from pyspark.sql import SparkSession

from bench.spark import sessions, work
from bench.spark.talking import serve

_session: list[SparkSession] = []


@flow
def partition_totals(source: str, target: str) -> None:
    work.done(_session[0], source, f"{target}/{Path(source).stem}")


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
        self._pool = ThreadPoolExecutor(threads)

    def each(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        return _timed(
            lambda: list(self._pool.map(lambda source: partition_totals(source, target), sources)), sources, target
        )

    def small(self, sources: Sequence[str], target: str) -> dict[str, Any]:
        return _timed(lambda: self._flow(list(sources), target), sources, target)


def _timed(do: Callable[[], object], sources: Sequence[str], target: str) -> dict[str, Any]:
    began = time.perf_counter()
    do()
    took = time.perf_counter() - began
    if len(list(Path(target).iterdir())) != len(sources):
        raise RuntimeError("some tasks failed")
    return {"seconds": took}


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, each=side.each, small=side.small)
