"""The log of one attempt, while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from qo.agent.logs.line_buffer import LineBuffer, RawLine
from qo.core import run_log
from qo.core.run_log import Limits, LogChunks
from qo.worker.observe.secrets import redact_lines

Wake = Callable[["AttemptLog"], None]
DRAIN_S = 0.2  # For the last output of child processes that have ended.


class Clock:
    """The time of the dispatcher, as far as it is known here."""

    def __init__(self, began_at: float) -> None:
        self._offset = began_at - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


class Follower(Protocol):
    """A source of lines beside what is printed: the driver of Spark."""

    def read(self) -> list[tuple[float, str, str, str]]:
        """Return time, level, logger and text of each new line."""
        ...

    def close(self) -> None: ...


class AttemptLog:
    """Takes what the attempt prints, from any thread; ``LogThread`` writes it."""

    def __init__(self, location: str, limits: Limits, wake: Wake, began_at: float) -> None:
        """``began_at``: the time now, by the clock of the dispatcher, so that logs of all workers compare."""
        self.location = location
        self._clock = Clock(began_at)
        self.chunks = LogChunks(limits)
        self.flushes = 0
        self.failures = 0  # In a row.
        self._buffer = LineBuffer(limits, self._clock)
        self._wake = wake
        self._is_awake = False  # Whoever writes it knows that there is something.
        self._closed = False
        self._followers: list[Follower] = []
        self._polling = threading.Lock()
        self._children: list[Callable[[float], None]] = []

    def write(self, stream: str, text: str) -> None:
        if self._closed:
            return
        self._buffer.write(stream, text)
        if not self._is_awake:
            self._is_awake = True
            self._wake(self)

    def add(self, stream: str, text: str, level: str | None = None, logger: str | None = None) -> None:
        if self._closed:
            return
        self._buffer.add(self._clock(), stream, text, level, logger)
        if not self._is_awake:
            self._is_awake = True
            self._wake(self)

    def follow(self, follower: Follower) -> None:
        """Have a source of lines polled until the attempt ends, and once more then."""
        self._followers.append(follower)
        self._wake(self)

    def await_child(self, join: Callable[[float], None]) -> None:
        """Register a child process: ``join`` waits so long until its output was read."""
        self._children.append(join)

    def close(self) -> None:
        """Take nothing more: the attempt has ended. May block a little, for child processes."""
        until = time.monotonic() + DRAIN_S
        for join in self._children:
            join(max(0.0, until - time.monotonic()))
        self.poll()
        self._closed = True
        for follower in self._followers:
            follower.close()
        self._buffer.finish_lines()

    def poll(self) -> None:
        if not self._followers or self._closed:
            return
        with self._polling:
            for follower in self._followers:
                for at, level, logger, text in follower.read():
                    self._buffer.add(at, "spark", text, level, logger)

    @property
    def has_children(self) -> bool:
        return bool(self._children)

    @property
    def is_followed(self) -> bool:
        return bool(self._followers) and not self._closed

    @property
    def is_unwritten(self) -> bool:
        """Whether there are lines to write."""
        return not self._buffer.is_empty or bool(self.chunks.unsaved()) or bool(self.chunks.stale())

    @property
    def has_lines(self) -> bool:
        return self._buffer.has_lines

    def encode_pending(self) -> None:
        """Move the pending lines to the chunks, without secrets."""
        self._is_awake = False  # Before the lines are taken: what is printed from now on wakes again.
        lines = self._buffer.take()
        if not lines:
            return
        texts = redact_lines([each.text for each in lines])
        self.chunks.add((raw.n, _encode(raw, text)) for raw, text in zip(lines, texts, strict=True))


def _encode(raw: RawLine, text: str) -> bytes:
    # What redaction has removed does not count as cut.
    text = run_log.cut(text, raw.length if raw.length > len(raw.text) else len(text))
    text = text.encode("utf-8", "replace").decode()  # Lone surrogates cannot be written.
    return run_log.encode(run_log.Line(raw.n, round(raw.at, 3), raw.stream, text, raw.level, raw.logger))
