"""How signals end a worker: the first drains, the second cancels, the third kills.

Signal handlers here set flags and nothing else, and a thread of its own watches the deadlines: neither an event loop
that is blocked nor a thread that hangs can keep the process from ending in time.
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

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # The last comes when a terminal is closed.


def stop_on_signals(stopped: asyncio.Event, again: Callable[[], object] | None = None) -> Callable[[], None]:
    """Set the event on a stop signal, for what can end at any time; returns what undoes that. ``again``: what to do on
    each further one."""
    loop = asyncio.get_running_loop()
    heeded = _heeded()

    def heed() -> None:
        if stopped.is_set() and again is not None:
            again()
        stopped.set()

    for number in heeded:
        loop.add_signal_handler(number, heed)

    def restore() -> None:
        for number in heeded:
            loop.remove_signal_handler(number)

    return restore


def _heeded() -> list[signal.Signals]:
    """All but SIGHUP where it is ignored, as nohup has it. To ignore SIGINT, as shells have it for what they start in
    the background, is no wish: who sends it to such a process means it."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in SIGNALS if not (ignored and number is signal.SIGHUP)]


class Shutdown:
    """Use from the main thread, as signals want it."""

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
        """``drain`` and ``cancel`` are called in a signal handler, so they must return at once. Only with ``kills``
        is the process ended whatever hangs: for a process that is nothing but a worker."""
        self._acts = (drain, cancel)
        self._patience_s = (drain_s + cancel_s + exit_s, cancel_s + exit_s)
        self._kills = kills
        self._count = 0
        self._status = 1
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        for number in _heeded():
            self._before[number] = signal.signal(number, self._on_signal)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._status = 128 + number
        self._count += 1
        if self._count <= len(self._acts):
            self._acts[self._count - 1]()
            self._watch(self._patience_s[self._count - 1])
        elif self._kills:
            os.write(2, b"killed by a third signal: leases will run out\n")
            os._exit(self._status)

    def _watch(self, patience_s: float) -> None:
        if self._kills:
            threading.Thread(target=self._wait, args=(patience_s,), name="qo-shutdown", daemon=True).start()

    def _wait(self, patience_s: float) -> None:
        time.sleep(patience_s)
        # Not through logging: whoever hangs may hold its lock.
        os.write(
            2, f"the worker did not end within {patience_s:g} s: it is killed, its leases will run out\n".encode()
        )
        os._exit(self._status)
