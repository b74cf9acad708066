"""What is known of the columns of a dataset, from what workers measured of each of its files. Nothing is read again.

Nulls add up, and the least and the greatest value are those of all files together. What one file does not say is not
known of the dataset: there is no guessing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Tally:
    type: Any
    since: int  # The revision of the first commit that has the column.
    rows: int = 0
    nulls: int | None = 0
    bytes: int = 0
    lowest: list[Bound] | None = field(default_factory=list[Bound])  # None: one is missing.
    highest: list[Bound] | None = field(default_factory=list[Bound])

    def add(self, stats: ColumnStats) -> None:
        self.rows += stats.values
        self.bytes += stats.size
        self.nulls = None if self.nulls is None or stats.nulls is None else self.nulls + stats.nulls
        if stats.nulls is not None and stats.nulls == stats.values:
            return  # There is nothing to bound.
        self.lowest = _with(self.lowest, self._bound(stats.lower, stats.least), min)
        self.highest = _with(self.highest, self._bound(stats.upper, stats.greatest), max)

    def add_absent(self, rows: int) -> None:
        """Count rows of a file that lacks the column."""
        self.rows += rows
        self.nulls = None if self.nulls is None else self.nulls + rows

    def add_unknown(self) -> None:
        """Add a file that has the column and does not say what is in it."""
        self.nulls = self.lowest = self.highest = None

    def _bound(self, encoded: bytes | None, number: float | None) -> Bound | None:
        if self.type in FLOATING:
            return None if number is None else Bound(number)
        value = None if encoded is None else decode_bound(encoded, self.type)
        return None if value is None or encoded is None else Bound(value, is_shortened(encoded, self.type))

    def summary(self) -> ColumnSummary:
        return ColumnSummary(
            self.rows,
            self.nulls,
            self.lowest[0] if self.lowest else None,
            self.highest[0] if self.highest else None,
            self.bytes,
        )


def _with(so_far: list[Bound] | None, bound: Bound | None, choose: Any) -> list[Bound] | None:
    if so_far is None or bound is None:
        return None
    return [choose((*so_far, bound), key=_value)]


def _value(bound: Bound) -> Any:
    return bound.value


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
    tallies = {each.name.lower(): _Tally(each.type, each.since) for each in columns if is_atomic(each.type)}
    for piece in pieces:
        for file in piece.files:
            _add_file(tallies, piece.revision, file)
    return {each.name: tallies[key].summary() for each in columns if (key := each.name.lower()) in tallies}


def _add_file(tallies: Mapping[str, _Tally], revision: int, file: FileStats) -> None:
    measured = {name.lower(): stats for name, stats in file.columns.items()}
    for key, tally in tallies.items():
        if key in measured:
            tally.add(measured[key])
        elif revision < tally.since:
            tally.add_absent(file.rows)
        elif file.rows:
            tally.add_unknown()


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
