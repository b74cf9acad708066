"""The workers as whoever submits tasks sees them: read from the roster, and used for a while.

A view costs one LIST and some GETs. It is a hint: a worker that has gone since costs time, never a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from qo.ambient import Ambient
from qo.core.rhythm import VIEW_RECORDS_MAX, VIEW_S
from qo.errors import AccessDenied, QoError
from qo.queue import roster
from qo.queue.roster import WorkerInfo
from qo.store.port import ObjectStore

log = logging.getLogger(__name__)

DENIED_FOR_S = 600.0  # After reading the roster was refused.
SILENT_MAX_S = 120.0  # Older records are not read at all.
OLD_MAX = 4  # A view that is older than so many times its length is not used while a new one is read.


class WorkerView:
    def __init__(self, store: ObjectStore, ambient: Ambient, for_s: float = VIEW_S) -> None:
        self._store = store
        self._ambient = ambient
        self._for_s = for_s
        self._workers: Sequence[WorkerInfo] = ()
        self._read_at = self._until = float("-inf")
        self._reading: asyncio.Task[Sequence[WorkerInfo]] | None = None

    async def read(self) -> Sequence[WorkerInfo]:
        """Return the live workers, as of a view length ago at most. No error is raised: then there are none."""
        if self._ambient.monotonic() < self._until:
            return self._workers
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._refresh())
        return await asyncio.shield(self._reading)

    async def peek(self) -> Sequence[WorkerInfo]:
        """Return the live workers without waiting, if they were ever read: an old view is renewed in the background."""
        now = self._ambient.monotonic()
        if now < self._until:
            return self._workers
        if now - self._read_at > OLD_MAX * self._for_s:
            return await self.read()
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._refresh())
        return self._workers

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _refresh(self) -> Sequence[WorkerInfo]:
        try:
            now = await self._store.now()
            records = await roster.some_workers(
                self._store,
                since=now - timedelta(seconds=SILENT_MAX_S),
                count=VIEW_RECORDS_MAX,
                ambient=self._ambient,
            )
            self._workers = [each for each in records if not each.is_stale(now) and not each.is_leaving]
            rest_s = self._for_s
        except QoError as error:
            log.warning("cannot look for workers, so tasks wait for a poll: %s", error)
            self._workers, rest_s = (), DENIED_FOR_S if isinstance(error, AccessDenied) else self._for_s
        self._read_at = self._ambient.monotonic()
        self._until = self._read_at + rest_s
        return self._workers
