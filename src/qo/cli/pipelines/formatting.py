"""Format the instants and amounts of a dispatcher's answers for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.core.durations import format_instant


def format_timestamp(text: str | None) -> str:
    return "" if text is None else format_instant(datetime.fromisoformat(text))


def format_bytes(count: int | None) -> str:
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"


def format_extent(each: Any) -> str:
    """Return what a task or event is about: a partition with its range, or a cursor."""
    if each.get("partition_key") is not None:
        suffix = f" [{each['start']}, {each['end']})" if each.get("start") is not None else ""
        return f"{each['partition_key']}{suffix}"
    return "" if each.get("cursor") is None else f"cursor {each['cursor']}"


_DATA_ACCESS = {
    "attempt": "with credentials of its own, for its prefixes alone",
    "not_minted": "with the worker's credentials: the dispatcher mints none",
    "off": "with the worker's credentials: QO_CREDENTIALS=off",
    "s3a": "with the worker's credentials: Spark's s3a has one set of them for all attempts",
}


def format_data_access(access: str | None) -> str | None:
    """Return with whose rights an attempt read and wrote a bucket; None if it had to do with none."""
    return None if access is None else _DATA_ACCESS.get(access)
