"""All built-in operators, by name."""

from __future__ import annotations

from qo.pipeline.operators.dispatcher import DISPATCHER
from qo.pipeline.operators.spark import SPARK
from qo.pipeline.operators.spec import OperatorSpec

# Code of users, which the dispatcher has a function service run: an uploaded bundle, named in the job's ``udf``.
UDF = OperatorSpec(name="udf", runtimes=("lambda",))

BUILT_IN: dict[str, OperatorSpec] = {spec.name: spec for spec in (*SPARK, *DISPATCHER, UDF)}


def operators_of(runtime: str) -> frozenset[str]:
    return frozenset(spec.name for spec in BUILT_IN.values() if runtime in spec.runtimes)
