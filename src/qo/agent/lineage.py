"""Tells others what was run: an OpenLineage event when an attempt begins, and one when it has ended.

Each is a file below the data root, and a POST where a server is named. Neither holds a task up, and neither can fail
it: what cannot be told is logged and forgotten. Those of a moment are told together, on a thread: to go there for
each took longer than to write it.
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
WAITING_MAX = 1_000  # Events that were not told yet. More are dropped.
POST_S = 5.0
DRAIN_S = 10.0  # How long a worker that ends waits for the last ones.


Make = Callable[[], dict[str, Any]]  # An event, when its turn has come.


class Lineage(Protocol):
    """What a runner tells of. Neither may raise, or wait."""

    def began(self, work: Work, at: datetime) -> None: ...

    def ended(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        """The dispatcher has taken how it ended, and the task is now in that status; None: it has no say any more."""
        ...


class NoLineage:
    def began(self, work: Work, at: datetime) -> None:
        pass

    def ended(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        pass


class LineageReporter:
    """``async with`` it in the worker's event loop."""

    def __init__(self, data_root: str, storage: Storage, url: str | None = None) -> None:
        self._root = data_root.rstrip("/")
        self._storage = storage
        self._url = url
        self._waiting: asyncio.Queue[Make] = asyncio.Queue(WAITING_MAX)
        self._telling: asyncio.Task[None] | None = None
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> LineageReporter:
        if self._url is not None:
            self._client = httpx.AsyncClient(timeout=POST_S)
        self._telling = asyncio.create_task(self._tell())
        return self

    async def __aexit__(self, *_: object) -> None:
        # No asyncio.timeout: before Python 3.11.3 it raises CancelledError in a worker that was cancelled.
        draining = asyncio.create_task(self._waiting.join())
        try:
            await asyncio.wait({draining}, timeout=DRAIN_S)
        finally:
            draining.cancel()
        if not draining.done():
            log.warning("%s lineage events were not told", self._waiting.qsize())
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    def began(self, work: Work, at: datetime) -> None:
        self._put(lambda: openlineage.began(work, self._root, at))

    def ended(self, work: Work, completion: CompleteRequest | None, status: str, at: datetime) -> None:
        self._put(lambda: openlineage.ended(work, completion, status, self._root, at))

    def _put(self, make: Make) -> None:
        try:
            self._waiting.put_nowait(make)
        except asyncio.QueueFull:
            log.warning("a lineage event was dropped: %s others wait to be told", WAITING_MAX)

    async def _tell(self) -> None:
        while True:
            waiting = [await self._waiting.get()]
            await asyncio.sleep(GATHER_S)
            while not self._waiting.empty():
                waiting.append(self._waiting.get_nowait())
            try:
                bodies = await asyncio.to_thread(self._kept, waiting)
                await self._send(bodies)
            finally:
                for _ in waiting:
                    self._waiting.task_done()

    def _kept(self, waiting: Sequence[Make]) -> list[bytes]:
        """Written, each by itself: what is wrong with one is not with the next."""
        bodies: list[bytes] = []
        for make in waiting:
            try:
                event = make()
                # Whoever listens hears of it also while the disk is full.
                bodies.append(msgspec.json.encode(event))
                self._storage.write(self._place(event), bodies[-1])
            except Exception as error:
                log.warning("a lineage event could not be told: %r", error)
        return bodies

    async def _send(self, bodies: Sequence[bytes]) -> None:
        if self._client is None or self._url is None:
            return
        for body in bodies:
            try:
                headers = {"Content-Type": "application/json"}
                (await self._client.post(self._url, content=body, headers=headers)).raise_for_status()
            except Exception as error:
                log.warning("a lineage event could not be told: %r", error)

    def _place(self, event: dict[str, Any]) -> str:
        task, type_ = event["run"]["facets"]["qo_task"], EventType(event["eventType"])
        day = event["eventTime"][:10]
        return f"{self._root}/_lineage/{day}/{task['taskId']}-{task['attempt']}-{type_.lower()}.json"
