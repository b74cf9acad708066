"""Commits segments of an always-on source while it runs, and retries until the dispatcher answers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from qo.agent.heartbeats import HeldTask
from qo.api.contract.task import CommitRequest, LastSegment, OutputBody
from qo.api.internal_client import DispatcherClient
from qo.errors import Cancelled, Contended, LeaseLost, Unavailable
from qo.worker.loop.cancel import CancelToken, Stopped, Why

log = logging.getLogger(__name__)

T = TypeVar("T")

ASK_AGAIN_S = 1.0  # While the dispatcher does not answer.
LOOK_S = 0.1  # How often a waiting thread checks for cancellation.


class Segments(Protocol):
    """Commits segments. Its methods block: call them on an operator's thread."""

    def commit(self, outputs: Sequence[OutputBody]) -> bool:
        """Commit outputs. Return False if their readers cannot keep up: hold back.

        Waits for a dispatcher that does not answer. Raises Stopped once the attempt was asked to stop, LeaseLost, and
        Refused if another commit came first: compare the rows again.
        """
        ...

    def last(self, output: int) -> LastSegment: ...

    def paused(self) -> bool: ...


class HeldSegments:
    """Commits segments of one claimed task."""

    def __init__(self, api: DispatcherClient, held: HeldTask, loop: asyncio.AbstractEventLoop) -> None:
        self._api = api
        self._held = held
        self._loop = loop

    def commit(self, outputs: Sequence[OutputBody]) -> bool:
        claimed = self._held.claimed
        request = CommitRequest(
            task_id=claimed.work.task_id,
            attempt=claimed.attempt,
            lease_id=claimed.lease_id,
            outputs=list(outputs),
            code=None if self._held.run is None else self._held.run.code.fingerprint,
        )

        async def commit() -> bool:
            try:
                self._held.paused = (await self._api.commit(self._held.token, request)).paused
            except LeaseLost:
                self._held.cancel.request(Why.LOST)
                raise
            except Cancelled as cancelled:
                # As the next heartbeat would report. The lease is still ours, to complete the task with.
                self._held.cancel.request(Why.CANCELLED)
                raise Stopped(str(cancelled)) from None
            return not self._held.paused

        while True:
            try:
                return wait_for(commit(), self._loop, self._held.cancel)
            except (Unavailable, Contended) as error:
                log.warning(
                    "task %s: the dispatcher has not accepted a segment yet: %s", self._held.task_id, error
                )
                self._held.cancel.wait(ASK_AGAIN_S)

    def last(self, output: int) -> LastSegment:
        return wait_for(self._api.last_segment(self._held.token, output), self._loop, self._held.cancel)

    def paused(self) -> bool:
        return self._held.paused


def wait_for(call: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, cancel: CancelToken) -> T:
    """Run a coroutine in the loop and return its result. Raises Stopped as soon as the attempt is asked to stop."""
    future = asyncio.run_coroutine_threadsafe(call, loop)
    while True:
        try:
            return future.result(LOOK_S)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # The call itself timed out.
        if cancel.requested:
            future.cancel()
            cancel.check()
