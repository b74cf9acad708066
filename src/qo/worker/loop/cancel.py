"""Asking a handler to stop, and saying why. One token for each attempt."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum


class Why(StrEnum):
    """Decides what becomes of the claim once the handler has stopped."""

    CANCELLED = "cancelled while running"  # Somebody asked for it: no further attempt.
    TIMEOUT = "timed out"  # A failed attempt.
    SHUTDOWN = "the worker is shutting down"  # Given back, at no cost.
    LOST = "the lease was lost"  # Nothing is written: another attempt may be under way.


class Stopped(Exception):
    """Raised by ``CancelToken.check`` in a handler that was asked to stop. Let it pass."""


class CancelToken:
    """May be asked from any thread. The first reason given stays."""

    def __init__(self) -> None:
        self._why: Why | None = None
        self._callbacks: list[Callable[[Why], None]] = []
        self._lock = threading.Lock()
        self._asked: threading.Event | None = None  # Made by the first who waits.

    @property
    def requested(self) -> bool:
        return self._why is not None

    @property
    def why(self) -> Why | None:
        return self._why

    def request(self, why: Why) -> bool:
        """Ask the handler to stop; False if somebody has asked before."""
        with self._lock:
            if self._why is not None:
                return False
            self._why = why
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(why)
        return True

    def on_request(self, callback: Callable[[Why], None]) -> None:
        """Call this when the handler is asked to stop; at once if it has been."""
        with self._lock:
            if self._why is None:
                self._callbacks.append(callback)
                return
        callback(self._why)

    def check(self) -> None:
        """For loops in plain functions, which cannot be interrupted: raises Stopped once asked to stop."""
        if self._why is not None:
            raise Stopped(str(self._why))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until asked to stop (True) or the time is over. For plain functions: a sleep that can be ended."""
        if self._asked is None:
            self._asked = asked = threading.Event()
            self.on_request(lambda why: asked.set())
        return self._asked.wait(timeout_s)
