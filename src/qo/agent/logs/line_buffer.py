"""The lines of one attempt that are not written yet. Bounded: an operator may print faster than a bucket takes it.

Called for everything that an operator prints, so it only assembles lines; whoever takes them redacts and encodes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from qo.core.run_log import LINE_CHARS_MAX, Limits

# Kept beyond the limit of a line until secrets were removed: half a secret would not be recognised.
MARGIN_CHARS = 4_096
_CHARS_MAX = LINE_CHARS_MAX + MARGIN_CHARS
_LINE_COST = 80  # Roughly what a line takes beside its text.
_NOTHING = ("", 0)
PRINTED_MAX = 4_096  # Pieces of text that wait before lines are made of them.


class RawLine(NamedTuple):
    n: int
    at: float
    stream: str
    text: str
    length: int  # Of the line before it was cut.
    level: str | None = None
    logger: str | None = None


class LineBuffer:
    """Keeps the beginning of the log, and the newest lines after it. Call it from any thread."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()  # Guards all but the first.
        # What was printed: the stream, the text and, if it has a line end, the time.
        self._printed: deque[tuple[str, str, float | None]] = deque()
        self._count = 0
        self._head_left = limits.head
        self._ring_max = limits.tail
        self._head: list[RawLine] = []
        self._ring: deque[RawLine] = deque()
        self._ring_chars = 0
        self._unfinished: dict[str, tuple[str, int]] = {}  # By stream: text without a line end, and its length.

    def write(self, stream: str, text: str) -> None:
        """Add what was printed. ``print`` calls this several times for a line, so it does almost nothing."""
        self._printed.append((stream, text, self._now() if "\n" in text else None))
        if len(self._printed) > PRINTED_MAX:
            with self._lock:
                self._make_lines()

    def add(self, at: float, stream: str, text: str, level: str | None = None, logger: str | None = None) -> None:
        """Add a record, which may have several lines."""
        with self._lock:
            self._make_lines()
            for part in text.split("\n"):
                self._append(stream, part[:_CHARS_MAX], len(part), at, level, logger)

    def finish_lines(self) -> None:
        """End the lines that were not finished: nothing follows."""
        with self._lock:
            self._make_lines()
            for stream, unfinished in self._unfinished.items():
                self._append(stream, *unfinished, self._now())
            self._unfinished.clear()

    def take(self) -> list[RawLine]:
        with self._lock:
            self._make_lines()
            lines = [*self._head, *self._ring]
            self._head, self._ring, self._ring_chars = [], deque(), 0
            return lines

    @property
    def is_empty(self) -> bool:
        return not (self._head or self._ring or self._printed)

    @property
    def has_lines(self) -> bool:
        """Whether anything was ever printed."""
        return self._count > 0 or bool(self._unfinished) or bool(self._printed)

    def _make_lines(self) -> None:
        """Make lines of what was printed. Other threads may print meanwhile."""
        printed, unfinished = self._printed, self._unfinished
        while printed:
            stream, text, at = printed.popleft()
            before = unfinished.get(stream, _NOTHING)
            if at is None:
                if text:
                    unfinished[stream] = _join(before, text)
            elif text == "\n":  # By far the most frequent, since ``print`` writes it by itself.
                unfinished.pop(stream, None)
                self._append(stream, before[0], before[1], at)
            else:
                *parts, rest = text.split("\n")
                for part in parts:
                    line = _join(before, part)
                    self._append(stream, line[0], line[1], at)
                    before = _NOTHING
                if rest:
                    unfinished[stream] = _join(_NOTHING, rest)
                else:
                    unfinished.pop(stream, None)

    def _append(
        self,
        stream: str,
        text: str,
        length: int,
        at: float,
        level: str | None = None,
        logger: str | None = None,
    ) -> None:
        self._count += 1
        if "\r" in text:
            text = _last_overwrite(text)
            length = len(text)
        line = RawLine(self._count, at, stream, text, length, level, logger)
        cost = len(text) + _LINE_COST
        if self._head_left > 0:
            self._head_left -= cost
            self._head.append(line)
            return
        self._ring.append(line)
        self._ring_chars += cost
        while self._ring_chars > self._ring_max:
            self._ring_chars -= len(self._ring.popleft().text) + _LINE_COST


def _join(unfinished: tuple[str, int], text: str) -> tuple[str, int]:
    """Return a line that goes on, with its length; only so much of it is kept."""
    before, length = unfinished
    if len(before) + len(text) <= _CHARS_MAX and "\r" not in text:
        return before + text, length + len(text)
    if "\r" in text:  # A progress bar: what is overwritten is never seen.
        line = before + text
        end = "\r" if line.endswith("\r") else ""  # What comes next overwrites it.
        joined = _last_overwrite(line)[:_CHARS_MAX] + end
        return joined, len(joined)
    return before + text[: max(0, _CHARS_MAX - len(before))], length + len(text)


def _last_overwrite(text: str) -> str:
    """Return what a terminal would show of a line that is written over again and again."""
    return text.rstrip("\r").rpartition("\r")[2]
