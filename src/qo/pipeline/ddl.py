"""Columns as one text, in the manner of Spark's DDL: ``day date, delay int, places array<string>``."""

from __future__ import annotations

import re

_COLUMN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s:,`]+))\s*:?\s*(.*?)\s*\Z", re.DOTALL)
_OPENING, _CLOSING = "<(", ">)"


def parse_columns(text: str) -> list[dict[str, str]]:
    """Return the columns of a text as a file lists them. A column without a type has none, for validation to report."""
    return [_column(part) for part in _split(text)]


def _split(text: str) -> list[str]:
    """Split at the commas between columns; those of ``decimal(10,2)`` or ``map<string,int>`` are inside of a type."""
    parts, depth, quoted = [""], 0, False
    for letter in text.rstrip().removesuffix(","):
        quoted ^= letter == "`"
        depth += 0 if quoted else (letter in _OPENING) - (letter in _CLOSING)
        if letter == "," and depth <= 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _column(part: str) -> dict[str, str]:
    match = _COLUMN.match(part)
    if match is None:
        return {"name": part.strip()}
    name = match[1].replace("``", "`") if match[1] is not None else match[2]
    return {"name": name, "type": match[3]} if match[3] else {"name": name}
