"""Parse and format durations and instants: 90, 45s, 1h30m, 2026-03-01T09:00:00+01:00."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from qo.core.timespan import UNITS_S, parse_timespan_s
from qo.core.words import quote
from qo.errors import UsageError

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)?", re.ASCII)


def parse_duration_s(text: str, flag: str) -> float:
    """Return the duration in seconds. A number without a unit means seconds; parts with units are added up.

    Raises UsageError, which names the ``flag``.
    """
    if (seconds := parse_timespan_s(text)) is None:
        raise UsageError(
            f"{flag}: {quote(text)} is not a duration; write for example 45s, 1h30m or 2d (not negative, "
            "and at most 100 years; units: ms s m h d w, seconds without one)"
        )
    return seconds


def parse_instant(text: str, flag: str) -> datetime:
    """Return the instant of an RFC 3339 text with a time zone. Raises UsageError, which names the ``flag``."""
    stripped = text.strip()
    if not (match := _INSTANT.fullmatch(stripped)):
        raise UsageError(f"{flag}: {quote(text)} is not a time; write for example 2026-03-01T09:00:00Z")
    if match[3] is None:
        raise UsageError(f"{flag}: {quote(text)} has no time zone; add Z for UTC, or an offset such as +01:00")
    try:
        return datetime.fromisoformat(stripped.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{flag}: {quote(text)} is not a time: {error}") from None


def format_duration(seconds: float) -> str:
    """Return the duration in its two largest units: 3d 4h, 2m 5s, 0s."""
    rest_s = max(0, round(seconds))
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, rest_s = divmod(rest_s, int(UNITS_S[unit]))
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def format_instant(instant: datetime | None) -> str:
    return "" if instant is None else instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
