"""Patterns of the names of files that a sink writes for others.

    prices/{partition}.csv              one file for each partition, replaced in place
    prices.parquet                      one file with everything, replaced in place
    prices/{partition}/{number}.csv     a name for each change, which is never used again

The ending says the format: ``.parquet``, ``.csv``, ``.jsonl`` or ``.json`` (an object on each line), the texts also
with ``.gz``. Changes of a sink are counted; ``{number}`` is that of the change that wrote the file.
"""

from __future__ import annotations

import re

FORMATS = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".json", ".json.gz")
PARTITION, NUMBER = "{partition}", "{number}"
RESERVED = "_qo"  # The directory of the sink's own records.
_NUMBER_DIGITS = 10  # Names sort by their numbers.
_PART = re.compile(r"(?:[A-Za-z0-9_=+-]|\{partition\}|\{number\})(?:[A-Za-z0-9_.=+-]|\{partition\}|\{number\})*\Z")
_PLACEHOLDER = re.compile(r"\{[^{}/]*\}?")


def is_numbered(pattern: str) -> bool:
    """Whether no name is used twice."""
    return NUMBER in pattern


def is_partitioned(pattern: str) -> bool:
    return PARTITION in pattern


def file_format(pattern: str) -> str:
    """Return the ending that says the format."""
    return max((each for each in FORMATS if pattern.endswith(each)), key=len)


def file_name(pattern: str, partition: str | None, number: int) -> str:
    """Return the name of a file. ``partition``: whose rows it has; None where it has those of all."""
    return pattern.replace(PARTITION, partition or "").replace(NUMBER, f"{number:0{_NUMBER_DIGITS}}")


def pattern_problem(pattern: str) -> tuple[str, str] | None:
    """Return what is wrong with a pattern, and what to write; None if it can be used."""
    for placeholder in _PLACEHOLDER.findall(pattern):
        if placeholder not in (PARTITION, NUMBER):
            return f"{placeholder!r} stands for nothing in the name of a file", "write {partition} or {number}"
    if not pattern.endswith(FORMATS):
        return f"the ending of {pattern!r} names no format", f"end it with one of {', '.join(FORMATS)}"
    parts = pattern.split("/")
    if parts[0] == RESERVED:
        return f"{RESERVED!r} is for the sink's own records", "write another directory"
    for part in parts:
        if not _PART.match(part):
            return (
                f"{part!r} is no part of a file's name",
                "write a path below the directory, of letters, digits and . _ = + -, such as prices/{partition}.csv",
            )
    return None
