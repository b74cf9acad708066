"""What is known about the Parquet files of an output: rows, bytes, and the bounds of columns."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qo.agent import parquet_footers
from qo.api.contract.task import ColumnBody
from qo.core.pipeline.file_stats import FileStats, pack_stats


class FileMeasures:
    def __init__(self) -> None:
        self._stats: dict[str, FileStats] = {}
        self._footers: dict[str, tuple[Any, int]] = {}  # With sizes; what they mean follows from the columns.

    def add(self, name: str, stats: FileStats) -> None:
        """Add what the writer of a file has measured."""
        self._stats[name] = stats

    def read(self, name: str, source: Path | bytes) -> None:
        """Read the footer of a file, or of its bytes, if it is Parquet. One that cannot be read stays unknown."""
        if not name.endswith(parquet_footers.SUFFIX) or (footer := parquet_footers.read_footer(source)) is None:
            return
        self._footers[name] = footer, len(source) if isinstance(source, bytes) else source.stat().st_size

    def pack(self, columns: Sequence[ColumnBody] | None) -> bytes | None:
        """Return the statistics of all files as a completion carries them; None if there are none."""
        types = parquet_footers.column_types(columns)
        stats = {name: parquet_footers.footer_stats(*each, types) for name, each in self._footers.items()}
        return b64encode(pack_stats(stats | self._stats)) if stats or self._stats else None
