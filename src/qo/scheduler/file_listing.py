"""The files below a place that a source watches: a directory, or a prefix of a store.

    /var/inbox, file:/var/inbox     a directory of the machine that watches, with everything below it
    s3://BUCKET/PREFIX              a prefix of a bucket
    local:PATH                      the embedded store of a queue; its own keys, so only for tests and curiosity

Names that begin with ``.`` or ``_``, also those of directories, are skipped: by custom they mark work in progress. So
are names that are not printable, and links: whoever may put files here must not make others read what only those
others may read. The place itself may be a link.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Protocol

from qo.config.location import is_elsewhere, parse, path_text
from qo.config.settings import Settings
from qo.core.words import plural
from qo.errors import NotFound, UsageError
from qo.store import directory
from qo.store.directory import Directory, open_directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class File:
    path: str  # Below the place that is watched, with slashes.
    etag: str  # Changes when the content does.
    size: int | None  # None: unknown.
    folder: str  # Where to read it: the URL of its directory, and with it …
    name: str  # … its own name.
    key: str | None = None  # Of its partition, where that is known otherwise than by its path.

    @property
    def location(self) -> str:
        return self.folder + self.name


class Place(Protocol):
    """Somewhere files arrive."""

    settles: bool  # Whether a file can be seen half-written, so that it counts once it was seen twice unchanged.
    problem: str | None  # What could not be seen at the last look, although the rest could.

    def files(self, at: datetime | None = None) -> AsyncIterator[list[File]]:
        """All files in pages, in no particular order. Raises NotFound if the place does not exist.

        ``at``: the time, on which it may depend which files there should be.
        """
        ...

    async def close(self) -> None: ...


class DirectoryPlace:
    problem: str | None = None  # A directory is listed whole, or not at all.

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._links = 0  # That were warned of.
        self.settles = directory.shows_partial_files

    async def files(self, at: datetime | None = None) -> AsyncIterator[list[File]]:
        links: list[str] = []
        try:
            async for page in self._directory.list(accepts=_is_watched):
                links += (each.path for each in page if each.is_link)
                yield [self._file(each) for each in page if not each.is_link and not each.path.endswith("/")]
        except NotFound as error:
            raise NotFound(f"{error}: create it, or correct the source's path") from None
        self._warn_of(links)

    async def close(self) -> None:
        await self._directory.close()

    def _warn_of(self, links: list[str]) -> None:
        if len(links) > self._links:
            log.warning(
                "%s below %s: links are not followed; instead of %s, put the file itself there",
                plural(len(links), "link"),
                path_text(self._directory.url("")),
                path_text(self._directory.url(links[0])),
            )
        self._links = len(links)

    def _file(self, file: directory.File) -> File:
        folder, slash, name = file.path.rpartition("/")
        return File(file.path, file.etag, file.size, self._directory.url(folder + slash), name)


def _is_watched(name: str) -> bool:
    return not name.startswith((".", "_")) and name.isprintable()


async def open_place(path: str, settings: Settings) -> Place:
    """Open the place that a source's ``path`` names. Raises UsageError if it names none."""
    if path.startswith(("s3://", "local:")):
        try:
            parse(path)
        except ValueError as error:
            raise UsageError(f"{path!r} cannot be watched: {error}") from None
        return DirectoryPlace(await open_directory(path, settings))
    if is_elsewhere(path_text(path)):
        raise UsageError(f"{path!r} cannot be watched: write a directory, file:PATH or s3://BUCKET/PREFIX")
    absolute = os.path.expanduser(path_text(path))  # noqa: ASYNC240 - asks no disk.
    return DirectoryPlace(await open_directory(f"file:{absolute}", settings))


def matches(path: str, pattern: str) -> bool:
    """A pattern with a slash is about the whole path, any other about the file's own name."""
    return fnmatchcase(path if "/" in pattern else path.rpartition("/")[2], pattern)
