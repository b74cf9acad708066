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
from qo.worker.executors.child_messages import HEADER, Message, Start, frame

LAST_READ_S = 0.5  # How long after a child's death its last messages are read.
_PROGRAM = (
    "import sys; sys.path.append({home!r}); "
    "from qo.worker.executors.child import main; main({channel}, {lifeline})"
)


class Ended(Exception):
    """The child has ended; the text says how."""


class Process:
    """One child process. To be used by one event loop; only ``_watch`` runs elsewhere. It ends when its worker does."""

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
        self.tasks = 0  # Finished so far.
        self._receiving = False
        # How asyncio waits for a child depends on the kind of loop; a thread always works.
        self._watcher = threading.Thread(target=self._watch, args=(loop,), name="qo-child", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def post(self, message: Message) -> None:
        """Send a short message, without waiting. If the child has ended, nothing happens."""
        self._writer.write(frame(message))

    async def send(self, message: Message) -> None:
        self.post(message)
        with suppress(ConnectionError):  # ``receive`` raises Ended.
            await self._writer.drain()

    async def receive(self) -> Message:
        """Return the next message of the child. Raises Ended."""
        self._receiving = True
        try:
            header = await self._reader.readexactly(HEADER.size)
            body = await self._reader.readexactly(HEADER.unpack(header)[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.transport.abort()
            raise Ended(await self._describe_end()) from None
        finally:
            self._receiving = False
        return pickle.loads(body)

    def kill(self) -> None:
        self._popen.kill()

    def close(self, timeout_s: float) -> None:
        """Block until the child has ended, at most so long, and close the connection."""
        self._watcher.join(timeout_s)
        self._writer.transport.abort()

    async def _describe_end(self) -> str:
        ended, _ = await asyncio.wait({self.ended}, timeout=LAST_READ_S)
        if not ended:
            self.kill()
            return (
                "the child process closed the connection to its worker: "
                "a handler must not close files that it did not open"
            )
        return f"the child process {_describe_status(self.ended.result())}"

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        status = self._popen.wait()
        os.close(self._lifeline)
        with suppress(RuntimeError):  # The loop may have been closed.
            loop.call_soon_threadsafe(self._on_ended, status)

    def _on_ended(self, status: int) -> None:
        self.ended.set_result(status)
        if self._receiving:
            # The end of the stream comes after the last message, unless a process that the child forked holds it open.
            asyncio.get_running_loop().call_later(LAST_READ_S, self._writer.transport.abort)
        else:
            self._writer.transport.abort()


async def start_process() -> Process:
    """Start a child. It accepts jobs at once, and runs them when it has loaded what it needs."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            popen, lifeline = _spawn(theirs.fileno())
        except BaseException:
            writer.close()
            raise
    child = Process(popen, lifeline, reader, writer)
    child.post(Start(_preparation_data(), _log_levels()))
    return child


def _spawn(channel: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a new interpreter, which inherits its end of the connection, one end of a pipe, and the standard output.

    Not with multiprocessing: its children may have no children of their own, and at exit it waits for them.
    """
    theirs, lifeline = os.pipe()
    program = _PROGRAM.format(home=str(Path(qo.__file__).parents[1]), channel=channel, lifeline=theirs)
    flags = cast("list[str]", subprocess._args_from_interpreter_flags())  # pyright: ignore
    # -P: a file in the working directory must not be imported in place of a module of qo or Python.
    command = [os.fsdecode(spawn.get_executable()), *flags, "-P", "-c", program]
    # Ctrl+C must not reach the child before it ignores SIGINT.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(channel, theirs))
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(theirs)
    return popen, lifeline


def _preparation_data() -> dict[str, Any]:
    data = spawn.get_preparation_data("qo-child")
    return {name: data[name] for name in ("name", "sys_path", "sys_argv", "orig_dir", "dir", "start_method")}


def main_module() -> dict[str, Any]:
    """Return how a child loads the module that this process was started with."""
    data = spawn.get_preparation_data("qo-child")
    return {name: data[name] for name in ("init_main_from_name", "init_main_from_path") if name in data}


def _log_levels() -> dict[str, int]:
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    return {each.name: each.level for each in loggers if isinstance(each, logging.Logger) and each.level}


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"died of {name}" + (" (out of memory?)" if -status == signal.SIGKILL else "")
