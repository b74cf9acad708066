"""Typed inputs and outputs: from JSON to what a handler declares, and back.

A handler may declare a pydantic model, a msgspec Struct or a dataclass. pydantic models are recognised by their
methods: pydantic is never imported here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import msgspec

from qo.worker.api.handler import Handler
from qo.worker.api.signals import Reject

_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def convert(handler: Handler, value: Any) -> Any:
    """Convert an input to the type that the handler declares, if it declares one.

    Raises Reject if it does not fit: it would not fit next time either.
    """
    declared = handler.input_type
    if declared is None:
        return value
    if hasattr(declared, "model_validate"):
        return _validate(declared, value)
    if _is_record(declared):
        try:
            return msgspec.convert(value, declared)
        except msgspec.ValidationError as error:
            raise Reject(f"the input does not fit {declared.__name__}: {error}") from None
    return value


def dump(value: Any) -> Any:
    """Convert an output to JSON types. Only a model, a Struct or a dataclass is changed."""
    kind = cast("type[Any]", type(value))
    if kind in _PLAIN:
        return value
    if hasattr(kind, "model_dump"):
        return value.model_dump(mode="json")
    if _is_record(kind):
        return msgspec.to_builtins(value, str_keys=True)
    return value


def _is_record(kind: type[Any]) -> bool:
    return issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)


def _validate(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:  # The base class of pydantic's ValidationError.
        raise Reject(f"the input does not fit {model.__name__}: {_describe(error)}") from None


def _describe(error: ValueError) -> str:
    """Return which fields are wrong, and how; neither their values nor links to the manual."""
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    details: Any = errors()
    return "; ".join(f"{_path(each['loc'])}{each['msg']}" for each in details)


def _path(loc: tuple[str | int, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""
