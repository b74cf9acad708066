"""What the operators for rows by key promise, in a few lines of plain Python: the whole input at once, no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]


def key_of(row: Row, keys: Sequence[str]) -> Key:
    return tuple(row[name] for name in keys)


def _low(value: Any) -> tuple[bool, Any]:
    """Nulls before anything else, as Spark sorts."""
    return (value is not None, value if value is not None else 0)


def _latest_first(
    rows: Iterable[Row], sequence: str, is_delete: Callable[[Row], bool], ignored: set[str]
) -> list[Row]:
    """The latest first. Among equals a deletion, then the smallest of the other columns in the order of their names."""
    by_content = sorted(
        rows, key=lambda row: [_low(row[name]) for name in sorted(row.keys() - {sequence} - ignored)]
    )
    return sorted(by_content, key=lambda row: (_low(row[sequence]), is_delete(row)), reverse=True)


def latest(
    rows: Iterable[Row], keys: Sequence[str], sequence: str, is_delete: Callable[[Row], bool], left_out: set[str]
) -> tuple[dict[Key, Row], dict[Key, Any]]:
    """The row of each key, and the sequence of each deletion."""
    by_key: dict[Key, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key_of(row, keys), []).append(row)
    kept, deleted = dict[Key, Row](), dict[Key, Any]()
    for key, own in by_key.items():
        first = _latest_first(own, sequence, is_delete, {*keys, *left_out})[0]
        if is_delete(first):
            deleted[key] = first[sequence]
        else:
            kept[key] = {name: value for name, value in first.items() if name not in left_out}
    return kept, deleted


def history(
    rows: Iterable[Row],
    keys: Sequence[str],
    sequence: str,
    is_delete: Callable[[Row], bool],
    left_out: set[str],
    tracked: Sequence[str],
) -> dict[Key, list[Row]]:
    """The versions of each key, in order."""
    moments: dict[tuple[Key, Any], list[Row]] = {}
    for row in rows:
        moments.setdefault((key_of(row, keys), row[sequence]), []).append(row)
    versions: dict[Key, list[dict[str, Any]]] = {}
    open_: dict[Key, dict[str, Any] | None] = {}
    for (key, at), same in sorted(moments.items(), key=lambda each: _low(each[0][1])):
        row = _latest_first(same, sequence, is_delete, {*keys, *left_out})[0]
        values = {name: value for name, value in row.items() if name not in left_out}
        current = open_.get(key)
        if current is not None and not is_delete(row) and all(current[name] == row[name] for name in tracked):
            current.update(values)
            continue
        if current is not None:
            current["end_at"] = at
        open_[key] = None if is_delete(row) else {**values, "start_at": at, "end_at": None}
        if (begun := open_[key]) is not None:
            versions.setdefault(key, []).append(begun)
    return {key: list(own) for key, own in versions.items()}
