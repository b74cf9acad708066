"""Words that messages have in common."""

from __future__ import annotations

from typing import Any

QUOTED_CHARS_MAX = 80


def with_article(noun: str) -> str:
    """ "a job", "an input"."""
    return f"an {noun}" if noun[:1].lower() in set("aeio") or noun.startswith("http") else f"a {noun}"


def plural(n: int, one: str, many: str | None = None) -> str:
    """ "1 file", "2 files", "1,000 files"."""
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def quote(value: Any) -> str:
    """Return a wrong value for an error message: whoever sent it may have sent megabytes."""
    text = repr(value)
    return text if len(text) <= QUOTED_CHARS_MAX else f"{text[:QUOTED_CHARS_MAX]}..."
