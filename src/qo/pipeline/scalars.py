"""Unquoted scalars of YAML: the value of ``5``, ``true`` or ``2026-01-01``.

YAML 1.1 and 1.2 disagree about some of them, and programs about more. Those that all read alike are accepted; the
others are refused, because a pipeline must mean the same wherever its file is read.
"""

from __future__ import annotations

import re

INT_MIN, INT_MAX = -(2**63), 2**63 - 1  # The limits of 64-bit columns.

NOTATION_CHARS_MAX = 64  # No number or date is longer; on longer texts the patterns are slow.

_CONSTANTS: dict[str, bool | None] = {"": None, "~": None, "null": None, "true": True, "false": False}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_WORDS = {
    **dict.fromkeys(("yes", "no", "on", "off", "true", "false"), "true or false"),
    **dict.fromkeys((".nan", ".inf", "+.inf", "-.inf"), "a finite number"),
    "null": "null",
    "=": "the value itself",
    "<<": "the fields themselves",
}
_NUMERIC = frozenset("0123456789+-.")  # First characters of dates and numbers, in every notation.
_AMBIGUOUS = (
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?\Z"), "the date as text"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z"), "a plain number"),
    (re.compile(r"[-+]?0(?:[0-9_]+|[xX][0-9a-fA-F_]+|[oO][0-7_]+|[bB][01_]+)\Z"), "a decimal number"),
    (re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?\Z"), "a plain decimal number"),
)


class Ambiguous(Exception):
    """A word that different readers of YAML read differently; ``args`` are a message and a hint."""


def scalar(word: str) -> str | int | float | bool | None:
    """Return the value of an unquoted word. Raises Ambiguous."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if len(word) <= 5 and word.lower() in _WORDS:
        raise _ambiguous(word, _WORDS[word.lower()])
    if word[0] not in _NUMERIC:
        return word
    if _INT.match(word) and len(word) <= 20:
        return _whole(int(word))
    if _FLOAT.match(word):
        return _number(word)
    for pattern, instead in _AMBIGUOUS if len(word) <= NOTATION_CHARS_MAX else ():
        if pattern.match(word):
            raise _ambiguous(word, instead)
    return word


def _ambiguous(word: str, instead: str) -> Ambiguous:
    message = f"{word[:40]!r} without quotes is read differently by different programs"
    return Ambiguous(message, f"write {instead}, or put it in quotes if text is meant")


def is_text(word: str) -> bool:
    """Return whether a word, written without quotes, is read as the same text."""
    try:
        return scalar(word) == word
    except Ambiguous:
        return False


def _whole(number: int) -> int:
    if not INT_MIN <= number <= INT_MAX:
        raise Ambiguous(f"{number} is too large for a number", "put it in quotes, or write one of 64 bits")
    return number


def _number(word: str) -> float:
    if not any(mark in word for mark in ".eE"):
        raise Ambiguous(f"{word[:40]}... is too large for a number", "put it in quotes, or write one of 64 bits")
    value = float(word)
    if value in (float("inf"), float("-inf")):
        raise Ambiguous(f"{word[:40]!r} is too large for a number", "put it in quotes, or write a smaller one")
    return value
