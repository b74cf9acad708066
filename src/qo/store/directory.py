"""The port for a tree of files: a directory of this machine, or a bucket under a prefix.

    file:PATH               a directory
    s3://BUCKET[/PREFIX]    a bucket; what lies below the prefix
    local:PATH, memory:NAME the objects of an embedded store, for tests and for a look inside

Files are read and written whole; Spark reads and writes what is too large for that. Paths are relative to the
directory and have slashes. ``tests/conformance/test_directory.py`` holds every adapter to this contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import BinaryIO, NamedTuple, Protocol

from qo.config.location import local_path, parse
from qo.config.settings import Settings
from qo.errors import UsageError

PAGE = 1000  # Files that are listed at a time.

Accepts = Callable[[str], bool]  # Whether a file or directory of this name, without its path, is listed.
Change = Callable[[bytes | None], bytes | None]  # From the present content to the new one; None: leave it.


class File(NamedTuple):
    """A file as it was listed. A path that ends with a slash is an empty directory, or its marker in a bucket."""

    path: str
    etag: str  # Changes when the content does.
    size: int
    is_link: bool = False  # A symbolic link: it is listed, and never followed.


class Directory(Protocol):
    shows_partial_files: bool  # Whether a file that others are still writing can be seen.

    def list(self, *, accepts: Accepts | None = None, under: str = "") -> AsyncIterator[Sequence[File]]:
        """Every file at any depth, in pages; files of one directory, with all below it, follow each other.

        ``under``: only what lies below this directory, ``a/b/``; nothing if it is not there. A name that ``accepts``
        refuses is left out, a directory with everything in it. Raises NotFound if the
        directory does not exist; a bucket has every prefix.
        """
        ...

    async def find(self, path: str) -> File | None:
        """One file, as a list would show it."""
        ...

    async def read(self, path: str, *, bytes_max: int | None = None) -> bytes:
        """The content of a file. Raises NotFound, and UsageError if it has more than ``bytes_max``."""
        ...

    async def open(self, path: str) -> BinaryIO:
        """The content as a stream, for whoever may not need all of it; close it. Raises NotFound."""
        ...

    async def write(self, path: str, body: bytes) -> None:
        """Write a file, or replace it. Readers see all of it or nothing."""
        ...

    async def create(self, path: str, body: bytes) -> bool:
        """Write a file if there is none. False if there is one, which stays as it is."""
        ...

    async def update(self, path: str, change: Change) -> bool:
        """Replace a file by what ``change`` makes of it, with no other update in between; whether it was replaced.

        ``change`` may be called several times. Raises Contended if other writers won every time: try again later.
        """
        ...

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete files, and the directories that this leaves empty. A file that is gone already is no error."""
        ...

    def url(self, path: str) -> str:
        """Where others find the file."""
        ...

    async def close(self) -> None: ...


async def open_directory(location: str, settings: Settings) -> Directory:
    """Open the directory or bucket that ``location`` names; close it after use.

    Raises UsageError if the location names neither, and StoreError if the bucket does not answer.
    """
    if location.startswith("file:"):
        from qo.store.local_directory import LocalDirectory

        return LocalDirectory(local_path(location))
    from qo.store.bucket_directory import BucketDirectory
    from qo.store.opening import open_store

    try:
        parsed = parse(location)
    except ValueError as error:
        raise UsageError(f"{location!r} is neither file:PATH nor s3://BUCKET/PREFIX: {error}") from None
    return BucketDirectory((await open_store(replace(settings, store=location))).store, parsed.file_root)
