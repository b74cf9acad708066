"""What a user gets without any settings: state, queues and data are files in one directory.

There is no server to restart, and one link, from workers to the dispatcher. Whoever is paused may hold the lock of a
file that all others wait for, so everyone is. The directory is on a disk of its own, which becomes full as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import qo
from chaos.disk import Disk
from chaos.ground import Ground
from chaos.locks import WriteLock
from chaos.versions import Histories, read_directory
from qo.config.location import local_path
from qo.queue.queue import Queue
from qo.store.sqlite_file import FILE
from support.dispatcher.sites import Site


class EmbeddedGround(Ground):
    name = "embedded"

    def __init__(self, directory: Path, *, spark: bool) -> None:
        self._home = directory / ".qo"
        super().__init__(directory, Site(directory, f"sqlite:{self._home / 'state.db'}", {}), spark=spark)
        self.disks["home-disk"] = Disk(self._home, lambda: self.pids_of(self.processes), kept=directory / "kept")
        self.locks = {
            "state-file": WriteLock(self._home / "state.db"),
            "queue-file": WriteLock(self._home / FILE),
            "wake-ups-file": WriteLock(self._home / "queues" / "python" / FILE),
        }
        self.connect({"dispatcher-http": self.site.ports[1]})

    def queue_settings(self) -> Mapping[str, str]:
        return {}

    def pipeline_settings(self) -> Mapping[str, str]:
        return {}

    def state_settings(self) -> Mapping[str, str]:
        return {}

    @asynccontextmanager
    async def queue(self, *, direct: bool = False, routed: bool = False) -> AsyncIterator[Queue]:
        dispatch = {"queue.dispatch": "direct" if routed else "shared"}
        async with qo.connect(f"local:{self._home}", **dispatch) as queue:
            yield queue

    async def read_queue(self) -> Histories:
        return await asyncio.to_thread(read_directory, self._home)

    async def read_wake_ups(self, runtime: str) -> Histories:
        return await asyncio.to_thread(read_directory, self._home / "queues" / runtime)

    def read_file(self, uri: str) -> bytes:
        return local_path(uri).read_bytes()


@asynccontextmanager
async def embedded_ground(directory: Path, *, spark: bool) -> AsyncIterator[Ground]:
    """With everything started. At the end nothing is left but the directory."""
    ground = EmbeddedGround(directory, spark=spark)
    try:
        ground.start()
        yield ground
    finally:
        await ground.close()
