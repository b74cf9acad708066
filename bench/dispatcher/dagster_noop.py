"""Dagster with its runs and events in PostgreSQL: tasks that do nothing.

    each    a run for each task, one after another, as they would be started when events arrive
    mapped  one run of a job that maps an op over all tasks, which are known beforehand

Runs execute in this process: its own executors start a process for each run or step, which takes seconds. They do so
one at a time: with storage in PostgreSQL, runs from several threads of a process wait for each other without end.
"""

import time  # No annotations from the future: Dagster looks at those of its ops.
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg

from bench.spark.talking import serve

_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


@dg.op(config_schema={"key": str})
def nothing(context: dg.OpExecutionContext) -> None:
    pass


@dg.job(executor_def=dg.in_process_executor)
def one_task() -> None:
    nothing()


@dg.op(out=dg.DynamicOut(int), config_schema={"count": int})
def keys(context: dg.OpExecutionContext) -> Iterator[dg.DynamicOutput[int]]:
    for number in range(context.op_config["count"]):
        yield dg.DynamicOutput(number, mapping_key=str(number))


@dg.op
def nothing_mapped(number: int) -> None:
    pass


@dg.job(executor_def=dg.in_process_executor)
def all_tasks() -> None:
    keys().map(nothing_mapped)


class Side:
    def open(self, home: str, database: str) -> None:
        place = Path(home)
        place.mkdir()
        place.joinpath("dagster.yaml").write_text(
            f"storage:\n  postgres:\n    postgres_url: {database}\ntelemetry:\n  enabled: false\n"
        )
        self._instance = dg.DagsterInstance.from_config(home)

    def each(self, count: int) -> dict[str, Any]:
        def run(number: int) -> bool:
            ops = {"nothing": {"config": {"key": str(number)}}}
            config = {**_QUIET, "ops": ops}
            return one_task.execute_in_process(run_config=config, instance=self._instance).success

        began = time.perf_counter()
        ended = [run(number) for number in range(count)]
        return {"seconds": _checked(all(ended), began)}

    def mapped(self, count: int) -> dict[str, Any]:
        config = {**_QUIET, "ops": {"keys": {"config": {"count": count}}}}
        began = time.perf_counter()
        ended = all_tasks.execute_in_process(run_config=config, instance=self._instance)
        return {"seconds": _checked(ended.success, began)}


def _checked(succeeded: bool, began: float) -> float:
    if not succeeded:
        raise RuntimeError("some tasks failed")
    return time.perf_counter() - began


if __name__ == "__main__":
    side = Side()
    serve(open=side.open, each=side.each, mapped=side.mapped)
