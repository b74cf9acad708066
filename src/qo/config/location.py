"""The location of a store, and the text that names it.

local:PATH              one SQLite file in the directory PATH, relative to where the process was started
s3://BUCKET[/PREFIX]    a bucket; a prefix makes several queues in one bucket
memory:[NAME]           inside this process only; stores with the same name are shared

Code asks a location for what it needs to know (``is_remote``, ``child``), never for its class, so that a store adapter
can bring a location of its own (``qo.store.opening.register_adapter``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from qo.errors import UsageError

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9_.=-]+\Z")
_SHARED = re.compile(r"[A-Za-z0-9_.-]*\Z")
# An address of another machine, also with a slash too few: never a path.
ELSEWHERE = r"\S*://|(?!file:)\w+:/|[sS]3[an]?:"
FORMS = "local:PATH, s3://BUCKET[/PREFIX] or memory:[NAME]"


class Location(ABC):
    """Where a store is, and in what its kind of store differs from others. The defaults are those of a server."""

    __slots__ = ()
    is_remote: ClassVar[bool] = (
        True  # A server: it needs proof (`qo doctor`), may fail, and has a clock of its own.
    )
    is_shared: ClassVar[bool] = True  # Whether other processes can open the same store.

    @property
    @abstractmethod
    def text(self) -> str:
        """The text that names this store, whatever the working directory."""

    @property
    def file_root(self) -> str:
        """What the URLs of the store's objects begin with."""
        return f"{self.text}#"

    def child(self, *names: str) -> str | None:
        """The text of a separate store below this one; None if this store has no room for others."""
        return None

    def as_bucket(self) -> S3 | None:
        """The bucket, where there is one to set up, grant rights to or serve pages from."""
        return None

    def as_directory(self) -> Path | None:
        """The directory of this machine that holds the store."""
        return None


@dataclass(frozen=True, slots=True)
class Local(Location):
    path: Path
    is_remote = False

    @property
    def text(self) -> str:
        return f"local:{self.path.absolute()}"

    def child(self, *names: str) -> str | None:
        return f"local:{self.path.joinpath(*names)}"

    def as_directory(self) -> Path | None:
        return self.path


@dataclass(frozen=True, slots=True)
class S3(Location):
    bucket: str
    prefix: str = ""  # Empty, or ends with a slash: put it before every key.

    @property
    def text(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def file_root(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def child(self, *names: str) -> str | None:
        return f"{self.file_root}{'/'.join(names)}"

    def as_bucket(self) -> S3 | None:
        return self


@dataclass(frozen=True, slots=True)
class Memory(Location):
    name: str = ""  # Empty: not shared.
    is_remote = False
    is_shared = False

    @property
    def text(self) -> str:
        return f"memory:{self.name}"


Parser = Callable[[str], Location]  # From what follows the scheme and its colon. Raises ValueError.


def is_elsewhere(place: str) -> bool:
    return re.match(ELSEWHERE, place) is not None


def path_text(text: str) -> str:
    """Return the path of a text that is a path, or a ``file:`` URI with any number of slashes."""
    return re.sub("^//+", "/", text.removeprefix("file:"))


def local_path(uri: str) -> Path:
    """Return the path that a ``file:`` URI names. Raises UsageError for any other URI."""
    if not uri.startswith("file:"):
        raise UsageError(f"{uri} is not a file on this machine: use read() and write()")
    return Path(path_text(uri))


def parse(text: str) -> Location:
    """Return the location that the text names. Raises ValueError with what is wrong with it."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in _PARSERS:
        raise ValueError(f"a store is {FORMS}")
    return _PARSERS[scheme](rest)


def register_scheme(scheme: str, parser: Parser) -> None:
    """Make ``parse`` accept texts that begin with ``scheme:``."""
    _PARSERS[scheme] = parser


def _parse_local(rest: str) -> Local:
    if not rest:
        raise ValueError("local: needs a path, for example local:.qo")
    return Local(Path(rest).expanduser())


def _parse_memory(rest: str) -> Memory:
    if not _SHARED.match(rest):
        raise ValueError(f"a store is {FORMS}")
    return Memory(rest)


def _parse_s3(rest: str) -> S3:
    if not rest.startswith("//"):
        raise ValueError(f"a store is {FORMS}")
    bucket, _, prefix = rest.removeprefix("//").partition("/")
    if not _BUCKET.match(bucket):
        raise ValueError(f"{bucket!r} is not a bucket name: it has 2 to 63 letters, digits, dots and hyphens")
    segments = prefix.strip("/").split("/") if prefix.strip("/") else []
    for segment in segments:
        if not _SEGMENT.match(segment) or segment in (".", ".."):
            raise ValueError(f"{segment!r} cannot be part of a prefix: use letters, digits and . _ = -")
    return S3(bucket, "".join(f"{segment}/" for segment in segments))


_PARSERS: dict[str, Parser] = {"local": _parse_local, "s3": _parse_s3, "memory": _parse_memory}
