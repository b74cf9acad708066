"""A directory of this machine as a ``Directory``.

The functions at module level block, and are for callers that have a thread of their own.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from qo.errors import NotFound, UsageError
from qo.store.directory import PAGE, Accepts, Change, File
from qo.store.private import make_data_directory, write_data_file

LOCK = ".lock"  # Beside files that are updated. Never listed.


def read_file(path: Path, bytes_max: int | None = None) -> bytes:
    """Raises NotFound, UsageError if it has more than ``bytes_max``, OSError if it cannot be read."""
    try:
        with path.open("rb") as file:
            body = file.read() if bytes_max is None else file.read(bytes_max + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    if bytes_max is not None and len(body) > bytes_max:
        raise UsageError(f"{path} has more than {bytes_max} bytes")
    return body


def write_file(path: Path, body: bytes) -> None:
    """Write a file whole or not at all, and the directories above it. Raises OSError."""
    draft = path.with_name(f".{secrets.token_hex(8)}.draft")
    try:
        try:
            write_data_file(draft, body)
        except FileNotFoundError:
            make_data_directory(path.parent)
            write_data_file(draft, body)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


class LocalDirectory:
    """What is written is as open as the directory above it, whatever the umask (``qo.store.private``)."""

    shows_partial_files = True  # Others may write in place.

    def __init__(self, root: Path) -> None:
        self.root = root

    async def list(self, *, accepts: Accepts | None = None, under: str = "") -> AsyncIterator[Sequence[File]]:
        if not await asyncio.to_thread(self.root.is_dir):
            raise NotFound(f"there is no directory {self.root}")
        files = self._walk(accepts or (lambda _: True), self._path(under) if under else self.root)
        while page := await asyncio.to_thread(lambda: list(islice(files, PAGE))):
            yield page

    async def find(self, path: str) -> File | None:
        return await asyncio.to_thread(self._file, self._path(path))

    async def read(self, path: str, *, bytes_max: int | None = None) -> bytes:
        return await asyncio.to_thread(read_file, self._path(path), bytes_max)

    async def open(self, path: str) -> BinaryIO:
        try:
            return await asyncio.to_thread(self._path(path).open, "rb")
        except FileNotFoundError:
            raise NotFound(f"there is no file {self._path(path)}") from None

    async def write(self, path: str, body: bytes) -> None:
        await asyncio.to_thread(write_file, self._path(path), body)

    async def create(self, path: str, body: bytes) -> bool:
        return await self.update(path, lambda content: body if content is None else None)

    async def update(self, path: str, change: Change) -> bool:
        return await asyncio.to_thread(self._update, self._path(path), change)

    async def delete(self, paths: Sequence[str]) -> None:
        await asyncio.to_thread(self._delete, [self._path(path) for path in paths])

    def url(self, path: str) -> str:
        return f"file:{self.root.absolute()}/{path}"

    async def close(self) -> None:
        pass

    def _path(self, path: str) -> Path:
        if not path or path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise UsageError(
                f"{path!r} is no path below {self.root}: write it without a leading slash and without .."
            )
        return self.root / path

    def _walk(self, accepts: Accepts, top: Path) -> Iterator[File]:
        for folder, folders, names in os.walk(top):  # Links to directories are among the folders, and not walked.
            folders[:] = sorted(name for name in folders if accepts(name))
            if not folders and not names and folder != str(self.root):
                yield File(f"{Path(folder).relative_to(self.root).as_posix()}/", "", 0)
            links = (name for name in folders if Path(folder, name).is_symlink())
            for name in (*sorted(name for name in names if accepts(name) and name != LOCK), *links):
                if (file := self._file(Path(folder, name))) is not None:
                    yield file

    def _file(self, path: Path) -> File | None:
        try:
            status = path.lstat()
        except OSError:
            return None  # Deleted since it was listed.
        is_link = stat.S_ISLNK(status.st_mode)
        if not is_link and not stat.S_ISREG(status.st_mode):
            return None
        etag = f"{status.st_size:x}-{status.st_mtime_ns:x}"
        return File(path.relative_to(self.root).as_posix(), etag, status.st_size, is_link)

    def _update(self, path: Path, change: Change) -> bool:
        make_data_directory(path.parent)
        with path.with_name(LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Released when the file is closed.
            body = change(path.read_bytes() if path.exists() else None)
            if body is None:
                return False
            write_file(path, body)
            return True

    def _delete(self, paths: Sequence[Path]) -> None:
        parents: set[Path] = set()
        for path in paths:
            with suppress(FileNotFoundError):
                if path.is_dir() and not path.is_symlink():
                    parents.add(path)
                else:
                    path.unlink()
            parents |= {parent for parent in path.parents if self.root in parent.parents}
        for parent in sorted(parents, key=lambda each: len(each.parts), reverse=True):
            with suppress(OSError):
                parent.rmdir()  # Fails if something is left in it.
