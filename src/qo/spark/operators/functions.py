"""module:function: a function of the user's from frames to frames.

    def joined(flights: DataFrame, planes: DataFrame, config: Mapping[str, Any]) -> DataFrame:
        return flights.join(planes, "tailnum", config["how"])

A parameter is an input of that name, or one of ``config``, ``run`` and ``spark``. Inputs that no parameter names are
not read. It returns a frame for its output, or a tuple or mapping of frames for several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from pyspark.sql import DataFrame

from qo.errors import UsageError
from qo.spark.operators.context import Context, Frames

BESIDE = ("config", "run", "spark")


def call(context: Context, function: Callable[..., Any]) -> Frames:
    """Raises UsageError for a function that cannot be called with what the job has, or returns something else."""
    said = signature(function)
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{said} is an async def: Spark runs plain functions")
    positional, named = _bound(context, function, said)
    return _frames(context, function(*positional, **named), said)


def signature(function: Callable[..., Any]) -> str:
    """As messages show it: the name, and its parameters without their types."""
    parameters = inspect.signature(function).parameters.values()
    shown = (each.replace(annotation=each.empty) for each in parameters)
    return f"{getattr(function, '__name__', function)}({', '.join(map(str, shown))})"


def _bound(context: Context, function: Callable[..., Any], said: str) -> tuple[list[Any], dict[str, Any]]:
    beside = {"config": context.config, "run": context.run, "spark": context.spark}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            named.update((each, context.inputs[each]) for each in context.inputs if each not in named)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            raise UsageError(f"{said} takes *{name}, but inputs go by their names: write **{name}")
        elif name in context.inputs or name in beside:
            # An input comes first: its name is the author's own choice.
            value = context.inputs[name] if name in context.inputs else beside[name]
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                named[name] = value
        elif parameter.default is parameter.empty:
            inputs = ", ".join(context.inputs) or "none"
            raise UsageError(
                f"{said} has a parameter {name!r}, but {context.run.work.job} has no such input: its inputs are "
                f"{inputs}. Rename the parameter, name the input with 'as: {name}', or use {', '.join(BESIDE)}"
            )
    return positional, named


def _frames(context: Context, returned: Any, said: str) -> Frames:
    outputs = {each.given.index: each for each in context.run.outputs}
    frames = {index: _frame(each, index, said) for index, each in _listed(returned, said).items()}
    # A function that takes the run may have settled an output itself.
    own = {
        index for index, each in outputs.items() if each.skipped or each.body(context.run.work).files
    } - frames.keys()
    if frames.keys() | own != outputs.keys():
        wanted = len(outputs) - len(own)
        returns = f"{len(frames)} frames" if len(frames) != 1 else "one frame"
        if frames and frames.keys() - outputs.keys() and len(frames) == len(outputs):
            returns = f"frames for the outputs {', '.join(map(str, sorted(frames)))}"
        returns = returns if returned is not None else "nothing"
        made = "one output" if len(outputs) == 1 else f"{len(outputs)} outputs"
        raise UsageError(f"{said} returned {returns}, but {context.run.work.job} has {made}: {_advice(wanted)}")
    return frames


def _advice(wanted: int) -> str:
    if wanted == 0:
        return "return None"
    if wanted == 1:
        return "return a DataFrame"
    return f"return a tuple of {wanted} DataFrames, or a dict of them by output, counted from 0"


def _listed(returned: Any, said: str) -> dict[int, Any]:
    if returned is None:
        return {}
    if isinstance(returned, tuple | list):
        return dict(enumerate(cast("tuple[Any, ...]", returned)))
    if not isinstance(returned, Mapping):
        return {0: returned}
    try:
        return {int(key): each for key, each in cast("Mapping[Any, Any]", returned).items()}
    except (TypeError, ValueError):
        keys = ", ".join(repr(key) for key in cast("Mapping[Any, Any]", returned))
        raise UsageError(f"{said} returned a dict with the keys {keys}: outputs go by number, from 0") from None


def _frame(value: Any, index: int, said: str) -> DataFrame:
    if not isinstance(value, DataFrame):
        kind = cast("type[object]", type(value))
        named = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        what = "None" if value is None else f"a {named}"
        raise UsageError(f"{said} returned {what} for output {index}: return a Spark DataFrame")
    return value
