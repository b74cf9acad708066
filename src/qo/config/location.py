"""Where a store is: the one text that names it, and what that text means.

local:PATH              one SQLite file in the directory PATH, relative to where the process was started
s3://BUCKET[/PREFIX]    a bucket; a prefix makes several queues in one bucket
memory:[NAME]           inside this process only; all who give the same name share it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}\Z")
_SEGMENT = re.compile(r"[A-Za-z0-9_.=-]+\Z")
_SHARED = re.compile(r"memory:[A-Za-z0-9_.-]+\Z")
# What is meant as the address of something that is not on this machine, also with a slash too few: no path.
ELSEWHERE = r"\S*://|(?!file:)\w+:/|[sS]3[an]?:"
FORMS = "local:PATH, s3://BUCKET[/PREFIX] or memory:[NAME]"


@dataclass(frozen=True, slots=True)
class Local:
    path: Path


@dataclass(frozen=True, slots=True)
class S3:
    bucket: str
    prefix: str = ""  # Empty, or ends with a slash: put it before every key.


@dataclass(frozen=True, slots=True)
class Memory:
    name: str = ""  # Empty: shared with nobody.


Location = Local | S3 | Memory


def is_elsewhere(place: str) -> bool:
    return re.match(ELSEWHERE, place) is not None


def parse(text: str) -> Location:
    """What the text names; a ValueError that says what is wrong with it."""
    if text == "memory:" or _SHARED.match(text):
        return Memory(text.removeprefix("memory:"))
    if text.startswith("local:"):
        if not text.removeprefix("local:"):
            raise ValueError("local: needs a path, for example local:.qo")
        return Local(Path(text.removeprefix("local:")).expanduser())
    if text.startswith("s3://"):
        return _s3(text.removeprefix("s3://"))
    raise ValueError(f"a store is {FORMS}")


def _s3(text: str) -> S3:
    bucket, _, prefix = text.partition("/")
    if not _BUCKET.match(bucket):
        raise ValueError(f"{bucket!r} is not a bucket name: it has 2 to 63 letters, digits, dots and hyphens")
    segments = prefix.strip("/").split("/") if prefix.strip("/") else []
    for segment in segments:
        if not _SEGMENT.match(segment) or segment in (".", ".."):
            raise ValueError(f"{segment!r} cannot be part of a prefix: use letters, digits and . _ = -")
    return S3(bucket, "".join(f"{segment}/" for segment in segments))
