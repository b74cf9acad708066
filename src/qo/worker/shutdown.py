"""Ending a worker by signals: the first drains, the second cancels, the third kills.

Signal handlers here only set flags, and a thread of its own watches the deadlines: neither a blocked event loop nor a
thread that hangs can keep the process from ending in time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # SIGHUP comes when a terminal is closed.


def stop_on_signals(stopped: asyncio.Event, again: Callable[[], object] | None = None) -> Callable[[], None]:
    """Set the event on a stop signal, and call ``again`` on each further one. Return a function that undoes this."""
    loop = asyncio.get_running_loop()
    numbers = handled_signals()

    def on_signal() -> None:
        if stopped.is_set() and again is not None:
            again()
        stopped.set()

    for number in numbers:
        loop.add_signal_handler(number, on_signal)

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    return restore


def handled_signals() -> list[signal.Signals]:
    """Return the stop signals, without SIGHUP if it is ignored, as under nohup. SIGINT counts even if it is ignored, as
    shells arrange for background processes: whoever sends it to such a process means it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (ignored and number is signal.SIGHUP)]


class Shutdown:
    """Installs the signal handlers of a worker. Use it from the main thread, as signals require."""

    def __init__(
        self,
        *,
        drain: Callable[[], object],
        cancel: Callable[[], object],
        drain_s: float,
        cancel_s: float,
        exit_s: float,
        kills: bool,
    ) -> None:
        """``drain`` and ``cancel`` are called in a signal handler, so they must return at once. With ``kills``, the
        process is ended even if something hangs: for a process that is only a worker."""
        self._actions = (drain, cancel)
        self._patience_s = (drain_s + cancel_s + exit_s, cancel_s + exit_s)
        self._kills = kills
        self._count = 0
        self._status = 1
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        for number in handled_signals():
            self._previous[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        for number, before in self._previous.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._status = 128 + number
        self._count += 1
        if self._count <= len(self._actions):
            self._actions[self._count - 1]()
            self._watch(self._patience_s[self._count - 1])
        elif self._kills:
            os.write(2, b"killed by a third signal: leases will run out\n")
            os._exit(self._status)

    def _watch(self, patience_s: float) -> None:
        if self._kills:
            threading.Thread(target=self._kill_after, args=(patience_s,), name="qo-shutdown", daemon=True).start()

    def _kill_after(self, patience_s: float) -> None:
        time.sleep(patience_s)
        # Not through logging: the thread that hangs may hold its lock.
        os.write(
            2, f"the worker did not end within {patience_s:g} s: it is killed, its leases will run out\n".encode()
        )
        os._exit(self._status)
