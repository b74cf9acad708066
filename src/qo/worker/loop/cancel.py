"""Asking a handler to stop, with the reason. Each attempt has one token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum


class Why(StrEnum):
    """Why an attempt is to stop. It decides the outcome of the claim once the handler has stopped."""

    CANCELLED = "cancelled while running"  # On request: no further attempt.
    TIMEOUT = "timed out"  # A failed attempt.
    SHUTDOWN = "the worker is shutting down"  # Given back, at no cost.
    LOST = "the lease was lost"  # Nothing is written: another attempt may be under way.


class Stopped(Exception):
    """Raised by ``CancelToken.check`` in a handler that was asked to stop. Do not catch it."""


class CancelToken:
    """May be used from any thread. The first reason given stays."""

    def __init__(self) -> None:
        self._why: Why | None = None
        self._callbacks: list[Callable[[Why], None]] = []
        self._lock = threading.Lock()
        self._event: threading.Event | None = None  # Made by the first call of ``wait``.

    @property
    def requested(self) -> bool:
        return self._why is not None

    @property
    def why(self) -> Why | None:
        return self._why

    def request(self, why: Why) -> bool:
        """Ask the handler to stop; False if it was asked before."""
        with self._lock:
            if self._why is not None:
                return False
            self._why = why
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(why)
        return True

    def on_request(self, callback: Callable[[Why], None]) -> None:
        """Call ``callback`` when the handler is asked to stop; at once if it was asked before."""
        with self._lock:
            if self._why is None:
                self._callbacks.append(callback)
                return
        callback(self._why)

    def check(self) -> None:
        """Raise Stopped if the handler was asked to stop. For loops in plain functions, which cannot be interrupted."""
        if self._why is not None:
            raise Stopped(str(self._why))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until asked to stop (True) or the time is over. For plain functions, in place of ``time.sleep``."""
        if self._event is None:
            self._event = event = threading.Event()
            self.on_request(lambda why: event.set())
        return self._event.wait(timeout_s)
