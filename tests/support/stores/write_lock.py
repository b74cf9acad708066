"""Hold up every write to an embedded store, so that a process can be killed in the middle of its work."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from qo.store.sqlite_file import FILE


@contextmanager
def writes_held_up(store: Path) -> Generator[None]:
    """Whoever writes waits until the end of the block; reading goes on."""
    with closing(sqlite3.connect(store / FILE, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
