"""What must come out of a queue task or a partition, worked out without qo."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

KINDS = ("awaited", "threaded", "forked", "failing", "parent")
CHILDREN = 2  # Of each parent.


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def output_of(kind: str, number: str) -> dict[str, Any]:
    return {"number": number, "digest": digest(f"{kind} {number}")}


def child_numbers(number: str) -> list[str]:
    return [f"{number}.{each}" for each in range(CHILDREN)]


def outputs_of(numbers: Iterable[int]) -> dict[tuple[str, str], dict[str, Any]]:
    """By kind and number: of all tasks that were submitted, and of their children."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in numbers:
        kind, number = kind_of(each), str(each)
        found[kind, number] = output_of(kind, number)
        if kind == "parent":
            found.update({("child", child): output_of("child", child) for child in child_numbers(number)})
    return found


def lines_of(job: str, partition: str) -> list[str]:
    """What ``operators.copy`` leaves of a partition: the lines of all before it, and one of its own."""
    before = {"first": [], "second": ["first"], "counted": []}[job]
    dropped = dropped_lines(partition) if job == "counted" else []
    return [*dropped, *(f"{each} {partition}" for each in (*before, job))]


def dropped_lines(partition: str) -> list[str]:
    """The file that a partition of ``counted`` is named after."""
    return [f"{partition} {digest(partition)[: 8 + number]}" for number in range(5)]


def pipeline_rows(partitions: Mapping[str, Iterable[str]]) -> dict[str, list[tuple[str, str]]]:
    """By job, of these partitions: the partition and its line, for every line."""
    return {
        job: sorted((each, line) for each in names for line in lines_of(job, each))
        for job, names in partitions.items()
    }
