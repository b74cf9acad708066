"""The disk on which workers keep what is on its way, and how it becomes full.

Root mounts one that is small. Without root the processes themselves are forbidden to make files longer, which their
writes meet as another error.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

SIZE = "256m"


class Disk:
    def __init__(self, directory: Path, writers: Callable[[], Iterable[int]], *, kept: Path | None = None) -> None:
        """``writers``: the processes that write to it, for a disk that cannot be mounted. ``kept``: where its files go
        before it is unmounted, for inspection."""
        directory.mkdir(parents=True)
        self.path, self._writers, self._kept = directory, writers, kept
        mounted = os.geteuid() == 0 and self._mount("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "chaos")
        self.how = f"tmpfs of {SIZE}" if mounted else "limit on the size of files"
        self._mounted = mounted
        self._limited: list[int] = []

    def fill(self) -> None:
        if not self._mounted:
            for each in self._writers():
                with contextlib.suppress(ProcessLookupError):
                    _, hard = resource.prlimit(each, resource.RLIMIT_FSIZE)
                    resource.prlimit(each, resource.RLIMIT_FSIZE, (0, hard))
                    self._limited.append(each)
            return
        with (self.path / "filling").open("wb", buffering=0) as file:
            for size in (1 << 20, 1 << 12):  # To the last page.
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def clear(self) -> None:
        (self.path / "filling").unlink(missing_ok=True)
        for each in self._limited:
            with contextlib.suppress(ProcessLookupError):
                _, hard = resource.prlimit(each, resource.RLIMIT_FSIZE)
                resource.prlimit(each, resource.RLIMIT_FSIZE, (hard, hard))
        self._limited.clear()

    def close(self) -> None:
        self.clear()
        if self._mounted:
            if self._kept is not None:
                shutil.copytree(self.path, self._kept)
            self._mount("umount", "--lazy")

    def _mount(self, *command: str) -> bool:
        return subprocess.run([*command, str(self.path)], capture_output=True, check=False).returncode == 0
