"""Runs a comparison of rows, and prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.cli.invocation import Session
from qo.cli.pipelines.dispatcher_client import ask, require_extra
from qo.core.words import plural
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.cli.pipelines.diff.compared_versions import ComparedVersions, Side
    from qo.cli.pipelines.diff.row_changes import RowChanges
    from qo.cli.pipelines.diff.row_engine import OpenEngine
    from qo.config.settings import Settings

DIFFERENT = 1  # The exit code of --exit-code, as that of diff and git.


@dataclass(frozen=True, slots=True)
class RowDiffOptions:
    """What the command line says; None: not given."""

    from_: str | None
    to: str | None
    keys: str | None
    partition: str | None
    samples: int
    spark: bool

    def key_columns(self) -> list[str] | None:
        """Return the columns of the key; empty: rows are compared as a whole."""
        if self.keys is None:
            return None
        columns = [each.strip() for each in self.keys.split(",")] if self.keys.strip() else []
        if not all(columns) or len({each.lower() for each in columns}) != len(columns):
            raise UsageError(f"--keys {self.keys!r}: write different names of columns, separated by commas")
        return columns


def run(session: Session, name: str, path: str, options: RowDiffOptions) -> bool:
    """Print in which rows two versions differ. Return whether they differ in rows or columns."""
    with require_extra():
        from qo.cli.pipelines.diff.compared_versions import find_versions
        from qo.cli.pipelines.diff.row_changes import column_changes, compare_rows
    keys = options.key_columns()
    versions, default = ask(
        session, lambda client: find_versions(client, path, options.from_, options.to, options.partition)
    )
    open_engine = _engine(session.settings(), spark=options.spark)
    changes = compare_rows(versions, open_engine, keys, default, options.samples)
    columns = column_changes(versions)
    if session.json:
        session.output.document(_document(name, versions, changes, columns, options.partition))
    else:
        _show(session, versions, changes, columns)
    return not changes.is_empty or any(columns.values())


def _engine(settings: Settings, *, spark: bool) -> OpenEngine:
    from functools import partial

    if not spark:
        from qo.cli.pipelines.diff.duckdb_rows import open_duckdb

        return partial(open_duckdb, settings)
    try:
        from qo.cli.pipelines.diff.spark_rows import open_spark
    except ModuleNotFoundError as missing:
        raise UsageError(
            f"--spark needs {missing.name}: install qo with its extra, from a checkout, pip install '.[spark]'"
        ) from None
    return partial(open_spark, settings)


def _document(
    name: str, versions: ComparedVersions, changes: RowChanges, columns: Mapping[str, Any], partition: str | None
) -> dict[str, Any]:
    return {
        "dataset": name,
        "from": versions.before.document(),
        "to": versions.after.document(),
        "partition": partition,
        "keys": changes.keys,
        "note": changes.note,
        "files": {"shared": versions.shared, "added": len(versions.added), "removed": len(versions.removed)},
        "columns": dict(columns),
        "rows": {"added": changes.added, "removed": changes.removed, "changed": changes.changed},
        "changed_columns": changes.columns,
        "samples": {
            "added": changes.added_rows,
            "removed": changes.removed_rows,
            "changed": changes.changed_rows,
        },
    }


def _show(session: Session, versions: ComparedVersions, changes: RowChanges, columns: Mapping[str, Any]) -> None:
    by_column = ", ".join(f"{name} {count:,}" for name, count in _largest_first(changes.columns))
    changed = plural(changes.changed, "row") + (f" ({by_column})" if by_column else "")
    session.output.record(
        {
            "from": _describe(versions.before),
            "to": _describe(versions.after),
            "files": f"{versions.shared:,} shared, {len(versions.added):,} added, {len(versions.removed):,} removed",
            "key": ", ".join(changes.keys) or "none: rows are compared as a whole",
            **{f"columns {kind}": ", ".join(names) for kind, names in columns.items() if names},
            "added": plural(changes.added, "row"),
            "removed": plural(changes.removed, "row"),
            **({"changed": changed} if changes.keys else {}),
        }
    )
    for kind, rows in (("+", changes.added_rows), ("-", changes.removed_rows)):
        if rows:
            session.output.line("")
            session.output.table(("", *rows[0]), [(kind, *map(_cell, row.values())) for row in rows])
    if changes.changed_rows:
        session.output.line("")
        session.output.table((*changes.keys, "column", "before", "after"), _changed_lines(changes.changed_rows))
    if changes.note is not None:
        session.output.note(changes.note)


def _describe(side: Side) -> str:
    if side.revision == 0:
        return "nothing"
    return f"revision {side.revision} of generation {side.generation_id}"


def _largest_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: -each[1])


def _changed_lines(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each value that changed; the key stands on the first of its row."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        key = tuple(map(_cell, row["key"].values()))
        for at, column in enumerate(row["after"]):
            cells = key if at == 0 else ("",) * len(key)
            lines.append((*cells, column, _cell(row["before"][column]), _cell(row["after"][column])))
    return lines


def _cell(value: Any) -> str:
    return "" if value is None else str(value)
