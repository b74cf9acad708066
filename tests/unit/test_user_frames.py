"""A traceback that ends in a library begins with the lines of the user's own code."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from qo.worker.loop import outcome
from qo.worker.loop.outcome import traceback_of


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def parse_orders() -> object:
    return json.loads("{broken")  # In the standard library.


def test_the_users_frames_come_first() -> None:
    text = traceback_of(raised_by(parse_orders)) or ""
    first, _, whole = text.partition("\nIn full:\n")
    assert first.startswith("In your code (most recent call last):\n")
    assert "parse_orders" in first
    assert "decoder.py" not in first
    assert whole.startswith("Traceback (most recent call last):\n")
    assert "decoder.py" in whole
    assert text.rstrip().endswith("(char 1)")


def test_the_frames_of_a_cause_count() -> None:
    def wrapped() -> None:
        try:
            parse_orders()
        except ValueError as error:
            raise msgspec.ValidationError("bad orders") from error

    assert "In your code" not in (traceback_of(raised_by(wrapped)) or "")  # It was raised there itself.
    error = msgspec.ValidationError("bad orders")
    error.__cause__ = raised_by(parse_orders)
    assert (traceback_of(error) or "").startswith("In your code")


def test_an_error_of_the_users_own_code_is_shown_as_python_does() -> None:
    assert (traceback_of(raised_by(lambda: 1 // 0)) or "").startswith("Traceback (most recent call last):\n")


def test_a_long_traceback_keeps_the_users_frames_and_its_end() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        json.loads("{" + "x" * 100)

    error = raised_by(lambda: deep(300))
    error.args = ("x" * 40_000 + "the end",)
    text = traceback_of(error) or ""
    assert text.startswith("In your code")
    assert text.rstrip().endswith("the end")
    assert len(text) <= outcome.TRACEBACK_CHARS_MAX
