"""The file of a SQLite state database: created for its owner alone, configured, and flushed to disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from qo.errors import ConfigError, Unavailable
from qo.store import private


def create_private(path: Path) -> None:
    """Create an empty file for its owner alone, if there is none; the files that SQLite adds inherit its mode."""
    try:
        private.make_directory(path.parent)
        if private.create_file(path):
            return
        if not path.is_file():
            raise ConfigError(f"the state database {path} cannot be opened: something else is there") from None
        private.close_to_others(private.of_database(path))
    except OSError as error:
        raise ConfigError(f"the state database {path} cannot be opened: {error.strerror}") from None


def prepare(durable: bool, connection: Any, _: Any) -> None:
    synchronous = f"synchronous = {'FULL' if durable else 'NORMAL'}"
    for pragma in ("journal_mode = WAL", synchronous, "foreign_keys = ON", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}")


def flush_log(path: Path) -> None:
    """Flush the write-ahead log of a SQLite database, so that all its commits are on disk. Raises Unavailable.

    What was moved from the log to the file was flushed by that move.
    """
    try:
        for each in (path.with_name(f"{path.name}-wal"), path.parent):
            with suppress(FileNotFoundError):  # The last connection that closed has removed the log.
                descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    except OSError as error:
        raise Unavailable(f"the state database could not be written to the disk: {error.strerror}") from None
