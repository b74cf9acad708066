"""A lock that allows one ``qo up`` in a directory at a time, and tells others where its dispatcher listens."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from qo.errors import ConfigError, Refused
from qo.store import private

LOCK_PATH = Path(".qo") / "up.lock"
BYTES_MAX = 512  # Of the file: a number and an address.


class Lock:
    """A context manager that holds the lock; the system releases it however the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Self:
        try:
            private.make_directory(self._path.parent)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other, _ = _read(self._file)
            os.close(self._file)
            self._file = None
            raise Refused(
                f"qo up runs here already, as process {other or 'unknown'}: end that process first, or start in "
                "another directory"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)

    def publish_address(self, url: str) -> None:
        """Let other processes know where the dispatcher listens, for as long as the lock is held."""
        assert self._file is not None
        os.pwrite(self._file, f"{os.getpid()}\n{url}\n".encode(), 0)


def find_address(path: Path) -> str | None:
    """Return where the dispatcher of the ``qo up`` listens that holds the lock; None if none does."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(file)[1] or None
    else:
        return None  # Nobody holds it: what it says is of a process that has ended.
    finally:
        os.close(file)


def _read(file: int) -> tuple[str, str]:
    """Return the id of the process that holds the lock, and its address; empty if they are not there."""
    process, _, rest = os.pread(file, BYTES_MAX, 0).decode("utf-8", "replace").partition("\n")
    return process.strip(), rest.partition("\n")[0]
