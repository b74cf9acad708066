"""Calls the operator that a job names: a built-in one, or a function of the user's."""

from __future__ import annotations

from qo.errors import NotFound
from qo.pipeline.operators.built_in import BUILT_IN, operators_of
from qo.spark.operators import functions
from qo.spark.operators.operator_context import Context, Frames

RUNTIME = "spark"


def is_built_in(name: str) -> bool:
    return name in BUILT_IN and RUNTIME in BUILT_IN[name].runtimes


def call(context: Context) -> Frames:
    """Return a frame for each output that is to be written. Raises NotFound for an operator that does not exist."""
    name = context.operator
    if is_built_in(name):
        return BUILT_IN[name].load()(context)
    if ":" not in name:
        names = ", ".join(sorted(operators_of(RUNTIME)))
        raise NotFound(f"Spark has no operator {name!r}: write module:function, or one of {names}")
    return functions.call(context, context.run.code.load(name))
