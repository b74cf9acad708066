"""Read the tasks to submit, from the command line or from a JSON Lines file.

Both use the same names: ``--retries 5`` and ``{"retries": 5}`` mean the same.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from qo.cli.durations import parse_duration_s, parse_instant
from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.core import wire
from qo.core.task import PRIORITY_MAX, RetryPolicy
from qo.errors import UsageError
from qo.queue.options import NewTask, Options, check_text
from qo.queue.payload import INPUT_BYTES_MAX

Check = Callable[[Any, str], Any]


def _duration(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{name} must be a duration such as 90 or 1h30m, not {value!r}")
    return parse_duration_s(value if isinstance(value, str) else f"{value:f}", name)


def _instant(value: Any, name: str) -> datetime:
    return parse_instant(_text(value, name), name)


def _check_kind(kind: Kind) -> Check:
    def check(value: Any, name: str) -> Any:
        try:
            return kind.accept(value)
        except InvalidValue:
            raise UsageError(f"{name} must be {kind.description}, not {value!r}") from None

    return check


def _text(value: Any, name: str) -> str:
    text = _check_kind(kinds.TEXT)(value, name)
    check_text(name, text)
    return text


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
}
RETRY_FIELDS = {
    "retry_initial_ms": Field(_count, "initial_interval_ms"),
    "retry_max_ms": Field(_count, "max_interval_ms"),
    "retry_multiplier": Field(_number, "multiplier"),
    "retry_jitter": Field(_number, "jitter_percent"),
}
_EXCLUSIVE = (("at", "delay"), ("expires_at", "expires_in"))


def options(values: Mapping[str, Any], where: str = "") -> Options:
    """Validate the values and return them as Options; None means not given.

    ``where`` names the line of the file, or is empty for the command line. Error messages begin with it.
    """

    def spelling(name: str) -> str:
        return name if where else "--" + name.replace("_", "-")

    present = {name: value for name, value in values.items() if value is not None}
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

    return Options(**check_fields(FIELDS), retry_policy=RetryPolicy(**check_fields(RETRY_FIELDS)))


def read_input(text: str | None, option: str = "--input") -> Any:
    """Decode the value of --input or a similar option: JSON itself, @FILE, or - for standard input."""
    if text is None:
        return None
    if text == "-":
        return wire.decode_json(_read_bounded(sys.stdin.buffer, "standard input"), "standard input")
    if text.startswith("@"):
        with _open(text[1:]) as file:
            return wire.decode_json(_read_bounded(file, text[1:]), text[1:])
    return wire.decode_json(text, option)


def read_tasks(source: str, task_type: str | None, defaults: Mapping[str, Any]) -> list[NewTask]:
    """Read one task per line of a JSON Lines file or standard input; ``defaults`` apply where a line has no value."""
    if source == "-":
        return list(_read_lines(sys.stdin.buffer, "standard input", task_type, defaults))
    with _open(source) as file:
        return list(_read_lines(file, source, task_type, defaults))


def _read_lines(
    file: BinaryIO, source: str, task_type: str | None, defaults: Mapping[str, Any]
) -> Iterator[NewTask]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield _read_line(line, f"{source}, line {number}", task_type, defaults)


def _read_line(line: bytes, where: str, task_type: str | None, defaults: Mapping[str, Any]) -> NewTask:
    value = wire.decode_json(line, where)
    if not isinstance(value, dict):
        raise UsageError(f'{where}: expected an object such as {{"type": "send_email", "input": {{}}}}')
    fields = cast("dict[str, Any]", value)
    names = {"type", "input", *FIELDS, *RETRY_FIELDS}
    for name in fields:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"{where}: unknown name {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    own_type = fields.get("type", task_type)
    if own_type is None:
        raise UsageError(f'{where}: has no "type", and --type was not given')
    return NewTask(
        _text(own_type, f"{where}: type"), fields.get("input"), options({**defaults, **fields}, f"{where}: ")
    )


def _open(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _read_bounded(file: BinaryIO, what: str) -> bytes:
    """Read the whole content. Raises UsageError if it is larger than a task may hold, without reading all of it."""
    body = file.read(INPUT_BYTES_MAX + 1)
    if len(body) > INPUT_BYTES_MAX:
        raise UsageError(
            f"{what} is larger than {INPUT_BYTES_MAX:,} bytes, the most a task may hold. "
            "Put the data in the bucket yourself and pass its key."
        )
    return body
