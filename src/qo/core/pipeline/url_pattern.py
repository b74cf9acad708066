"""URLs with one file for each partition of time.

https://example.com/{partition}.json              https://example.com/2026-03-29.json
https://example.com/{year}/{month}/{day}.csv      https://example.com/2026/03/29.csv
"""

from __future__ import annotations

import re

from qo.core.pipeline.partitions import PartitionKind, Partitions, find_part, is_expected, part_at, preceding

PARTITION = "partition"
_PLACES = {
    "year": slice(0, 4),
    "month": slice(5, 7),
    "day": slice(8, 10),
    "hour": slice(11, 13),
    "minute": slice(14, 16),
}
_WORDS = {
    PartitionKind.MINUTE: ("year", "month", "day", "hour", "minute"),
    PartitionKind.HOUR: ("year", "month", "day", "hour"),
    PartitionKind.DAY: ("year", "month", "day"),
    PartitionKind.WEEK: ("year", "week"),
    PartitionKind.MONTH: ("year", "month"),
}
_WORD = re.compile(r"\{([^{}]*)\}")


def words_of(kind: PartitionKind) -> tuple[str, ...]:
    """Return the words that may stand in braces in the URLs of partitions of a kind."""
    return (PARTITION, *_WORDS.get(kind, ()))


def url_problem(pattern: str, kind: PartitionKind) -> tuple[str, str] | None:
    """Return what is wrong with a URL of partitions, and what to write; None if it can be used."""
    words, allowed = _WORD.findall(pattern), words_of(kind)
    for word in words:
        if word not in allowed:
            return f"{{{word}}} is no part of a {kind}", f"write {', '.join(f'{{{each}}}' for each in allowed)}"
    if not (PARTITION in words or set(allowed[1:]) <= set(words)) or "{" in pattern.split("/")[2]:
        return f"{pattern!r} is the same for several partitions", f"write {{{PARTITION}}} into its path"
    return None


def fill_url(pattern: str, key: str) -> str:
    """Return the URL of a partition."""

    def value(match: re.Match[str]) -> str:
        word = match[1]
        if word == PARTITION:
            return key
        return key[6:8] if word == "week" else key[_PLACES[word]]

    return _WORD.sub(value, pattern)


def list_keys(partitions: Partitions, at: int, limit: int) -> list[str]:
    """Return the newest partitions that there should be by now, at most so many, the newest first."""
    keys: list[str] = []
    part = part_at(partitions, at)
    first = None if partitions.start is None else find_part(partitions, partitions.start).start
    while len(keys) < limit and (first is None or part.start >= first):
        if is_expected(partitions, part):
            keys.append(part.key)
        before = preceding(partitions, part)
        if before is None:
            break
        part = before
    return keys
