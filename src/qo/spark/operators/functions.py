"""module:function: calls a user's function from frames to frames.

    def joined(flights: DataFrame, planes: DataFrame, config: Mapping[str, Any]) -> DataFrame:
        return flights.join(planes, "tailnum", config["how"])

A parameter names an input, or is one of ``config``, ``run`` and ``spark``. Inputs that no parameter names are not read.
The function returns a frame for its output, or a tuple or mapping of frames for several.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

from pyspark.sql import DataFrame

from qo.errors import UsageError
from qo.spark.operators.operator_context import Context, Frames

OTHER_PARAMETERS = ("config", "run", "spark")


def call(context: Context, function: Callable[..., Any]) -> Frames:
    """Call a user's function. Raises UsageError if its parameters or the frames it returns do not fit the job."""
    label = signature(function)
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{label} is an async def: Spark runs plain functions")
    positional, keyword = _bind(context, function, label)
    return _frames(context, function(*positional, **keyword), label)


def signature(function: Callable[..., Any]) -> str:
    """Return the function for messages: its name, and its parameters without types."""
    parameters = inspect.signature(function).parameters.values()
    untyped = (each.replace(annotation=each.empty) for each in parameters)
    return f"{getattr(function, '__name__', function)}({', '.join(map(str, untyped))})"


def _bind(context: Context, function: Callable[..., Any], label: str) -> tuple[list[Any], dict[str, Any]]:
    others = {"config": context.config, "run": context.run, "spark": context.spark}
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            keyword.update((each, context.inputs[each]) for each in context.inputs if each not in keyword)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            raise UsageError(f"{label} takes *{name}, but inputs go by their names: write **{name}")
        elif name in context.inputs or name in others:
            # An input comes first: the author has chosen its name.
            value = context.inputs[name] if name in context.inputs else others[name]
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                keyword[name] = value
        elif parameter.default is parameter.empty:
            inputs = ", ".join(context.inputs) or "none"
            raise UsageError(
                f"{label} has a parameter {name!r}, but {context.run.work.job} has no such input: its inputs are "
                f"{inputs}. Rename the parameter, name the input with 'as: {name}', or use "
                f"{', '.join(OTHER_PARAMETERS)}"
            )
    return positional, keyword


def _frames(context: Context, returned: Any, label: str) -> Frames:
    outputs = {each.details.index: each for each in context.run.outputs}
    frames = {index: _frame(each, index, label) for index, each in _by_output(returned, label).items()}
    # A function that takes the run may have written or skipped an output itself.
    own = {
        index for index, each in outputs.items() if each.skipped or each.body(context.run.work).files
    } - frames.keys()
    if frames.keys() | own != outputs.keys():
        expected = len(outputs) - len(own)
        returns = f"{len(frames)} frames" if len(frames) != 1 else "one frame"
        if frames and frames.keys() - outputs.keys() and len(frames) == len(outputs):
            returns = f"frames for the outputs {', '.join(map(str, sorted(frames)))}"
        returns = returns if returned is not None else "nothing"
        outputs_text = "one output" if len(outputs) == 1 else f"{len(outputs)} outputs"
        raise UsageError(
            f"{label} returned {returns}, but {context.run.work.job} has {outputs_text}: {_advice(expected)}"
        )
    return frames


def _advice(expected: int) -> str:
    if expected == 0:
        return "return None"
    if expected == 1:
        return "return a DataFrame"
    return f"return a tuple of {expected} DataFrames, or a dict of them by output, counted from 0"


def _by_output(returned: Any, label: str) -> dict[int, Any]:
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
        raise UsageError(f"{label} returned a dict with the keys {keys}: outputs go by number, from 0") from None


def _frame(value: Any, index: int, label: str) -> DataFrame:
    if not isinstance(value, DataFrame):
        kind = cast("type[object]", type(value))
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        what = "None" if value is None else f"a {name}"
        raise UsageError(f"{label} returned {what} for output {index}: return a Spark DataFrame")
    return value
