"""Run an operator of a pipeline on small frames, without a dispatcher, a worker or files.

    from pyspark.testing import assertDataFrameEqual
    from qo.testing.spark import run_operator

    def test_late_flights_are_kept(spark):
        flights = [{"flight": 1, "delay": 90}, {"flight": 2, "delay": 0}]
        late = run_operator("flights.jobs:late", {"flights": flights}, config={"minutes": 60}, spark=spark)
        assertDataFrameEqual(late, spark.createDataFrame([{"flight": 1, "delay": 90}]))

The operator is called as a worker calls it: parameters are bound by name, and its result is checked against the
number of outputs. Errors of Spark are translated as for a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.agent.operator_run import Run
from qo.api.contract.task import (
    EventBody,
    InputMode,
    InputPart,
    PiecesAnswer,
    StandingAnswer,
    Work,
    WorkInput,
    WorkOutput,
)
from qo.config.settings import Settings
from qo.spark.engine.error_translation import explain
from qo.spark.io.bucketing import Bucketed
from qo.spark.io.files import files_for
from qo.spark.operators import functions
from qo.spark.operators.calling import call
from qo.spark.operators.operator_context import Context, Frames, Inputs
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken

Rows = DataFrame | Sequence[Any]


def run_operator(
    operator: str | Callable[..., Any],
    inputs: Mapping[str, Rows],
    *,
    spark: SparkSession,
    config: Mapping[str, Any] | None = None,
    outputs: int = 1,
    partition_key: str | None = "test",
    secrets_dir: Path | None = None,
    **work: Any,
) -> Any:
    """Call a function, ``module:function`` or built-in operator, and return its frame.

    With several outputs it is a tuple of frames, without any None. Inputs are frames, or lists of dicts, Rows or
    tuples. ``work`` holds further fields of the task, such as ``cursor``, ``attributes`` or ``secrets``. The frames are
    not computed yet, as in a worker before they are written.
    """
    name = operator if isinstance(operator, str) else "test:operator"
    run = make_run(name, list(inputs), config or {}, outputs, secrets_dir, partition_key=partition_key, **work)
    frames = Inputs(list(inputs), lambda each: make_frame(spark, inputs[each]))
    context = Context(spark, run, frames, run.config, files_for(Settings(), "file:/"), Settings(), ExitStack())
    try:
        result = call(context) if isinstance(operator, str) else functions.call(context, operator)
    except Exception as error:
        translated = explain(error)
        if translated is error:
            raise
        raise translated from None
    return _unpack(result, outputs)


def make_frame(spark: SparkSession, rows: Rows) -> DataFrame:
    if isinstance(rows, DataFrame):
        return rows
    maker: Any = spark
    # Without rows the columns are unknown.
    return maker.createDataFrame(rows) if len(rows) else maker.createDataFrame([], StructType())


def make_run(
    operator: str,
    inputs: Sequence[str | WorkInput],
    config: Mapping[str, Any],
    outputs: int | Sequence[WorkOutput] = 1,
    secrets_dir: Path | None = None,
    **work: Any,
) -> Run:
    """Return a run without a task: it has no pieces to read, and drops the events that it emits."""

    def wait(coroutine: Coroutine[Any, Any, bool]) -> bool:
        return asyncio.run(coroutine)

    async def emit(events: list[EventBody]) -> bool:
        return True

    def more(input_: WorkInput, after: str | None, part: InputPart | None = None) -> PiecesAnswer:
        return PiecesAnswer(pieces=[])

    def standing(output: int, after: str | None, revision: int | None) -> StandingAnswer:
        return StandingAnswer(pieces=[], revision=0)

    fields: dict[str, Any] = {
        "task_id": "test",
        "attempt": 1,
        "dag": "test",
        "job": "test",
        "version": 1,
        "runtime": "spark",
        "operator": operator,
        "config": dict(config),
        "inputs": [_input(position, each) for position, each in enumerate(inputs)],
        "outputs": [_output(index) for index in range(outputs)] if isinstance(outputs, int) else list(outputs),
        "update_strategy": "replace",
        **work,
    }
    return Run(
        Work(**fields),
        BlockingFiles(),
        cancel=CancelToken(),
        progress=lambda value: None,
        emit=emit,
        wait=wait,
        more=more,
        standing=standing,
        secrets_dir=secrets_dir or Path(),
    )


def _input(position: int, name: str | WorkInput) -> WorkInput:
    if isinstance(name, WorkInput):
        return name
    return WorkInput(
        position=position, name=name, dataset_id=name, generation_id=name, mode=InputMode.PARTITION, pieces=[]
    )


def _output(index: int) -> WorkOutput:
    return WorkOutput(index=index, dataset_id="test", generation_id="test", prefix=f"file:/nowhere/{index}/")


def _plain(frame: DataFrame | Bucketed | None) -> DataFrame | None:
    return frame.rows if isinstance(frame, Bucketed) else frame


def _unpack(result: Frames, outputs: int) -> Any:
    frames = [_plain(result.get(index)) for index in range(outputs)]
    if outputs == 1:
        return frames[0]
    return tuple(cast("list[Any]", frames)) if frames else None
