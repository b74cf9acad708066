"""Stopping a server by signals."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Generator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def stop_on_signals(stopped: asyncio.Event) -> Generator[None]:
    """Set ``stopped`` on SIGTERM, SIGINT or SIGHUP; a second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    signals = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # Ignored under nohup.
        signals.append(signal.SIGHUP)

    def restore() -> None:
        for number in signals:
            loop.remove_signal_handler(number)

    def stop() -> None:
        log.info("stopping after the work that is under way; a second signal stops at once")
        stopped.set()
        restore()

    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        restore()
