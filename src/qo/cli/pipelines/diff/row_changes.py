"""Compares the rows of two versions, and describes in what they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qo.cli.pipelines.diff.compared_versions import ComparedVersions
from qo.cli.pipelines.diff.row_engine import OpenEngine, RowEngine
from qo.core.pipeline.row_diff import AFTER, BEFORE, Comparison, compare
from qo.errors import UsageError

Row = dict[str, Any]


@dataclass(slots=True)
class RowChanges:
    """How many rows differ, and some of them."""

    keys: list[str] = field(default_factory=list[str])  # Empty: rows were compared as a whole.
    added: int = 0
    removed: int = 0
    changed: int = 0
    columns: dict[str, int] = field(default_factory=dict[str, int])  # Changed rows by column.
    added_rows: list[Row] = field(default_factory=list[Row])
    removed_rows: list[Row] = field(default_factory=list[Row])
    changed_rows: list[Row] = field(default_factory=list[Row])  # Each with ``key``, ``before`` and ``after``.
    note: str | None = None  # Why rows are compared as a whole, although there is a key.

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def compare_rows(
    versions: ComparedVersions,
    open_engine: OpenEngine,
    keys: Sequence[str] | None,
    default: Sequence[str],
    limit: int,
) -> RowChanges:
    """Compare the files that only one version has.

    ``keys``: as the command has them, empty to compare rows as a whole; None: those of the dataset, ``default``, if
    they are a key of both versions. Raises UsageError for keys of the command that are none.
    """
    if not versions.removed and not versions.added:
        return RowChanges(list(default if keys is None else keys))
    with open_engine(versions.removed, versions.added) as engine:
        before, after = engine.types(BEFORE), engine.types(AFTER)
        columns: list[str] = list(default if keys is None else keys)
        note = None
        if keys is None and not _has_columns(columns, before, after):
            note = f"rows are compared as a whole: not both versions have the key {', '.join(columns)}"
            columns = []
        comparison = compare(engine.dialect, before, after, columns)
        if columns and (problem := _find_repeated_key(engine, comparison)) is not None:
            if keys is not None:
                raise UsageError(f"{problem}: give other --keys, or --keys '' to compare rows as a whole")
            note = f"rows are compared as a whole: {problem}"
            comparison = compare(engine.dialect, before, after, columns := [])
        changes = _by_key(engine, comparison, limit) if columns else _as_multisets(engine, comparison, limit)
        changes.note = note
        return changes


def column_changes(versions: ComparedVersions) -> dict[str, Any]:
    """Return which columns were added, removed, or have another type, as far as commits say what they have."""
    before, after = versions.before.columns, versions.after.columns
    if before is None or after is None:
        return {"added": [], "removed": [], "retyped": []}
    retyped = [name for name in after if name in before and before[name] != after[name]]
    return {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "retyped": retyped,
    }


def _has_columns(keys: Sequence[str], *sides: Mapping[str, str]) -> bool:
    return all({key.lower() for key in keys} <= {name.lower() for name in side} for side in sides)


def _find_repeated_key(engine: RowEngine, comparison: Comparison) -> str | None:
    """Return the problem of a key that several rows of one version share."""
    names = ", ".join(each.name for each in comparison.keys)
    for relation, word in ((BEFORE, "earlier"), (AFTER, "later")):
        for count, *example in engine.rows(comparison.repeated_keys(relation)):
            values = ", ".join(str(_json_value(each)) for each in example)
            return f"{names} is no key of the {word} version: {count:,} occur more than once, such as {values}"
    return None


def _by_key(engine: RowEngine, comparison: Comparison, limit: int) -> RowChanges:
    names = [each.name for each in comparison.columns]
    keys, values = [each.name for each in comparison.keys], [each.name for each in comparison.values]
    ((added, removed, changed, *by_column),) = engine.rows(comparison.counts())
    changes = RowChanges(keys, added, removed, changed)
    changes.columns = {name: count for name, count in zip(values, by_column, strict=True) if count}
    if added and limit:
        changes.added_rows = [_row(names, row) for row in engine.rows(comparison.added(limit))]
    if removed and limit:
        changes.removed_rows = [_row(names, row) for row in engine.rows(comparison.removed(limit))]
    if changed and limit:
        for row in engine.rows(comparison.changed(limit)):
            before, after = _row(values, row[len(keys) : len(names)]), _row(values, row[len(names) :])
            differing = [name for name in values if before[name] != after[name]]
            changes.changed_rows.append(
                {
                    "key": _row(keys, row[: len(keys)]),
                    "before": {name: before[name] for name in differing},
                    "after": {name: after[name] for name in differing},
                }
            )
    return changes


def _as_multisets(engine: RowEngine, comparison: Comparison, limit: int) -> RowChanges:
    names = [each.name for each in comparison.columns]
    ((added, removed),) = engine.rows(comparison.surplus_counts())
    changes = RowChanges([], int(added), int(removed))
    for relation, rows in ((AFTER, changes.added_rows), (BEFORE, changes.removed_rows)):
        for *row, times in engine.rows(comparison.surplus(relation, limit)) if limit else ():
            rows.extend([_row(names, row)] * min(int(times), limit - len(rows)))
    return changes


def _row(names: Sequence[str], values: Sequence[Any]) -> Row:
    return {name: _json_value(value) for name, value in zip(names, values, strict=True)}


def _json_value(value: Any) -> Any:
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain or (isinstance(value, float) and math.isfinite(value)) else str(value)
