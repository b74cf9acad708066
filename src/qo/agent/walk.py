"""A walk: the tasks that one slot of a worker runs after one wake-up, one after the other.

    wake-up -> claim -> run -> complete, and ask for the next task -> run -> ... -> nothing more: settle the wake-up

The question for the next task goes with the completion of the last one in one request, so a walk costs the bucket as
much as one task. It ends when the dispatcher has no more tasks of the queue, or the worker wants its slot back: the
tasks that remain have wake-ups of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from qo.api.contract.task import Claimed, CompleteRequest, NotClaimed, Outcome
from qo.api.internal_client import DispatcherClient
from qo.errors import QoError
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.outcome import Acked

log = logging.getLogger(__name__)


class AttemptContext(Protocol):
    """What an attempt needs of the worker that runs it."""

    @property
    def cancel(self) -> CancelToken: ...

    def free_slot(self) -> None: ...


class SlotContext(AttemptContext, Protocol):
    """What a walk needs of the worker whose slot it uses."""

    worker_id: str

    def keep_slot(self) -> bool: ...


Run = Callable[[Claimed, AttemptContext], Awaitable[str | Acked]]


class _Step:
    """The context of one attempt of a walk. Its slot goes to the next task of the walk."""

    def __init__(self, cancel: CancelToken) -> None:
        self.cancel = cancel
        self.freed = asyncio.get_running_loop().create_future()

    def free_slot(self) -> None:
        if not self.freed.done():
            self.freed.set_result(None)


class Walk:
    def __init__(self, api: DispatcherClient, queue: str, context: SlotContext, run: Run) -> None:
        """``run`` runs a claimed task and reports its outcome."""
        self._api = api
        self._queue = queue
        self._context = context
        self._run = run
        self._attempts: set[asyncio.Task[str | Acked]] = set()  # One that runs, and those that report.
        self._outcomes: Counter[str] = Counter()
        self._failed = False  # Whether an attempt has failed.
        self._error: BaseException | None = None  # Of an attempt that could not be made.

    async def run(self, first: Claimed | NotClaimed) -> str | Acked:
        """Run the first task, if it was claimed, and all that follow. Return what became of them."""
        try:
            claimed = first if isinstance(first, Claimed) else await self._claim_next()
            while claimed is not None:
                await self._start(claimed)
                claimed = await self._claim_next() if self._error is None else None
            self._context.free_slot()  # Others need not wait until the last ones are reported.
            if self._attempts:
                await asyncio.wait(self._attempts)
        except asyncio.CancelledError:
            await self._stop()
            raise
        if self._error is not None:
            raise self._error
        text = self._describe(first)
        return Acked(text, failed=True) if self._failed else text

    async def _start(self, claimed: Claimed) -> None:
        """Start an attempt, and return when it needs its slot no more."""
        step = _Step(self._context.cancel)
        attempt = asyncio.ensure_future(self._run(claimed, step))
        self._attempts.add(attempt)
        attempt.add_done_callback(self._count)
        await asyncio.wait({attempt, step.freed}, return_when=asyncio.FIRST_COMPLETED)

    def _count(self, attempt: asyncio.Task[str | Acked]) -> None:
        self._attempts.discard(attempt)
        if attempt.cancelled():
            return
        if (error := attempt.exception()) is not None:
            self._error = self._error or error
            return
        outcome = attempt.result()
        self._failed = self._failed or isinstance(outcome, Acked)
        self._outcomes[str(outcome.output) if isinstance(outcome, Acked) else outcome] += 1

    async def _claim_next(self) -> Claimed | None:
        if not self._context.keep_slot():
            return None
        asking = asyncio.create_task(self._api.claim_next(self._queue, self._context.worker_id))
        try:
            await asyncio.wait({asking})  # Which goes on if this is cancelled.
        except asyncio.CancelledError:
            await self._give_back(asking)
            raise
        try:
            return asking.result()
        except QoError as error:
            log.warning("queue %s: the dispatcher was not asked for the next task: %s", self._queue, error)
            return None

    async def _give_back(self, asking: asyncio.Task[Claimed | None]) -> None:
        """Release the task that is being claimed: otherwise it would wait until its lease has run out."""
        try:
            if (claimed := await asking) is not None:
                request = CompleteRequest(
                    task_id=claimed.work.task_id,
                    attempt=claimed.attempt,
                    lease_id=claimed.lease_id,
                    outcome=Outcome.RELEASED,
                )
                await self._api.complete(claimed.capability_token, request)
        except QoError as error:
            log.warning("queue %s: a task could not be given back, its lease will run out: %s", self._queue, error)

    async def _stop(self) -> None:
        """Stop all attempts; each reports why."""
        for attempt in self._attempts:
            attempt.cancel()
        while self._attempts:
            await asyncio.wait(self._attempts)

    def _describe(self, first: Claimed | NotClaimed) -> str:
        if not self._outcomes and isinstance(first, NotClaimed):
            return f"not claimed: {first.reason}"
        if self._outcomes.total() == 1:
            return next(iter(self._outcomes))
        return ", ".join(f"{count} x {text}" for text, count in sorted(self._outcomes.items()))
