"""Sends what an attempt prints and logs to its log, and on to where it would have gone.

The attempt is found by a context variable, which follows an asyncio task, a thread that an attempt starts and the calls
that it gives to a pool. So several attempts at a time are told apart in one process. A child process that inherits the
standard output of an attempt gets a pipe instead. Not seen: what is written to the file descriptors themselves, by
extension modules or ``os.system``, and the children of ``multiprocessing``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TextIO, cast

from qo.agent.logs.attempt_log import AttemptLog
from qo.agent.logs.child_output import with_pipes

_current: ContextVar[AttemptLog | None] = ContextVar("qo_attempt_log", default=None)
_lock = threading.Lock()
_users = 0
_restore: list[Callable[[], None]] = []

os.register_at_fork(after_in_child=lambda: _current.set(None))  # Nobody there writes the log.


def enter_log(log: AttemptLog | None) -> None:
    """From here on, what this context prints goes to this log. None: to no log."""
    _current.set(log)


@contextmanager
def outside_logs() -> Generator[None]:
    """Within the block, nothing goes to the log of the current attempt: for what outlives it."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def current_log() -> AttemptLog | None:
    return _current.get()


@contextmanager
def capturing() -> Generator[None]:
    """Within the block, the output of attempts in this process is captured. Blocks may overlap."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _install()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                while _restore:
                    _restore.pop()()


class _Stream:
    """Standard output or standard error, which also writes to the log of the current attempt."""

    def __init__(self, original: TextIO, name: str) -> None:
        self._original = original
        self._name = name
        self._write = original.write

    def write(self, text: str) -> int:
        count = self._write(text)
        log = _current.get()
        if log is not None:
            log.write(self._name, text)
        return count

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _Bytes:
        return _Bytes(self._original.buffer, self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __iter__(self) -> Any:
        return iter(self._original)


class _Bytes:
    """The bytes below such a stream."""

    def __init__(self, original: Any, name: str) -> None:
        self._original = original
        self._name = name

    def write(self, data: Any) -> int:
        count = self._original.write(data)
        log = _current.get()
        if log is not None:
            log.write(self._name, bytes(data).decode("utf-8", "replace"))
        return count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Handler(logging.Handler):
    """Takes the records that an attempt logs. Those of others pass it by."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _current.get() is not None

    def emit(self, record: logging.LogRecord) -> None:
        log = _current.get()
        if log is None:
            return
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        label = getattr(record, "run_label", None)  # The log of a run need not name it in each line.
        log.add("log", text.removeprefix(f"{label}: "), record.levelname.lower(), record.name)


def _install() -> None:
    for name in ("stdout", "stderr"):
        original = getattr(sys, name)
        if original is not None:
            _replace(sys, name, cast("TextIO", _Stream(original, name)))
    handler = _Handler()
    logging.getLogger().addHandler(handler)
    _restore.append(lambda: logging.getLogger().removeHandler(handler))
    _replace(threading.Thread, "start", _inheriting_start(threading.Thread.start))
    _replace(ThreadPoolExecutor, "submit", _inheriting_submit(ThreadPoolExecutor.submit))
    _replace(subprocess.Popen, "__init__", with_pipes(subprocess.Popen.__init__, current_log))


def _replace(target: Any, name: str, value: Any) -> None:
    original = getattr(target, name)
    setattr(target, name, value)

    def restore() -> None:
        if getattr(target, name) is value:  # Somebody else may have replaced it since.
            setattr(target, name, original)

    _restore.append(restore)


def _inheriting_start(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Let a thread that an attempt starts print to the log of the attempt."""

    def start_thread(self: threading.Thread) -> None:
        log = _current.get()
        if log is not None:
            run = self.run

            def run_in_log() -> None:
                _current.set(log)
                run()

            self.run = run_in_log
        start(self)

    return start_thread


def _inheriting_submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Let a call in a pool print to the log of the attempt that submitted it, whoever started the thread."""

    def submit_call(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        log = _current.get()
        return submit(self, _InLog(fn, log) if log is not None else fn, *args, **kwargs)

    return submit_call


class _InLog:
    def __init__(self, function: Callable[..., Any], log: AttemptLog) -> None:
        self._function = function
        self._log = log

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _current.set(self._log)
        try:
            return self._function(*args, **kwargs)
        finally:
            _current.reset(token)
