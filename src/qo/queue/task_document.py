"""A task to submit as a document: the names that the command line, JSON Lines files and the HTTP API share.

``--retries 5`` and ``{"retries": 5}`` mean the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, cast

from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.core.durations import parse_duration_s, parse_instant
from qo.core.shard import validate_task_id
from qo.core.task import PRIORITY_MAX, RetryPolicy
from qo.core.uniqueness import Unique
from qo.core.words import quote
from qo.errors import UsageError
from qo.queue.options import NewTask, Options, check_text

Check = Callable[[Any, str], Any]

NAME_CHARS_MAX = 40  # Of an unknown name, these are compared with the known ones.


def _duration(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{name} must be a duration such as 90 or 1h30m, not {quote(value)}")
    if isinstance(value, str):
        return parse_duration_s(value, name)
    try:
        return kinds.number(0).accept(value)
    except InvalidValue:
        raise UsageError(f"{name} must be a duration of at least 0 seconds, not {quote(value)}") from None


def _instant(value: Any, name: str) -> datetime:
    return parse_instant(_text(value, name), name)


def _check_kind(kind: Kind) -> Check:
    def check(value: Any, name: str) -> Any:
        try:
            return kind.accept(value)
        except InvalidValue:
            raise UsageError(f"{name} must be {kind.description}, not {quote(value)}") from None

    return check


def _text(value: Any, name: str) -> str:
    text = _check_kind(kinds.TEXT)(value, name)
    check_text(name, text)
    return text


def _task_ids(value: Any, name: str) -> tuple[str, ...]:
    ids = cast("list[Any]", value) if isinstance(value, list) else [value]
    return tuple(validate_task_id(_text(each, name)) for each in ids)


_count = _check_kind(kinds.whole(0))
_number = _check_kind(kinds.number(0))


class Field(NamedTuple):
    check: Check
    option: str  # Its name in Options, or in RetryPolicy.


FIELDS = {
    "at": Field(_instant, "at"),
    "delay": Field(_duration, "delay_s"),
    "expires_at": Field(_instant, "expires_at"),
    "expires_in": Field(_duration, "expires_in_s"),
    "key": Field(_text, "key"),
    "key_scope": Field(_text, "key_scope"),
    "timeout": Field(_duration, "timeout_s"),
    "retries": Field(_count, "max_retries"),
    "max_reschedules": Field(_count, "max_reschedules"),
    "on_failure": Field(_text, "on_failure"),
    "max_deliveries": Field(_check_kind(kinds.whole(1)), "max_deliveries"),
    "priority": Field(_check_kind(kinds.whole(0, PRIORITY_MAX)), "priority"),
    "depends_on": Field(_task_ids, "depends_on"),
    "on_dependency_failure": Field(_text, "on_dependency_failure"),
    "group": Field(_text, "group"),
}
RETRY_FIELDS = {
    "retry_initial_ms": Field(_count, "initial_interval_ms"),
    "retry_max_ms": Field(_count, "max_interval_ms"),
    "retry_multiplier": Field(_number, "multiplier"),
    "retry_jitter": Field(_number, "jitter_percent"),
}
UNIQUE_FIELDS = {"unique": Field(_text, "key"), "unique_for": Field(_duration, "for_s")}
OPTION_NAMES = (*FIELDS, *UNIQUE_FIELDS, *RETRY_FIELDS)
NAMES = frozenset({"type", "input", *OPTION_NAMES})
_EXCLUSIVE = (("at", "delay"), ("expires_at", "expires_in"))


def options(values: Mapping[str, Any], where: str = "") -> Options:
    """Validate the values and return them as Options; None means not given.

    ``where`` names the document, or is empty for the command line. Error messages begin with it.
    """

    def spelling(name: str) -> str:
        return name if where else "--" + name.replace("_", "-")

    present = {name: value for name, value in values.items() if value is not None and value != []}
    for one, other in _EXCLUSIVE:
        if one in present and other in present:
            raise UsageError(f"{where}give {spelling(one)} or {spelling(other)}, not both")
    if "key_scope" in present and "key" not in present:
        raise UsageError(
            f"{where}{spelling('key_scope')} needs {spelling('key')}: it says where the key is unique"
        )

    def check_fields(fields: Mapping[str, Field]) -> dict[str, Any]:
        present_fields = [(name, field) for name, field in fields.items() if name in present]
        return {field.option: field.check(present[name], where + spelling(name)) for name, field in present_fields}

    if "unique_for" in present and "unique" not in present:
        raise UsageError(f"{where}{spelling('unique_for')} needs {spelling('unique')}: the key that is unique")
    unique = Unique(**check_fields(UNIQUE_FIELDS)) if "unique" in present else None
    return Options(**check_fields(FIELDS), unique=unique, retry_policy=RetryPolicy(**check_fields(RETRY_FIELDS)))


def write_document(new: NewTask) -> dict[str, Any]:
    """Return the document that ``read_document`` reads as this task; the trace is not part of it."""
    document: dict[str, Any] = {"type": new.task_type, "input": new.input}
    unique = new.options.unique
    if unique is not None and (unique.key is None or unique != Unique(key=unique.key, for_s=unique.for_s)):
        raise UsageError(
            "a document names what is unique by a key, as Unique(key=..., for_s=...): put members of the input into "
            "the key, and leave out by and while_in"
        )
    for names, values, defaults in (
        (UNIQUE_FIELDS, unique or Unique(), Unique()),
        (FIELDS, new.options, Options()),
        (RETRY_FIELDS, new.options.retry_policy, RetryPolicy()),
    ):
        for name, field in names.items():
            value = getattr(values, field.option)
            if value != getattr(defaults, field.option):
                document[name] = _plain(value)
    return document


def read_document(
    value: Any, where: str, *, task_type: str | None = None, defaults: Mapping[str, Any] | None = None
) -> NewTask:
    """Return the task that the document describes; ``defaults`` apply where it has no value.

    Raises UsageError, which begins with ``where``.
    """
    if not isinstance(value, dict):
        raise UsageError(f'{where}: expected an object such as {{"type": "send_email", "input": {{}}}}')
    fields = cast("dict[str, Any]", value)
    for name in fields:
        if name not in NAMES:
            near = difflib.get_close_matches(name[:NAME_CHARS_MAX], NAMES, n=1)
            raise UsageError(
                f"{where}: unknown name {quote(name)}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
    own_type = fields.get("type", task_type)
    if own_type is None:
        raise UsageError(f'{where}: has no "type": name the handler that runs it')
    return NewTask(
        _text(own_type, f"{where}: type"),
        fields.get("input"),
        options({**(defaults or {}), **fields}, f"{where}: "),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value
