"""Move SQLite's write-ahead log into the database file on a thread of its own.

By default SQLite does this at the end of some write, and its disk flushes delay everyone who waits for that batch. Here
another thread, with its own connection, does it while writing goes on. Only if the log still grows too long
(``sqlite_file.LOG_PAGES_MAX``) does a write finish the rest.
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
    """Call ``after_commit`` on the writing thread; the checkpoints run on another, started on demand."""

    def __init__(self, path: Path) -> None:
        directory = path.absolute()  # It is opened later, when the working directory may be another.
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
        """Stop the thread, and wait until it has closed the file."""
        self._stopped = True
        self._requested.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            while self._requested.wait() and not self._stopped:
                self._requested.clear()
                # An error here also hits the writer, which reports it to its caller.
                with contextlib.suppress(OSError, sqlite3.Error):
                    if self._log.stat().st_size > LOG_BYTES:
                        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()
