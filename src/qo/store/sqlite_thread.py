"""The thread that owns a SQLite file. It runs all waiting operations in one transaction.

Callers on any event loop submit operations. While the thread is busy, more of them queue up; it then takes all of them
at once, so that they share the cost of a transaction and of waking threads.

The thread is woken when the event loop has gone through what it had to do, not by the first operation. It needs the
interpreter's lock between any two statements, and a busy event loop keeps that for milliseconds: woken early, the
thread would take the file's write lock, for which other processes wait, and then wait for the event loop with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple

from qo.errors import Unavailable, UsageError
from qo.store.sqlite_checkpoint import Checkpoints
from qo.store.sqlite_objects import SqliteObjects

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

BATCH_MAX = 512  # The write lock is released between batches, so that other processes can write.

# Plain tuples: each operation creates some, and a named tuple takes five times as long to create.
_Future = asyncio.Future[Any]
_Request = tuple[Callable[..., Any], tuple[Any, ...], bool, _Future]  # Operation, arguments, whether it writes.
_Answer = tuple[_Future, Any, Exception | None]  # A value or an error.


_forks = 0  # How often this process was forked since this module was first imported.


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class SqliteThread:
    """Runs operations of ``objects``, which no other thread may use until ``stop``.

    The thread does not keep the interpreter from exiting.
    """

    def __init__(self, objects: SqliteObjects, checkpoints: Checkpoints, name: str) -> None:
        self._objects = objects
        self._checkpoints = checkpoints
        self._name = name
        self._forks = _forks
        self._stopped = False
        self._waiting: list[_Request] = []
        self._waker: asyncio.AbstractEventLoop | None = None  # The loop that is about to wake the thread.
        self._is_woken = False
        # Reentrant, because the garbage collector may call ``stop`` at any moment in any thread.
        self._gate = threading.RLock()
        self._work = threading.Lock()  # Released when there are requests; acquired by the thread.
        self._work.acquire()
        self._thread = threading.Thread(target=self._run, name="qo-store", daemon=True)
        self._thread.start()

    def read(self, operation: Callable[[SqliteObjects, *Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        return self._submit(operation, arguments, False)

    def write(self, operation: Callable[[SqliteObjects, *Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        return self._submit(operation, arguments, True)

    def stop(self) -> None:
        """Accept no more requests. Those submitted before are still run; ``join`` waits for them."""
        with self._gate:
            if self._stopped:
                return
            self._stopped = True
            self._wake()

    def join(self) -> None:
        self._thread.join()

    def _submit(self, operation: Callable[..., Any], arguments: tuple[Any, ...], writing: bool) -> _Future:
        if self._forks != _forks:
            raise UsageError(f"{self._name} was opened before this process was forked: open it in the child")
        loop = asyncio.get_running_loop()
        future: _Future = loop.create_future()
        with self._gate:
            if self._stopped:
                raise UsageError(f"{self._name} is closed")
            self._waiting.append((operation, arguments, writing, future))
            if self._waker is not loop:  # Another one may have been closed before it could.
                self._waker = loop
                loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        with self._gate:
            self._waker = None
            if not self._is_woken:
                self._is_woken = True
                self._work.release()

    def _run(self) -> None:
        last = False
        while not last:
            self._work.acquire()
            with self._gate:
                requests, self._waiting, self._is_woken = self._waiting, [], False
                last = self._stopped
            for start in range(0, len(requests), BATCH_MAX):
                _settle(self._run_batch(requests[start : start + BATCH_MAX]))
        self._checkpoints.stop()
        with contextlib.suppress(sqlite3.Error):  # All replies were sent; nobody waits for this.
            self._objects.close()

    def _run_batch(self, batch: Sequence[_Request]) -> list[_Answer]:
        """Run all requests in one transaction. A refused request does not affect the others."""
        try:
            self._objects.begin(writing=any(writing for _, _, writing, _ in batch))
            answers = self._run_each(batch)
            if answers is not None:
                self._objects.commit()
                self._checkpoints.after_commit()
                return answers
        except sqlite3.Error as error:
            self._roll_back()
            return [(future, None, self._unavailable(error)) for _, _, _, future in batch]
        return [answer for request in batch for answer in self._run_batch([request])]

    def _run_each(self, batch: Sequence[_Request]) -> list[_Answer] | None:
        """Return None if the database failed at one of several requests: all were rolled back; run each by itself."""
        objects = self._objects
        answers: list[_Answer] = []
        for operation, arguments, _, future in batch:
            try:
                answers.append((future, operation(objects, *arguments), None))
            except sqlite3.Error:
                if len(batch) == 1:
                    raise
                self._roll_back()
                return None
            except Exception as error:
                # Without the frames of this thread, which would keep the whole batch alive.
                answers.append((future, None, error.with_traceback(None)))
        return answers

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # The first error says more.
            self._objects.rollback()

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        unavailable = Unavailable(f"{self._name} failed: {error}")
        unavailable.__cause__ = error.with_traceback(None)
        return unavailable


def _settle(answers: Sequence[_Answer]) -> None:
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Answer]] = defaultdict(list)
    for answer in answers:
        by_loop[answer[0].get_loop()].append(answer)
    for loop, same_loop in by_loop.items():
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits there any more.
            loop.call_soon_threadsafe(_resolve, same_loop)


def _resolve(answers: Sequence[_Answer]) -> None:
    for future, value, error in answers:
        if future.done():
            continue  # Cancelled meanwhile.
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
