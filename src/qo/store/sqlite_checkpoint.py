"""Moving SQLite's write-ahead log into the file, beside the writing instead of in the middle of it.

Left to itself, SQLite does this at the end of some write, and the disk flushes it needs hold up all who wait
for that batch. Here another thread, with a connection of its own, does it while writing goes on. Only when the log
has grown long all the same (``sqlite_file.LOG_PAGES_MAX``) does a write finish the rest.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

from qo.store.sqlite_file import FILE, PAGE_BYTES

LOG_BYTES = 4_000 * PAGE_BYTES  # Shorter logs are left alone: most pages in them will be written again.
COMMITS_PER_LOOK = 16


class Checkpoints:
    """``after_commit`` is for the thread that writes; all else happens in one that starts when there is need."""

    def __init__(self, path: Path) -> None:
        directory = path.absolute()  # It is opened later, when the process may be elsewhere.
        self._file = directory / FILE
        self._log = directory / f"{FILE}-wal"
        self._commits = 0
        self._requested = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def after_commit(self) -> None:
        self._commits += 1
        if self._commits % COMMITS_PER_LOOK:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="qo-checkpoints", daemon=True)
            self._thread.start()
        self._requested.set()

    def stop(self) -> None:
        """Returns when the thread has let go of the file."""
        self._stopped = True
        self._requested.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            while self._requested.wait() and not self._stopped:
                self._requested.clear()
                # Whatever goes wrong here goes wrong for the writer too, which has somebody to tell.
                with contextlib.suppress(OSError, sqlite3.Error):
                    if self._log.stat().st_size > LOG_BYTES:
                        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
