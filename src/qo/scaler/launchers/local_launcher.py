"""Workers as processes of this machine.

Each place has a file, whose lock its worker holds while it lives: a lock tells a living worker from a dead one for
certain, also to a scaler that did not start it, and nobody can fill a place twice. The file says the process id.

    DIRECTORY/RUNTIME-PLACE.lock    {pid} {uid}, and " draining" once it was asked to end
    DIRECTORY/RUNTIME-PLACE.log     what the worker prints
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qo.ambient import SYSTEM, Ambient
from qo.core.pipeline.scaling import WorkerState
from qo.scaler.launchers.launcher import LaunchedWorker, LaunchError, WorkerSpec
from qo.store import private

LOCK_SUFFIX = ".lock"
DRAINING = "draining"
EXIT_S = 1.0  # A process closes its files, and with them the lock, a moment before it can be waited for.
# The shell writes the id of the process that it becomes, so that no worker is ever without it. Its standard output is a
# pipe, which is closed when the worker takes its place: then the id is written. The worker prints to the log.
_BECOME = 'echo "$$ $1" > "$0"; shift; exec "$@" >&2'  # Called with the file, the uid, and the command.


@dataclass(frozen=True, slots=True)
class _Record:
    pid: int | None
    uid: str
    is_draining: bool


class LocalLauncher:
    """``arguments``: of ``qo worker run``, beside those that say the runtime, the slots and the id."""

    def __init__(
        self,
        spec: WorkerSpec,
        directory: Path,
        arguments: Sequence[str] = (),
        *,
        environ: Mapping[str, str] | None = None,
        ambient: Ambient = SYSTEM,
    ) -> None:
        self._spec, self._directory, self._arguments = spec, directory.absolute(), tuple(arguments)
        self._environ = dict(os.environ if environ is None else environ)
        self._ambient = ambient
        self._children: dict[str, subprocess.Popen[bytes]] = {}  # By uid.

    async def list(self) -> list[LaunchedWorker]:
        return await asyncio.to_thread(self._list)

    async def start(self, place: int) -> bool:
        return await asyncio.to_thread(self._start, place)

    async def drain(self, worker: LaunchedWorker) -> None:
        await asyncio.to_thread(self._drain, worker)

    async def kill(self, worker: LaunchedWorker) -> None:
        await asyncio.to_thread(self._signal, worker, signal.SIGKILL)

    async def close(self) -> None:
        """The workers stay: the next scaler finds them."""

    def _list(self) -> list[LaunchedWorker]:
        codes = {uid: code for uid, child in self._children.items() if (code := child.poll()) is not None}
        workers: list[LaunchedWorker] = []
        for path in sorted(self._directory.glob(f"{self._spec.runtime}-*{LOCK_SUFFIX}")):
            if (place := self._spec.place_of(path.name.removesuffix(LOCK_SUFFIX))) is None:
                continue
            if (worker := self._look(path, place, codes)) is not None:
                workers.append(worker)
        for uid in codes:
            del self._children[uid]
        return workers

    def _look(self, path: Path, place: int, codes: Mapping[str, int]) -> LaunchedWorker | None:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            if not _lock(descriptor):
                record = _read(path)
                state = WorkerState.DRAINING if record.is_draining else WorkerState.STARTING
                return LaunchedWorker(self._spec.place_name(place), place, state, record.uid)
            record = _read(path)
            if record.is_draining or record.pid is None:  # It has ended as it was asked to, or never began.
                path.unlink()
                return None
            code = codes.get(record.uid, self._exit_code(record.uid))
            detail = "it was started by another scaler" if code is None else f"exit code {code}"
            detail = f"{detail}; see {path.with_suffix('.log')}"
            return LaunchedWorker(self._spec.place_name(place), place, WorkerState.DEAD, record.uid, detail=detail)
        finally:
            os.close(descriptor)

    def _exit_code(self, uid: str) -> int | None:
        """Return the code of a child that has given up its lock; None if another scaler has started it."""
        if (child := self._children.get(uid)) is not None:
            with suppress(subprocess.TimeoutExpired):
                return child.wait(EXIT_S)
        return None

    def _start(self, place: int) -> bool:
        path = self._directory / f"{self._spec.place_name(place)}{LOCK_SUFFIX}"
        private.make_directory(self._directory)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock(descriptor) or not _is_same(descriptor, path):
                return False  # Somebody has filled the place, or is about to.
            os.ftruncate(descriptor, 0)  # Without a process id: a worker that never began.
            uid = self._ambient.token()[:12]
            with private.open_log(path.with_suffix(".log")) as out:
                # The child inherits the lock; it is released when the last process that has it ends.
                child = self._children[uid] = subprocess.Popen(
                    ["/bin/sh", "-c", _BECOME, str(path), uid, *self._command(place, uid)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=out,
                    env=self._environ,
                    pass_fds=(descriptor,),
                    start_new_session=True,  # Ctrl+C must not reach it, and its own children end with it.
                )
            # Workers may outlive this launcher, and whoever started a process must wait for it.
            threading.Thread(target=child.wait, name=f"qo-wait-{uid}", daemon=True).start()
            assert child.stdout is not None
            with child.stdout as pipe:
                pipe.read()  # Until the record is written: whoever lists the workers can end this one.
        except OSError as error:
            raise LaunchError(f"a worker of {self._spec.runtime} cannot be started: {error}") from error
        finally:
            os.close(descriptor)
        return True

    def _command(self, place: int, uid: str) -> list[str]:
        spec = self._spec
        own = {
            "--runtime": spec.runtime,
            "--concurrency": str(spec.slots),
            "--id": f"{spec.place_name(place)}-{uid}",
            "--workers": "1",
            "--idle-timeout": "never",  # The scaler alone decides when it ends.
            "--shutdown-grace-s": f"{spec.drain_s:g}",
        }
        options = [text for pair in own.items() for text in pair]
        return [sys.executable, "-m", "qo", "worker", "run", *options, *self._arguments]

    def _drain(self, worker: LaunchedWorker) -> None:
        path = self._directory / f"{worker.name}{LOCK_SUFFIX}"
        record = _read(path)
        if record.uid == worker.uid and record.pid is not None and not record.is_draining:
            # Before the signal: a scaler that is restarted must not take its end for a death.
            path.write_text(f"{record.pid} {record.uid} {DRAINING}\n")
        self._signal(worker, signal.SIGTERM)

    def _signal(self, worker: LaunchedWorker, number: int) -> None:
        path = self._directory / f"{worker.name}{LOCK_SUFFIX}"
        try:
            descriptor = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            record = _read(path)
            if record.uid != worker.uid or record.pid is None or _lock(descriptor):
                return  # It has ended: its process id may be somebody else's by now.
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL:
                    os.killpg(record.pid, number)
                else:
                    os.kill(record.pid, number)
        finally:
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock of a file; False: a worker, or somebody who looks, has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to the open file: somebody who looked may have removed it meanwhile."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return os.fstat(descriptor).st_ino == status.st_ino


def _read(path: Path) -> _Record:
    with suppress(OSError):
        words = path.read_text().split()
        if len(words) >= 2 and words[0].isdigit():
            return _Record(int(words[0]), words[1], DRAINING in words[2:])
    return _Record(None, "", is_draining=False)
