"""What the footers of committed files say in advance of a merge: how late their rows are, and what a write may skip.

Both only save work. Without footers the rows themselves are read, and the writer finds out again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from pyspark.sql.types import DataType, DateType, IntegralType, TimestampType

RELEARNED_EVERY = 16  # Commits. Rows may have become more alike since.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class StandingFooters:
    """The footers of all files that a merge reads, of pyarrow."""

    footers: Sequence[Any]

    def are_below(self, value: Any, column: str, type_: DataType) -> bool:
        """Whether every value of a column is known to be less, or null. ``value``: as ``sequences.collectable`` has it.

        It is not known of numbers with fractions, since NaN is in no statistics, and of texts, which may be shortened.
        """
        if not isinstance(type_, IntegralType | DateType | TimestampType):
            return False
        return all(_is_below(chunk, value) for chunk in self._chunks(column))

    def plain_columns(self, revision: int) -> tuple[str, ...]:
        """Return the columns of which no file has a dictionary: to try one again takes a tenth of a write's time.

        ``revision``: what the merge is based on. Now and then none are known, so that the writer finds out again.
        """
        if crc32(str(revision).encode()) % RELEARNED_EVERY == 0:  # Revisions themselves may come in steps.
            return ()
        columns: dict[str, bool] = {}
        for footer in self.footers:
            for group in range(footer.num_row_groups):
                for at in range(footer.num_columns):
                    chunk = footer.row_group(group).column(at)
                    if chunk.num_values:
                        name, is_plain = chunk.path_in_schema, not chunk.has_dictionary_page
                        columns[name] = columns.get(name, True) and is_plain
        return tuple(sorted(name for name, is_plain in columns.items() if is_plain))

    def _chunks(self, column: str) -> list[Any]:
        """Return the chunks of a column that is not within another; files from before it was added have none."""
        return [
            chunk
            for footer in self.footers
            for group in range(footer.num_row_groups)
            for at in range(footer.num_columns)
            if (chunk := footer.row_group(group).column(at)).path_in_schema.lower() == column.lower()
        ]


def _is_below(chunk: Any, value: Any) -> bool:
    stats = chunk.statistics
    nulls = stats.null_count if stats is not None and stats.has_null_count else 0
    if nulls == chunk.num_values:
        return True
    if stats is None or not stats.has_min_max:
        return False
    try:
        greatest = stats.max
    except (ValueError, OverflowError):
        return False  # A year that Python does not have.
    if isinstance(greatest, datetime):
        moment = greatest if greatest.tzinfo is not None else greatest.replace(tzinfo=UTC)
        greatest = (moment - _EPOCH) // _MICROSECOND
    return type(greatest) is type(value) and greatest < value
