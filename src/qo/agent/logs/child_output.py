"""Pipes for child processes that would inherit the standard output of an attempt."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from qo.agent.logs.attempt_log import DRAIN_S, AttemptLog

READ_BYTES = 65_536
_PLACES = {"stdout": 4, "stderr": 5}  # Among the positional arguments of Popen, itself not counted.


def with_pipes(init: Callable[..., None], current: Callable[[], AttemptLog | None]) -> Callable[..., None]:
    """Return a constructor of Popen that gives the child a pipe for each stream it would inherit.

    What comes through a pipe goes to the log of the attempt, and on to where the child would have written.
    """

    def start(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
        log = current()
        inherited = [name for name, place in _PLACES.items() if len(args) <= place and kwargs.get(name) is None]
        if log is None or not inherited:
            init(self, *args, **kwargs)
            return
        pipes = {name: os.pipe() for name in inherited}
        try:
            init(self, *args, **{**kwargs, **{name: write for name, (_, write) in pipes.items()}})
        except BaseException:
            for read, _ in pipes.values():
                os.close(read)
            raise
        finally:
            for _, write in pipes.values():
                os.close(write)
        readers = [_read_in_background(log, name, read) for name, (read, _) in pipes.items()]
        _wait_for_output(self, readers)

    return start


def _wait_for_output(process: subprocess.Popen[Any], readers: list[threading.Thread]) -> None:
    """Let whoever waits for the process also wait a little for its output: what is printed next comes after it."""
    wait = process.wait

    def wait_and_read(timeout: float | None = None) -> int:
        code = wait(timeout)
        until = time.monotonic() + DRAIN_S  # A child of the child may keep the pipe open.
        for each in readers:
            each.join(max(0.0, until - time.monotonic()))
        return code

    process.wait = wait_and_read


def _read_in_background(log: AttemptLog, name: str, descriptor: int) -> threading.Thread:
    # The streams of the process itself, which write to no log: this thread would write each line a second time.
    target = getattr(sys, f"__{name}__")

    def read() -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with os.fdopen(descriptor, "rb", buffering=0) as pipe:
            while data := pipe.read(READ_BYTES):
                text = decoder.decode(data)
                log.write(name, text)
                if target is not None:
                    target.write(text)
                    target.flush()

    thread = threading.Thread(target=read, name="qo-child-output", daemon=True)
    thread.start()
    log.await_child(thread.join)
    return thread
