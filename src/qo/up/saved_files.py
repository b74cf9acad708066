"""The files that pipelines are made of, and whether they were saved since they were last read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SUFFIXES = (".py", ".sql", ".yaml", ".yml")
FILES_MAX = (
    5_000  # Of all directories together; a project of code has fewer, and a directory of data may have more.
)
_SKIPPED = ("__pycache__", "node_modules", "site-packages")

Stamps = Mapping[str, tuple[int, int]]  # Time of the last change, and size, by path.


class SavedFiles:
    """Watches the code below some directories by looking at it, which works on every file system."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._read = self._latest = self._look()

    def poll(self) -> bool:
        """Return whether files were saved since they were last read, and no more are being saved."""
        before, self._latest = self._latest, self._look()
        return self._latest == before and self._latest != self._read

    def mark_read(self) -> None:
        """Take the files as they were at the last poll for read."""
        self._read = self._latest

    def _look(self) -> Stamps:
        stamps: dict[str, tuple[int, int]] = {}
        for path in self._walk():
            try:
                status = os.stat(path)
            except OSError:
                continue  # It was removed meanwhile.
            stamps[path] = (status.st_mtime_ns, status.st_size)
        return stamps

    def _walk(self) -> Iterator[str]:
        count = 0
        for directory in self._directories:
            for root, below, names in os.walk(directory):
                below[:] = [each for each in below if not each.startswith(".") and each not in _SKIPPED]
                for name in names:
                    if name.endswith(SUFFIXES):
                        yield os.path.join(root, name)
                count += len(names)
                if count > FILES_MAX:
                    return
