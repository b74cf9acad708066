"""What compares rows: DuckDB in this process, or Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from qo.core.pipeline.row_diff import Dialect


class RowEngine(Protocol):
    """Runs queries over ``before_rows`` and ``after_rows``."""

    dialect: Dialect

    def types(self, relation: str) -> Mapping[str, str]:
        """Return the types of a relation's columns by name."""
        ...

    def rows(self, query: str) -> list[tuple[Any, ...]]: ...


class OpenEngine(Protocol):
    def __call__(self, before: Sequence[str], after: Sequence[str]) -> AbstractContextManager[RowEngine]:
        """Open an engine over the files of each version by their URIs. One of them may have none."""
        ...
