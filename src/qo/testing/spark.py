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

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from qo.agent.taskless_run import make_run
from qo.config.settings import Settings
from qo.spark.engine.error_translation import explain
from qo.spark.io.bucketing import Bucketed
from qo.spark.io.files import files_for
from qo.spark.operators import functions
from qo.spark.operators.calling import call
from qo.spark.operators.operator_context import Context, Frames, Inputs

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


def _plain(frame: DataFrame | Bucketed | None) -> DataFrame | None:
    return frame.rows if isinstance(frame, Bucketed) else frame


def _unpack(result: Frames, outputs: int) -> Any:
    frames = [_plain(result.get(index)) for index in range(outputs)]
    if outputs == 1:
        return frames[0]
    return tuple(cast("list[Any]", frames)) if frames else None
