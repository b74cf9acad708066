"""Read the tasks to submit, from the command line or from a JSON Lines file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from qo.core import wire
from qo.errors import UsageError
from qo.queue.options import NewTask
from qo.queue.payload import INPUT_BYTES_MAX
from qo.queue.task_document import read_document


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
            where = f"{source}, line {number}"
            value = wire.decode_json(line, where)
            yield read_document(value, where, task_type=task_type, defaults=defaults)


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
