"""Writes the logs of all attempts of a process, from a thread of its own: a busy event loop does not delay them.

A log is written when there is something new, at growing intervals; never a request per line. An attempt that prints
nothing costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from qo.agent.logs.attempt_log import AttemptLog
from qo.core import run_log
from qo.core.run_log import Limits
from qo.errors import AccessDenied, StoreError
from qo.store.directory import Directory

log = logging.getLogger(__name__)

FINISH_S = 3.0  # How long the end of an attempt waits for its log.
FAILURES_MAX = 20  # In a row; then a log is only tried again when there is more of it.
CLOSE_S = 5.0  # How long the end of the process waits for all of them.

OpenRoot = Callable[[str], Awaitable[Directory]]


class LogThread:
    """Start it once; call ``open`` and ``finish`` in any event loop."""

    def __init__(self, open_root: OpenRoot, limits: Limits) -> None:
        """``open_root`` opens a data root; it is called in this thread's event loop, when the first log is written."""
        self._open_root = open_root
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._opening = asyncio.Lock()
        self._roots: dict[str, Directory] = {}
        self._undeletable: set[str] = set()  # Roots in which this worker may not delete.
        self._scheduled: dict[AttemptLog, asyncio.TimerHandle] = {}
        self._flushing: dict[AttemptLog, asyncio.Task[None]] = {}
        self._thread = threading.Thread(target=self._run, name="qo-logs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, and stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def open(self, location: str, now: datetime) -> AttemptLog:
        """Open the log of an attempt. Nothing is written before it has a line. ``now``: by the dispatcher's clock."""
        return AttemptLog(location, self._limits, self._wake, now.timestamp())

    async def finish(self, attempt: AttemptLog) -> None:
        """Write the end of a log, so that whoever sees that the attempt has ended can read all of it.

        A bucket that does not answer is not waited for; the log is then written later.
        """
        if attempt.has_children:
            await asyncio.to_thread(attempt.close)
        else:
            attempt.close()
        if not attempt.has_lines:
            return
        writing = asyncio.run_coroutine_threadsafe(self._write_now(attempt), self._loop)
        await asyncio.wait({asyncio.wrap_future(writing)}, timeout=FINISH_S)

    def _wake(self, attempt: AttemptLog) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._schedule, attempt)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._close())
            self._loop.close()

    async def _close(self) -> None:
        pending = [self._begin_flush(each) for each in list(self._scheduled)]
        if pending or self._flushing:
            await asyncio.wait({*pending, *self._flushing.values()}, timeout=CLOSE_S)
        for timer in self._scheduled.values():
            timer.cancel()
        for task in self._flushing.values():
            task.cancel()
        await asyncio.gather(*self._flushing.values(), return_exceptions=True)
        for root in self._roots.values():
            await root.close()

    def _schedule(self, attempt: AttemptLog) -> None:
        if attempt in self._scheduled or attempt in self._flushing:
            return
        delay_s = run_log.flush_delay_s(attempt.flushes + attempt.failures)
        self._scheduled[attempt] = self._loop.call_later(delay_s, self._begin_flush, attempt)

    def _begin_flush(self, attempt: AttemptLog) -> asyncio.Task[None]:
        if (timer := self._scheduled.pop(attempt, None)) is not None:
            timer.cancel()
        task = self._flushing[attempt] = self._loop.create_task(self._flush(attempt))
        return task

    async def _write_now(self, attempt: AttemptLog) -> None:
        if (running := self._flushing.get(attempt)) is not None:
            await asyncio.wait({running})
        await asyncio.wait({self._flushing.get(attempt) or self._begin_flush(attempt)})

    async def _flush(self, attempt: AttemptLog) -> None:
        try:
            attempt.poll()
            await self._write(attempt)
            attempt.flushes += attempt.has_lines
            attempt.failures = 0
        except (StoreError, OSError) as error:
            attempt.failures += 1
            if attempt.failures == 1:
                log.warning("the log %s cannot be written now: %s", attempt.location, error)
        except Exception:
            attempt.failures += 1
            log.exception("the log %s cannot be written", attempt.location)
        finally:
            del self._flushing[attempt]
        if attempt.failures > FAILURES_MAX:
            return  # Whatever is printed next tries again.
        if attempt.is_unwritten or attempt.is_followed:
            self._schedule(attempt)

    async def _write(self, attempt: AttemptLog) -> None:
        chunks = attempt.chunks
        attempt.encode_pending()
        unsaved = chunks.unsaved()
        if not unsaved and not chunks.stale():
            return
        location, prefix = run_log.split_location(attempt.location)
        root = await self._directory(location)
        for chunk in unsaved:
            body = bytes(chunk.body)
            await root.write(f"{prefix}{chunk.name}", body)
            chunks.mark_saved(chunk, len(body))
        if names := chunks.stale():
            await self._delete(root, location, [f"{prefix}{name}" for name in names])
            chunks.mark_deleted(names)

    async def _delete(self, root: Directory, location: str, paths: Sequence[str]) -> None:
        """Delete chunks; a worker that may only write empties them, so that a log is bounded whatever it may do."""
        if location not in self._undeletable:
            try:
                await root.delete(paths)
                return
            except AccessDenied as error:
                log.info("files below %s cannot be deleted, and are emptied instead: %s", location, error)
                self._undeletable.add(location)
        for path in paths:
            await root.write(path, b"")

    async def _directory(self, location: str) -> Directory:
        async with self._opening:
            if location not in self._roots:
                self._roots[location] = await self._open_root(location)
            return self._roots[location]
