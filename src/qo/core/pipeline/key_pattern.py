"""Patterns that say which part of a file's path is the key of its partition.

    {day}.csv                            2026-03-29.csv                         2026-03-29
    {year}/{month}/{day}/orders.csv      in/2026/03/29/orders.csv               2026-03-29
    {year}{month}{day}T{hour}*.json      20260329T01-x7.json                    2026-03-29T01
    {region}/{customer}.parquet          eu/4711.parquet                        eu-4711

A pattern is about as many parts of the path as it has itself, counted from the end. ``{word}`` stands for one or more
characters, ``*`` for any number, neither for a slash. The words of times have as many digits as keys of partitions have
of them. What the words stand for is joined in their order, as keys of partitions are written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from qo.core.pipeline.naming import partition_key

_DIGITS = {"year": 4, "month": 2, "week": 2, "hour": 2, "minute": 2}
_BEFORE = {"hour": "T", "minute": ":", "week": "-W"}
_TOKEN = re.compile(r"\{([^{}]*)\}|\*|[^{}*]+|[{}]")
OPEN_MAX = 3  # Of parts of any length between two slashes: each more multiplies the ways to try.
_OPEN = re.compile(r"\*|\{(?!(?:year|month|week|hour|minute)\})")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


def pattern_problem(pattern: str) -> tuple[str, str] | None:
    """Return what is wrong with a pattern, and what to write; None if it can be used."""
    words: list[str] = []
    for token in _TOKEN.finditer(pattern):
        if token[0] in ("{", "}"):
            return f"{pattern!r} has a single {token[0]}", "write the part that is the key in braces: {day}.csv"
        if token[1] is not None:
            if not _WORD.match(token[1]):
                return (
                    f"{token[0]!r} names no part of a path",
                    "write a word of lower-case letters in braces: {day}",
                )
            words.append(token[1])
    if not words:
        return f"{pattern!r} says nothing about the key", "write the part that is the key in braces: {day}.csv"
    if len(set(words)) < len(words):
        return f"{pattern!r} has a word twice", "write another word: the key has both"
    if any(len(_OPEN.findall(part)) > OPEN_MAX for part in pattern.split("/")):
        return (
            f"{pattern!r} could be read in too many ways",
            f"write at most {OPEN_MAX} words and * between slashes",
        )
    if pattern.startswith("/") or pattern.endswith("/"):
        return f"{pattern!r} names no file", "write the end of its path: {year}/{month}.csv"
    return None


def find_key(pattern: str, path: str) -> str | None:
    """Return the key of the partition that a file belongs to; None if its path does not fit."""
    match = _matcher(pattern).fullmatch("/".join(path.split("/")[-(pattern.count("/") + 1) :]))
    if match is None:
        return None
    key = ""
    for word, text in match.groupdict().items():
        key += f"{_BEFORE.get(word, '-') if key else ''}{text}"
    return partition_key(key)


def find_keys(pattern: str | None, paths: Iterable[str]) -> dict[str, str]:
    """Return the key of each path that has one of its own. Without a pattern, each has."""
    if pattern is None:
        return {path: partition_key(path) for path in paths}
    keys = {path: key for path in paths if (key := find_key(pattern, path)) is not None}
    counts = Counter(keys.values())
    return {path: key for path, key in keys.items() if counts[key] == 1}


@lru_cache(maxsize=256)
def _matcher(pattern: str) -> re.Pattern[str]:
    words = {token[1] for token in _TOKEN.finditer(pattern)}
    parts: list[str] = []
    for token in _TOKEN.finditer(pattern):
        word = token[1]
        if token[0] == "*":
            parts.append(r"[^/]*")
        elif word is None:
            parts.append(re.escape(token[0]))
        elif word in _DIGITS:
            parts.append(rf"(?P<{word}>[0-9]{{{_DIGITS[word]}}})")
        elif word == "day" and words & {"month"}:
            parts.append(r"(?P<day>[0-9]{2})")  # Beside a month, a day is two digits; alone, it is all of a key.
        else:
            parts.append(rf"(?P<{word}>[^/]+?)")
    return re.compile("".join(parts))
