"""The lock of a SQLite file, held as by a process that was stopped in the middle of a transaction.

A pause hits that moment too rarely: transactions take a millisecond.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

WAIT_S = 60.0  # Until whoever else was stopped in the middle of one goes on.


class WriteLock:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def take(self) -> None:
        """Others can read, and nobody can write."""
        self._connection = sqlite3.connect(
            f"file:{self._path}?mode=rw", uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
