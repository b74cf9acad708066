"""A child process, as its worker sees it."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from multiprocessing import spawn
from pathlib import Path
from typing import Any, cast

import qo
from qo.worker.executors.messages import HEADER, Message, Start, frame

LAST_WORDS_S = 0.5  # Between a child's death and the moment when nothing more is expected from it.
_PROGRAM = (
    "import sys; sys.path.append({home!r}); from qo.worker.executors.child import main; main({line}, {lifeline})"
)


class Ended(Exception):
    """The child has ended; the text says how."""


class Process:
    """To be used by one event loop; only ``_watch`` runs elsewhere. A child ends when its worker does."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        lifeline: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._popen = popen
        self._lifeline = lifeline
        self._reader = reader
        self._writer = writer
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()  # Its exit status.
        self.tasks = 0  # Done so far.
        self._receiving = False
        # asyncio's own way to wait for a child depends on the loop's kind; a thread does not.
        self._watcher = threading.Thread(target=self._watch, args=(loop,), name="qo-child", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def post(self, message: Message) -> None:
        """Say something that is short. A child that has ended does not hear it."""
        self._writer.write(frame(message))

    async def send(self, message: Message) -> None:
        self.post(message)
        with suppress(ConnectionError):  # Whoever receives will learn how it ended.
            await self._writer.drain()

    async def receive(self) -> Message:
        """What the child says next. Raises Ended."""
        self._receiving = True
        try:
            header = await self._reader.readexactly(HEADER.size)
            body = await self._reader.readexactly(HEADER.unpack(header)[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.transport.abort()
            raise Ended(await self._epitaph()) from None
        finally:
            self._receiving = False
        return pickle.loads(body)

    def kill(self) -> None:
        self._popen.kill()

    def close(self, timeout_s: float) -> None:
        """Block for a moment until it has ended, and listen no more."""
        self._watcher.join(timeout_s)
        self._writer.transport.abort()

    async def _epitaph(self) -> str:
        done, _ = await asyncio.wait({self.ended}, timeout=LAST_WORDS_S)
        if not done:
            self.kill()
            return (
                "the child process closed the line to its worker: a handler must not close files it did not open"
            )
        return f"the child process {_manner(self.ended.result())}"

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._popen.wait()
        os.close(self._lifeline)
        with suppress(RuntimeError):  # The loop may have been closed: nobody is left to tell.
            loop.call_soon_threadsafe(self._bury, status)

    def _bury(self, status: int) -> None:
        self.ended.set_result(status)
        if self._receiving:
            # Its end comes after its last words, unless a process that the child had forked holds the line as well.
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._writer.transport.abort)
        else:
            self._writer.transport.abort()


async def start_process() -> Process:
    """Start a child. It takes its jobs at once, and does them when it has loaded what it needs."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            popen, lifeline = _spawn(theirs.fileno())
        except BaseException:
            writer.close()
            raise
    child = Process(popen, lifeline, reader, writer)
    child.post(Start(_surroundings(), _log_levels()))
    return child


def _spawn(line: int) -> tuple[subprocess.Popen[bytes], int]:
    """A fresh interpreter that inherits its end of the line, one of a pipe, and the standard output.

    Not by multiprocessing: its children may have no children of their own, and at exit it waits for them.
    """
    theirs, lifeline = os.pipe()
    program = _PROGRAM.format(home=str(Path(qo.__file__).parents[1]), line=line, lifeline=theirs)
    flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # pyright: ignore
    # -P: a file in the working directory that is called like a module of ours or Python's is not loaded instead.
    command = [os.fsdecode(spawn.get_executable()), *flags, "-P", "-c", program]
    # Ctrl+C must not hit it before it has said that it does not care.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(line, theirs))
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(theirs)
    return popen, lifeline


def _surroundings() -> dict[str, Any]:
    known = spawn.get_preparation_data("qo-child")
    return {name: known[name] for name in ("name", "sys_path", "sys_argv", "orig_dir", "dir", "start_method")}


def main_module() -> dict[str, Any]:
    """How a child loads the module that this process was started with."""
    known = spawn.get_preparation_data("qo-child")
    return {name: known[name] for name in ("init_main_from_name", "init_main_from_path") if name in known}


def _log_levels() -> dict[str, int]:
    known = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    return {each.name: each.level for each in known if isinstance(each, logging.Logger) and each.level}


def _manner(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"died of {name}" + (" (out of memory?)" if -status == signal.SIGKILL else "")
