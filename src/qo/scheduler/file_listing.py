"""The files below a place: a directory, or a prefix of a store.

    /var/inbox, file:/var/inbox     a directory of the machine that watches, with everything below it
    s3://BUCKET/PREFIX              a prefix of a bucket
    local:PATH                      the embedded store of a queue; its own keys, so only for tests and curiosity

Names that begin with ``.`` or ``_``, also those of directories, are not looked at: by custom they are marks and work
in progress. So are names that are not text, and links: whoever may put files here is not to have others read what only
they may read. The place itself may be a link.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from qo.config.location import is_elsewhere, parse
from qo.config.settings import Settings
from qo.core.words import plural
from qo.errors import NotFound, UsageError
from qo.store.opening import open_store
from qo.store.port import Entry, ObjectStore

log = logging.getLogger(__name__)

PAGE = 1000


@dataclass(frozen=True, slots=True)
class File:
    path: str  # Below the place that is watched, with slashes.
    etag: str  # Changes when the content does.
    size: int | None  # None: unknown.
    folder: str  # Where to read it: the URL of its directory, and with it …
    name: str  # … its own name.

    @property
    def location(self) -> str:
        return self.folder + self.name


class Place(Protocol):
    """Somewhere files arrive."""

    settles: bool  # Whether a file can be seen half-written, and must be seen twice to be believed.

    def files(self) -> AsyncIterator[list[File]]:
        """All files in pages, in no particular order. Raises NotFound if the place is not there."""
        ...

    async def close(self) -> None: ...


class Directory:
    settles = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self._links = 0  # That were told of.

    async def files(self) -> AsyncIterator[list[File]]:
        if not await asyncio.to_thread(self._root.is_dir):
            raise NotFound(f"there is no directory {self._root}: create it, or correct the source's path")
        found = await asyncio.to_thread(self._walk)
        for start in range(0, len(found), PAGE):
            yield found[start : start + PAGE]

    async def close(self) -> None:
        pass

    def _walk(self) -> list[File]:
        found: list[File] = []
        links: list[Path] = []
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if _counts(name)]  # Of these, links are not walked into.
            links += (path for name in folders if (path := Path(folder, name)).is_symlink())
            for path in (Path(folder, name) for name in names if _counts(name)):
                if path.is_symlink():
                    links.append(path)
                elif (file := self._file(path)) is not None:
                    found.append(file)
        self._tell_of(links)
        return found

    def _tell_of(self, links: list[Path]) -> None:
        if len(links) > self._links:
            log.warning(
                "%s below %s: links are not followed; instead of %s, put the file itself there",
                plural(len(links), "link"),
                self._root,
                links[0],
            )
        self._links = len(links)

    def _file(self, path: Path) -> File | None:
        try:
            seen = path.lstat()
        except OSError:
            return None  # Gone since it was listed.
        if not stat.S_ISREG(seen.st_mode):
            return None
        name = path.relative_to(self._root).as_posix()
        etag = f"{seen.st_size:x}-{seen.st_mtime_ns:x}"
        return File(name, etag, seen.st_size, f"file:{path.absolute().parent}/", path.name)


class Prefix:
    settles = False  # A store shows an object when it is whole.

    def __init__(self, store: ObjectStore, root: str) -> None:
        self._store, self._root = store, root

    async def files(self) -> AsyncIterator[list[File]]:
        after, more = "", True
        while more:
            page = await self._store.list("", start_after=after)
            more = page.truncated and bool(page.entries)
            yield [
                self._file(entry)
                for entry in page.entries
                if not entry.key.endswith("/") and all(map(_counts, entry.key.split("/")))
            ]
            if page.entries:
                after = page.entries[-1].key

    async def close(self) -> None:
        await self._store.close()

    def _file(self, entry: Entry) -> File:
        folder, slash, name = entry.key.rpartition("/")
        return File(entry.key, entry.etag.strip('"'), entry.size, f"{self._root}{folder}{slash}", name)


def _counts(name: str) -> bool:
    return not name.startswith((".", "_")) and name.isprintable()


async def open_place(path: str, settings: Settings) -> Place:
    """The place that a source's ``path`` names. Raises UsageError if it names none."""
    if path.startswith(("s3://", "local:")):
        try:
            parse(path)
        except ValueError as error:
            raise UsageError(f"{path!r} cannot be watched: {error}") from None
        opened = await open_store(replace(settings, store=path))
        root = path.rstrip("/") + "/" if path.startswith("s3://") else f"{path}#"
        return Prefix(opened.store, root)
    if is_elsewhere(path.removeprefix("file:")):
        raise UsageError(f"{path!r} cannot be watched: write a directory, file:PATH or s3://BUCKET/PREFIX")
    return Directory(Path(os.path.expanduser(path.removeprefix("file:"))))  # noqa: ASYNC240 - asks no disk.


def matches(path: str, pattern: str) -> bool:
    """A pattern with a slash is about the whole path, any other about the file's own name."""
    return fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)
