"""The log of an attempt: where it lies, and which of its lines are kept.

    _logs/{day}/{task}/{attempt}/{first line}.jsonl     below the data root

The log is a few chunks, each named after the number of its first line. Only the last one is still written, whole each
time, until it is full. The first quarter of the bytes is kept for the beginning of the log, the rest for its end: what
lies between is dropped, and the numbers of the lines tell how many there were.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

DIRECTORY = "_logs"
LINE_CHARS_MAX = 8_000
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 4 * 1024, 64 * 1024
FLUSH_FIRST_S, FLUSH_GROWTH, FLUSH_MAX_S = 0.5, 1.5, 4.0

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PREFIX = re.compile(rf"{DIRECTORY}/(?P<day>\d{{4}}-\d\d-\d\d)/(?P<task>{_ID})/(?P<attempt>[1-9][0-9]{{0,8}})/?\Z")
_NAME = re.compile(r"(\d{10,})\.jsonl\Z")


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line, as it is stored."""

    n: int  # From 1 on. Numbers that are missing were dropped.
    at: float  # Seconds since 1970, by the clock of the dispatcher; of stream spark, by its own.
    stream: str  # stdout, stderr, log or spark
    text: str
    level: str | None = None  # Of streams log and spark.
    logger: str | None = None


def prefix_of(task_id: str, attempt: int, started_at: datetime) -> str:
    """Return the directory of a log, below the data root; with a slash at its end."""
    return f"{DIRECTORY}/{started_at.astimezone(UTC):%Y-%m-%d}/{task_id}/{attempt}/"


def split_location(location: str) -> tuple[str, str]:
    """Return the data root of a log and its directory below it, from the whole location."""
    root, _, below = location.rpartition(f"/{DIRECTORY}/")
    return root, f"{DIRECTORY}/{below}"


def name_of(first: int) -> str:
    return f"{first:010d}.jsonl"


def first_of(name: str) -> int | None:
    """Return the number of a chunk's first line; None for a file that is no chunk."""
    match = _NAME.match(name)
    return None if match is None else int(match[1])


def flush_delay_s(flushes: int) -> float:
    """Return how long to wait before a flush, after so many: a short run is seen soon, a long one costs little."""
    return min(FLUSH_FIRST_S * FLUSH_GROWTH ** min(flushes, 20), FLUSH_MAX_S)


def cut(text: str, length: int) -> str:
    """Return the beginning of a line whose ``length`` is too large, and say so."""
    if length <= LINE_CHARS_MAX:
        return text
    return f"{text[:LINE_CHARS_MAX]}… ({length - LINE_CHARS_MAX:,} more characters)"


def encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


_decoder = msgspec.json.Decoder(Line)


def decode(body: bytes) -> list[Line]:
    """Return the lines of a chunk. What is damaged is left out."""
    lines: list[Line] = []
    for each in body.splitlines():
        try:
            lines.append(_decoder.decode(each))
        except msgspec.MsgspecError:
            continue
    return lines


def needed_from(firsts: Sequence[int], after: int) -> int:
    """Return the position of the first chunk that may have lines after the one numbered ``after``.

    ``firsts``: the first lines of all chunks, in order.
    """
    return max((at for at, first in enumerate(firsts) if first <= after + 1), default=0)


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_max: int

    @property
    def head(self) -> int:
        return self.bytes_max // 4

    @property
    def tail(self) -> int:
        return self.bytes_max - self.head

    @property
    def chunk(self) -> int:
        return min(max(self.bytes_max // 16, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


@dataclass(slots=True)
class Chunk:
    first: int
    is_head: bool
    body: bytearray = field(default_factory=bytearray)  # Released when it is full and saved.
    size: int = 0
    saved_size: int = 0

    @property
    def name(self) -> str:
        return name_of(self.first)


class LogChunks:
    """The chunks of one log: what is to be written and deleted as lines are added.

    Remembers what could not be written, so that it is written later; never more than the limits allow.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._head: list[Chunk] = []
        self._tail: deque[Chunk] = deque()
        self._head_bytes = self._tail_bytes = 0
        self._open: Chunk | None = None
        self._stale: dict[str, None] = {}  # The names of chunks to delete, in order.

    def add(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Add encoded lines, with their numbers, in order."""
        for number, encoded in lines:
            chunk = self._open
            if chunk is None or (chunk.size and chunk.size + len(encoded) > self._limits.chunk):
                chunk = self._begin(number)
            chunk.body += encoded
            chunk.size += len(encoded)
            if chunk.is_head:
                self._head_bytes += len(encoded)
            else:
                self._tail_bytes += len(encoded)
                self._trim()

    def unsaved(self) -> list[Chunk]:
        return [each for each in (*self._head, *self._tail) if each.saved_size < each.size]

    def mark_saved(self, chunk: Chunk, size: int) -> None:
        chunk.saved_size = size
        if chunk is not self._open and size == chunk.size:
            chunk.body = bytearray()

    def stale(self) -> list[str]:
        return list(self._stale)

    def mark_deleted(self, names: Iterable[str]) -> None:
        for name in names:
            self._stale.pop(name, None)

    @property
    def kept_bytes(self) -> int:
        return self._head_bytes + self._tail_bytes

    def _begin(self, number: int) -> Chunk:
        if (full := self._open) is not None and full.saved_size == full.size:
            full.body = bytearray()
        is_head = not self._tail and self._head_bytes + self._limits.chunk <= self._limits.head
        self._open = chunk = Chunk(number, is_head)
        (self._head if is_head else self._tail).append(chunk)
        return chunk

    def _trim(self) -> None:
        while self._tail_bytes > self._limits.tail and len(self._tail) > 1:
            dropped = self._tail.popleft()
            self._tail_bytes -= dropped.size
            if dropped.saved_size:
                self._stale[dropped.name] = None
