"""The contestants of the comparisons: how the queue of each is filled, and its worker as processes to be killed.

Each runs as a user would run it, by its own command. What it does is seen from outside, by the stamps that its
handlers leave, so all are measured in the same way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from redis import Redis

from bench.peers import stamps
from bench.process import ROOT, run

BIN = Path(sys.executable).parent
POLL_S = 0.05
KILL_WITHIN_S = 10.0


@dataclass(frozen=True)
class Contestant:
    system: str
    how: str  # For the record: what it was told.
    module: str  # With its handlers, and the process that fills its queue.
    command: Sequence[str]  # Of its worker.
    task_type: str = "noop"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # For each of its tasks.
    workers: int = 1  # How many times the command is started.

    def __str__(self) -> str:
        return f"{self.system} {version(self.system)}, {self.how}"


@dataclass(frozen=True)
class Ground:
    """Where one contestant runs once: its database or its store, and the file of its stamps."""

    directory: Path
    redis_url: str

    @property
    def stamps(self) -> Path:
        return self.directory / "stamps"

    @property
    def store(self) -> str:
        return f"local:{self.directory}/store"

    def environment(self) -> dict[str, str]:
        return {
            "REDIS_URL": self.redis_url,
            "RQ_REDIS_URL": self.redis_url,
            "QO_STORE": self.store,
            stamps.STAMPS: str(self.stamps),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }

    def fill(self, contestant: Contestant, tasks: int) -> None:
        job = {
            "do": "enqueue",
            "tasks": tasks,
            "task_type": contestant.task_type,
            "options": contestant.options,
            "settings": {"store": self.store},
        }
        run(contestant.module, job, self.environment())

    @contextmanager
    def workers(self, contestant: Contestant) -> Iterator[Workers]:
        """Its workers, killed after the block if not in it."""
        running = Workers(contestant, self.environment())
        try:
            yield running
        finally:
            running.kill()

    def wait(self, workers: Workers, lines: int, within_s: float) -> None:
        """Until so many stamps are there."""
        deadline = time.monotonic() + within_s
        while (there := self.count()) < lines:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{there} of {lines} tasks after {within_s:g} s; {workers.complaints()}")
            time.sleep(POLL_S)

    def count(self) -> int:
        return self.stamps.read_bytes().count(b"\n") if self.stamps.exists() else 0


@contextmanager
def ground(redis_url: str, database: int = 0) -> Iterator[Ground]:
    """Fresh ground; without a URL, for contestants that need no Redis."""
    url = f"{redis_url}/{database}" if redis_url else ""
    if url:
        with Redis.from_url(url) as client:
            client.flushdb()
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        yield Ground(Path(directory), url)


class Workers:
    """The processes of one contestant, each in a session of its own with all that it starts."""

    def __init__(self, contestant: Contestant, environment: Mapping[str, str]) -> None:
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when they are killed.
        self._processes = [
            subprocess.Popen(
                [str(BIN / contestant.command[0]), *contestant.command[1:]],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
            for _ in range(contestant.workers)
        ]

    def kill(self) -> None:
        """As a machine that loses its power would: all at once and without a word."""
        deadline = time.monotonic() + KILL_WITHIN_S
        for process in self._processes:
            # Until none is left: one may just have been started by another.
            while members := _session(process.pid):
                for member in members:
                    with suppress(ProcessLookupError):
                        os.kill(member, signal.SIGKILL)
                process.wait(KILL_WITHIN_S)
                if time.monotonic() > deadline:
                    raise RuntimeError(f"processes {members} cannot be killed")
        self._log.close()

    def complaints(self) -> str:
        self._log.seek(0)
        return self._log.read()[-3000:]


def _session(leader: int) -> list[int]:
    """The live processes of a session, also those that left their parent's process group."""
    members: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                members.append(int(stat.parent.name))
    return members
