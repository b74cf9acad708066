"""The one thread that owns a SQLite file, and writes for everybody who waits in one transaction.

Callers on any event loop hand in operations. While the thread is busy with some, more gather; it then takes all
of them at once. So the cost of a transaction, and of waking threads, is shared by as many as there are.
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

BATCH_MAX = 512  # The write lock is given up between batches, so that other processes get their turn.

# Plain tuples: some are made for every operation, and a named one costs five times as much to make.
_Future = asyncio.Future[Any]
_Request = tuple[Callable[..., Any], tuple[Any, ...], bool, _Future]  # Operation, arguments, whether it writes.
_Answer = tuple[_Future, Any, Exception | None]  # A value or an error.


_forks = 0  # How many forks lie between this process and the one that first imported this module.


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class SqliteThread:
    """Runs operations of ``objects``, which belong to its thread from now on until ``stop``.

    The thread never keeps the interpreter from exiting.
    """

    def __init__(self, objects: SqliteObjects, checkpoints: Checkpoints, name: str) -> None:
        self._objects = objects
        self._checkpoints = checkpoints
        self._name = name
        self._forks = _forks
        self._stopped = False
        self._waiting: list[_Request] = []
        # Reentrant, because the garbage collector may call ``stop`` at any moment in any thread.
        self._gate = threading.RLock()
        self._work = threading.Lock()  # Free when there is something to do; taken by the thread as it does it.
        self._work.acquire()
        self._thread = threading.Thread(target=self._run, name="qo-store", daemon=True)
        self._thread.start()

    def read(self, operation: Callable[[SqliteObjects, *Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        return self._hand_in(operation, arguments, False)

    def write(self, operation: Callable[[SqliteObjects, *Ts], T], *arguments: *Ts) -> asyncio.Future[T]:
        return self._hand_in(operation, arguments, True)

    def stop(self) -> None:
        """Take nothing more in. What was handed in before is still done; ``join`` waits for that."""
        with self._gate:
            if self._stopped:
                return
            self._stopped = True
            if not self._waiting:
                self._work.release()

    def join(self) -> None:
        self._thread.join()

    def _hand_in(self, operation: Callable[..., Any], arguments: tuple[Any, ...], writing: bool) -> _Future:
        if self._forks != _forks:
            raise UsageError(f"{self._name} was opened before this process was forked: open it in the child")
        future: _Future = asyncio.get_running_loop().create_future()
        with self._gate:
            if self._stopped:
                raise UsageError(f"{self._name} is closed")
            self._waiting.append((operation, arguments, writing, future))
            if len(self._waiting) == 1:
                self._work.release()
        return future

    def _run(self) -> None:
        last = False
        while not last:
            self._work.acquire()
            with self._gate:
                requests, self._waiting = self._waiting, []
                last = self._stopped
            for start in range(0, len(requests), BATCH_MAX):
                _settle(self._answers(requests[start : start + BATCH_MAX]))
        self._checkpoints.stop()
        with contextlib.suppress(sqlite3.Error):  # Every answer was given; nobody is left to tell.
            self._objects.close()

    def _answers(self, batch: Sequence[_Request]) -> list[_Answer]:
        """Do all of it in one transaction. Whoever is refused is refused alone."""
        try:
            self._objects.begin(writing=any(writing for _, _, writing, _ in batch))
            answers = self._answer_each(batch)
            if answers is not None:
                self._objects.commit()
                self._checkpoints.after_commit()
                return answers
        except sqlite3.Error as error:
            self._roll_back()
            return [(future, None, self._unavailable(error)) for _, _, _, future in batch]
        return [answer for request in batch for answer in self._answers([request])]

    def _answer_each(self, batch: Sequence[_Request]) -> list[_Answer] | None:
        """None if the database itself failed at one of several: all was undone, and each is to be tried alone."""
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
        with contextlib.suppress(sqlite3.Error):  # The error that led here says more.
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
        with contextlib.suppress(RuntimeError):  # The loop was closed: nobody waits there any more.
            loop.call_soon_threadsafe(_resolve, same_loop)


def _resolve(answers: Sequence[_Answer]) -> None:
    for future, value, error in answers:
        if future.done():
            continue  # Cancelled meanwhile.
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
