"""Reports lineage: an OpenLineage event when an attempt begins, and one when it has ended.

Each is a file below the data root, and a POST where a server is configured. Neither delays a task or can fail it: an
event that cannot be reported is logged and dropped. Events of a short interval are written together on a thread, since
switching to a thread takes longer than writing an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import httpx
import msgspec

from qo.agent import openlineage
from qo.agent.dataset_files import Storage
from qo.api.contract.task import CompleteRequest, Work
from qo.core.pipeline.openlineage import EventType

log = logging.getLogger(__name__)

GATHER_S = 0.1
WAITING_MAX = 1_000  # Events in the queue. More are dropped.
POST_S = 5.0
DRAIN_S = 10.0  # How long a worker that ends waits for the last events.


Make = Callable[[], dict[str, Any]]  # Builds an event.


class Lineage(Protocol):
    """Reports attempts. Its methods neither raise nor wait."""

    def report_start(self, work: Work, at: datetime) -> None: ...

    def report_end(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        """Report the end of an attempt. ``status``: of the task; ``completion``: None if the attempt has lost its
        lease."""
        ...


class NoLineage:
    def report_start(self, work: Work, at: datetime) -> None:
        pass

    def report_end(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        pass


class LineageReporter:
    """Writes and posts lineage events. Use it with ``async with`` in the worker's event loop."""

    def __init__(self, data_root: str, storage: Storage, url: str | None = None) -> None:
        self._root = data_root.rstrip("/")
        self._storage = storage
        self._url = url
        self._waiting: asyncio.Queue[Make] = asyncio.Queue(WAITING_MAX)
        self._reporting: asyncio.Task[None] | None = None
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> LineageReporter:
        if self._url is not None:
            self._client = httpx.AsyncClient(timeout=POST_S)
        self._reporting = asyncio.create_task(self._report_queued())
        return self

    async def __aexit__(self, *_: object) -> None:
        # No asyncio.timeout: before Python 3.11.3 it raises CancelledError in a worker that was cancelled.
        draining = asyncio.create_task(self._waiting.join())
        try:
            await asyncio.wait({draining}, timeout=DRAIN_S)
        finally:
            draining.cancel()
        if not draining.done():
            log.warning("%s lineage events were not reported", self._waiting.qsize())
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def report_start(self, work: Work, at: datetime) -> None:
        self._enqueue(lambda: openlineage.start_event(work, self._root, at))

    def report_end(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        self._enqueue(lambda: openlineage.end_event(work, completion, status, self._root, at))

    def _enqueue(self, make: Make) -> None:
        try:
            self._waiting.put_nowait(make)
        except asyncio.QueueFull:
            log.warning("a lineage event was dropped: %s others wait", WAITING_MAX)

    async def _report_queued(self) -> None:
        while True:
            waiting = [await self._waiting.get()]
            await asyncio.sleep(GATHER_S)
            while not self._waiting.empty():
                waiting.append(self._waiting.get_nowait())
            try:
                bodies = await asyncio.to_thread(self._write_files, waiting)
                await self._send(bodies)
            finally:
                for _ in waiting:
                    self._waiting.task_done()

    def _write_files(self, waiting: Sequence[Make]) -> list[bytes]:
        """Write each event to its file, and return their bodies. An event that fails does not affect the others."""
        bodies: list[bytes] = []
        for make in waiting:
            try:
                event = make()
                # It is posted even if it cannot be written, as when the disk is full.
                bodies.append(msgspec.json.encode(event))
                self._storage.write(self._uri(event), bodies[-1])
            except Exception as error:
                log.warning("a lineage event could not be reported: %r", error)
        return bodies

    async def _send(self, bodies: Sequence[bytes]) -> None:
        if self._client is None or self._url is None:
            return
        for body in bodies:
            try:
                headers = {"Content-Type": "application/json"}
                (await self._client.post(self._url, content=body, headers=headers)).raise_for_status()
            except Exception as error:
                log.warning("a lineage event could not be reported: %r", error)

    def _uri(self, event: dict[str, Any]) -> str:
        task, type_ = event["run"]["facets"]["qo_task"], EventType(event["eventType"])
        day = event["eventTime"][:10]
        return f"{self._root}/_lineage/{day}/{task['taskId']}-{task['attempt']}-{type_.lower()}.json"
