"""Typed inputs and outputs: from JSON to what a handler declares, and back.

A handler may declare a pydantic model, a msgspec Struct or a dataclass. pydantic is known by its methods only and is
never imported here.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import msgspec

from qo.worker.api.handler import Handler
from qo.worker.api.signals import Reject

_PLAIN = frozenset({type(None), bool, int, float, str, list, dict})


def convert(handler: Handler, value: Any) -> Any:
    """The input as the handler declares it; as it is if that is nothing to convert to.

    Raises Reject if it does not fit: it would not fit next time either.
    """
    wanted = handler.input_type
    if wanted is None:
        return value
    if hasattr(wanted, "model_validate"):
        return _validated(wanted, value)
    if _is_record(wanted):
        try:
            return msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            raise Reject(f"the input does not fit {wanted.__name__}: {error}") from None
    return value


def dump(value: Any) -> Any:
    """What a handler returned, as JSON knows it. Only a model, a Struct or a dataclass is changed."""
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


def _validated(model: Any, value: Any) -> Any:
    try:
        return model.model_validate(value)
    except ValueError as error:  # As pydantic's ValidationError is.
        misfits = _misfits(error)
        raise Reject(f"the input does not fit {model.__name__}: {misfits}") from None


def _misfits(error: ValueError) -> str:
    """Which fields, and what is wrong with them; neither what was in them nor where the manual is."""
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    found: Any = errors()
    return "; ".join(f"{_path(each['loc'])}{each['msg']}" for each in found)


def _path(loc: tuple[str | int, ...]) -> str:
    return f"{'.'.join(map(str, loc))}: " if loc else ""
