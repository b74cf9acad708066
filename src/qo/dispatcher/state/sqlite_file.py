"""The file of a state database on SQLite: made for its owner alone, prepared, and flushed to the disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from qo.errors import ConfigError, Unavailable
from qo.store import private


def create_private(path: Path) -> None:
    """An empty file for its owner alone, if there is none; those that SQLite puts beside it become like it."""
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
    """Wait until the disk has what was committed to a SQLite database, all of which is in its log or was moved from
    there to the file, which is waited for. Raises Unavailable."""
    try:
        for each in (path.with_name(f"{path.name}-wal"), path.parent):
            with suppress(FileNotFoundError):  # The last to close the file has emptied its log.
                descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    except OSError as error:
        raise Unavailable(f"the state database could not be written to the disk: {error.strerror}") from None
