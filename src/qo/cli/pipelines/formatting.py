"""Moments and amounts in answers of a dispatcher, as people read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.cli.durations import format_instant


def shown_instant(text: str | None) -> str:
    return "" if text is None else format_instant(datetime.fromisoformat(text))


def shown_bytes(count: int | None) -> str:
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def shown_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def shown_extent(each: Any) -> str:
    """What a task or event is about: a partition with its range, or a cursor."""
    if each.get("partition_key") is not None:
        ranged = f" [{each['start']}, {each['end']})" if each.get("start") is not None else ""
        return f"{each['partition_key']}{ranged}"
    return "" if each.get("cursor") is None else f"cursor {each['cursor']}"
