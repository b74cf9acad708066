"""Spans of time as people write them: 90, 45s, 1h30m, 30d."""

from __future__ import annotations

import re

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", re.ASCII)
SPAN_S_MAX = 100 * 365.25 * 86_400  # A hundred years: further from now, dates have no form.
_CHARS_MAX = 100  # Callers choose the text, and the time to search it grows with the square of its length.
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


def parse_timespan_s(text: str) -> float | None:
    """Return the span in seconds. A number without a unit means seconds; parts with units are added up.

    None: the text is no span of time, or one of more than a hundred years.
    """
    compact = text.strip().replace(" ", "")
    if len(compact) > _CHARS_MAX:
        return None
    if _NUMBER.fullmatch(compact):
        seconds = float(compact)
    else:
        parts = _PART.findall(compact)
        if not parts or "".join(number + unit for number, unit in parts) != compact:
            return None
        seconds = sum(float(number) * UNITS_S[unit] for number, unit in parts)
    return seconds if seconds <= SPAN_S_MAX else None
