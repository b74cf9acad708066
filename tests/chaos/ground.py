"""What is disturbed: all processes of qo, what they keep their state and data in, links that can be bad, and disks.

What this has in common wherever state and data are. ``servers_ground`` and ``embedded_ground`` say the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from chaos.disk import Disk
from chaos.locks import WriteLock
from chaos.plan import LEASE_S, Targets
from chaos.supervised import Supervised, orphans
from chaos.versions import Histories
from qo.queue.queue import Queue
from support.dispatcher.sites import Site
from support.process_family import family_of
from support.servers.proxies import FickleProxy
from support.spark import session

QUEUE_WORKERS, PYTHON_WORKERS, SPARK_WORKERS = ("w1", "w2", "w3"), ("p1", "p2"), ("s1", "s2")
INBOX_WORKERS = ("w1", "w2")  # Half of the tasks are put into their inboxes.
WORKERS = (*QUEUE_WORKERS, *PYTHON_WORKERS, *SPARK_WORKERS)
RUNTIMES = ("python", "spark")
SETTINGS = {
    "QO_LEASE_S": f"{LEASE_S:g}",
    "QO_CONCURRENCY": "6",
    "QO_PROCESSES": "1",
    "QO_MONITOR_CHECK_INTERVAL_S": "0.5",
    "QO_MONITOR_SWEEP_INTERVAL_S": "15",
    "QO_LOG": "info",
}


@dataclass(frozen=True, slots=True)
class Server:
    """Dies at once, and comes back on what it had stored."""

    stop: Callable[[], None]
    start: Callable[[], None]


class Ground(ABC):
    name: ClassVar[str]
    not_paused: ClassVar[Collection[str]] = ()  # Processes that nobody waits for while they stand still.

    def __init__(self, directory: Path, site: Site, *, spark: bool) -> None:
        self.directory, self.site = directory, site
        self.notes = directory / "notes"
        self.processes: dict[str, Supervised] = {}
        self.servers: dict[str, Server] = {}
        self.links: dict[str, FickleProxy] = {}
        work = Disk(directory / "work", lambda: self.pids_of(WORKERS))
        self.disks: dict[str, Disk] = {"disk": work}
        self.locks: dict[str, WriteLock] = {}
        self._work, self._spark = work.path, spark

    # What differs

    @abstractmethod
    def queue_settings(self) -> Mapping[str, str]:
        """What leads the workers of the queue, and its monitor, to it."""

    @abstractmethod
    def pipeline_settings(self) -> Mapping[str, str]:
        """What leads dispatcher, scheduler and workers of the pipelines to the data and to their queues."""

    @abstractmethod
    def state_settings(self) -> Mapping[str, str]:
        """What leads the dispatcher to its state."""

    @abstractmethod
    def queue(self, *, direct: bool = False, routed: bool = False) -> AbstractAsyncContextManager[Queue]:
        """The queue of the workers, by the way that they take, or beside it. ``routed``: what is submitted goes to
        their inboxes."""

    @abstractmethod
    async def read_queue(self) -> Histories:
        """Every version of every task of the queue."""

    @abstractmethod
    async def read_wake_ups(self, runtime: str) -> Histories:
        """The same of a queue between dispatcher and workers."""

    @abstractmethod
    def read_file(self, uri: str) -> bytes:
        """A file of a dataset."""

    # What does not

    @property
    def targets(self) -> Targets:
        """What each kind of fault can hit."""
        links = list(self.links)
        return {
            "kill": list(self.processes),
            "pause": [each for each in self.processes if each not in self.not_paused],
            "restart": list(self.servers),
            "drop": links,
            "slow": links,
            "cut": links,
            "full": list(self.disks),
            "lock": list(self.locks),
        }

    @property
    def disk_kind(self) -> str:
        return self.disks["disk"].how

    def connect(self, targets: Mapping[str, int]) -> None:
        """Make a link to each of these ports. All are fair."""
        self.links = {name: FickleProxy("127.0.0.1", port) for name, port in targets.items()}

    def start(self) -> None:
        """Every process of qo."""
        outside, inside = self.site.ports[:2]
        queue = self.queue_settings()
        flow = {
            **self.pipeline_settings(),
            "QO_DISPATCHER_INTERNAL_URL": self.links["dispatcher-http"].endpoint,
        }
        serving = {
            **flow,
            **self.state_settings(),
            "QO_DISPATCHER_LISTEN": f"127.0.0.1:{outside}",
            "QO_DISPATCHER_INTERNAL_LISTEN": f"127.0.0.1:{inside}",
        }
        self._supervise("dispatcher", serving, "dispatcher", "--json")
        self._supervise("scheduler", flow, "scheduler")
        self._supervise("monitor", queue, "monitor")
        for each in QUEUE_WORKERS:
            dispatch = "direct" if each in INBOX_WORKERS else "shared"
            self._supervise(
                each, queue, "worker", "--app", "chaos.handlers:app", "--id", each, "--dispatch", dispatch
            )
        for each in PYTHON_WORKERS:
            self._supervise(each, flow, "worker", "--runtime", "python", "--id", each)
        for each in SPARK_WORKERS if self._spark else ():
            # Few at a time: a lease must not run out only because many share the machine.
            few = {**flow, **session.ENVIRONMENT, "QO_CONCURRENCY": "2"}
            self._supervise(each, few, "worker", "--runtime", "spark", "--id", each)

    def _supervise(self, name: str, settings: Mapping[str, str], *args: str) -> None:
        command = self.site.qo(**{**SETTINGS, "TMPDIR": str(self._work), **settings})
        self.processes[name] = Supervised(name, command, args, self.directory)

    def pids_of(self, names: Collection[str]) -> Sequence[int]:
        """Of these processes and their children, as far as they run."""
        found = [each for name, each in self.processes.items() if name in names]
        return [pid for each in found if each.pid for pid in family_of(each.pid)]

    def orphans(self) -> list[int]:
        """What outlived the process that had started it."""
        return orphans(f"TMPDIR={self._work}")

    async def close(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.processes.values()))
        for each in self.orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        for each in self.links.values():
            each.close()
        for each in self.locks.values():
            each.release()
        await self.site.close()
        for each in self.disks.values():
            each.close()
