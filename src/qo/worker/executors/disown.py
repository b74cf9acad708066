"""Letting the process end although a coroutine does not."""

from __future__ import annotations

import asyncio
import threading


def disown(attempt: asyncio.Task[None]) -> None:
    """Let the process end although this task will not."""
    # asyncio.run() awaits all tasks before it returns: this one it would await for ever.
    asyncio.tasks._unregister_task(attempt)  # pyright: ignore[reportPrivateUsage]
    # When the interpreter deletes a coroutine, it asks it once more to stop, and waits. It never deletes what the
    # stack of a daemon thread refers to.
    threading.Thread(target=_hold, args=(attempt,), name="qo-disowned", daemon=True).start()


def _hold(attempt: asyncio.Task[None]) -> None:
    threading.Event().wait()
