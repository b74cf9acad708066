"""Prefect, whose server has its database in PostgreSQL: tasks that do nothing.

    each    a flow run for each task, from a pool of threads, as they would be started when events arrive
    mapped  one flow run that maps a task over all, which are known beforehand

Flows run in this process, as ``flow()`` runs them: a work pool would start a process for each, which takes seconds.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prefect import flow, task
from prefect.task_runners import ThreadPoolTaskRunner

from bench.spark.talking import serve


@flow
def one_task(number: int) -> int:
    return number


@task
def nothing(number: int) -> int:
    return number


@flow
def all_tasks(count: int) -> int:
    return len(nothing.map(list(range(count))).result())


class Side:
    def open(self, threads: int) -> None:
        self._flow = all_tasks.with_options(task_runner=ThreadPoolTaskRunner(max_workers=threads))
        self._pool = ThreadPoolExecutor(threads)

    def each(self, count: int) -> dict[str, Any]:
        began = time.perf_counter()
        ended = list(self._pool.map(one_task, range(count)))
        return {"seconds": _checked(len(ended), count, began)}

    def mapped(self, count: int) -> dict[str, Any]:
        began = time.perf_counter()
        return {"seconds": _checked(self._flow(count), count, began)}


def _checked(ended: int, count: int, began: float) -> float:
    if ended != count:
        raise RuntimeError("some tasks failed")
    return time.perf_counter() - began


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, each=side.each, mapped=side.mapped)
