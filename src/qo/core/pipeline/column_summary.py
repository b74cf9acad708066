"""What is known of the columns of a dataset, from what workers measured of each of its files. Nothing is read again.

Nulls add up, and the least and the greatest value are those of all files together. What one file does not say is not
known of the dataset: there is no guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from qo.core.iceberg.iceberg_types import FLOATING, decode_bound, is_atomic, is_shortened
from qo.core.pipeline.file_stats import ColumnStats, FileStats


@dataclass(frozen=True, slots=True)
class Bound:
    """The least or the greatest value."""

    value: Any
    shortened: bool = False  # Only the beginning of a longer text is known.

    @property
    def text(self) -> str:
        match self.value:
            case bool():
                return str(self.value).lower()
            case bytes():
                return self.value.hex()
            case date():  # And datetime.
                return self.value.isoformat()
            case _:
                return str(self.value)


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    rows: int  # Of the files that say something about the column.
    nulls: int | None  # None: a file does not say.
    least: Bound | None  # None: a file does not say, or there are only nulls.
    greatest: Bound | None
    bytes: int  # Compressed.

    @property
    def distinct(self) -> int | None:
        """How many values other than null there are, where that follows from the rest; else None."""
        if self.nulls is not None and self.nulls == self.rows:
            return 0
        if self.least is None or self.greatest is None or self.least.shortened or self.greatest.shortened:
            return None
        if isinstance(self.least.value, float):
            return None  # There may be NaN beside it.
        if self.least.value == self.greatest.value:
            return 1
        return 2 if isinstance(self.least.value, bool) else None


@dataclass(frozen=True, slots=True)
class KnownColumn:
    """A column of a dataset, and since which revision it exists."""

    name: str
    type: Any
    since: int


@dataclass(frozen=True, slots=True)
class MeasuredPiece:
    """The files of one commit, as its worker measured them."""

    revision: int
    files: Collection[FileStats]


def summarize(columns: Sequence[KnownColumn], pieces: Iterable[MeasuredPiece]) -> dict[str, ColumnSummary]:
    """Return what is known of each column, by name. Columns with fields within them are left out."""
    files = [(piece.revision, file) for piece in pieces for file in piece.files]
    measured: dict[str, list[ColumnStats]] = {}
    for _, file in files:
        for name, stats in file.columns.items():
            measured.setdefault(name, []).append(stats)
    by_key: dict[str, list[ColumnStats]] = {}
    for name, some in measured.items():
        by_key.setdefault(name.lower(), []).extend(some)
    return {
        each.name: _summarize_column(each, by_key.get(each.name.lower(), []), files)
        for each in columns
        if is_atomic(each.type)
    }


def _summarize_column(
    column: KnownColumn, measured: Sequence[ColumnStats], files: Sequence[tuple[int, FileStats]]
) -> ColumnSummary:
    """Merge what is known of one column. ``files``: all, by revision; some may lack the column."""
    absent, is_known = (0, True) if len(measured) == len(files) else _count_absent(column, files)
    nulls = [each.nulls for each in measured]
    with_values = [each for each in measured if each.nulls is None or each.nulls < each.values]
    has_bounds = is_known and bool(with_values)
    return ColumnSummary(
        rows=sum(each.values for each in measured) + absent,
        nulls=sum(each or 0 for each in nulls) + absent if is_known and None not in nulls else None,
        least=_extreme(column.type, {(each.lower, each.least) for each in with_values}, min)
        if has_bounds
        else None,
        greatest=(
            _extreme(column.type, {(each.upper, each.greatest) for each in with_values}, max)
            if has_bounds
            else None
        ),
        bytes=sum(each.size for each in measured),
    )


def _count_absent(column: KnownColumn, files: Sequence[tuple[int, FileStats]]) -> tuple[int, bool]:
    """Return the rows of files from before the column, and whether all others say what is in it."""
    key = column.name.lower()
    lacking = [
        (revision, file.rows) for revision, file in files if all(name.lower() != key for name in file.columns)
    ]
    is_known = all(revision < column.since or not rows for revision, rows in lacking)
    return sum(rows for revision, rows in lacking if revision < column.since), is_known


def _extreme(
    type_: Any, encoded: Collection[tuple[bytes | None, float | None]], choose: Callable[..., Bound]
) -> Bound | None:
    """Return the least or the greatest of some bounds; None if one is not known."""
    bounds = [_bound(type_, *each) for each in encoded]
    known_bounds = [each for each in bounds if each is not None]
    return choose(known_bounds, key=_value) if len(known_bounds) == len(bounds) else None


def _bound(type_: Any, encoded: bytes | None, number: float | None) -> Bound | None:
    if type_ in FLOATING:
        return None if number is None else Bound(number)
    value = None if encoded is None else decode_bound(encoded, type_)
    return None if value is None or encoded is None else Bound(value, is_shortened(encoded, type_))


def _value(bound: Bound) -> Any:
    return bound.value


def count_nulls(files: Iterable[FileStats], column: str | None = None) -> int | None:
    """Return the nulls of a column, or of all columns; None if a file does not say."""
    nulls = 0
    key = None if column is None else column.lower()
    for file in files:
        columns = [stats for name, stats in file.columns.items() if key is None or name.lower() == key]
        if any(each.nulls is None for each in columns) or (not columns and file.rows):
            return None
        nulls += sum(each.nulls or 0 for each in columns)
    return nulls
