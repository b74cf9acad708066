"""What a worker is asked to do: by its own process, and by operators through the bucket.

Requests are states, not events: the last one counts, even if earlier ones were missed, and none can be lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

from qo.core.board import Board, is_watched
from qo.core.control import Orders, orders_for
from qo.core.poll import Pace
from qo.core.rhythm import ORDERS_EVERY_S
from qo.errors import QoError
from qo.queue.concurrency import gather_cancellable
from qo.queue.control import read
from qo.queue.queue import Queue
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.cancel import Why
from qo.worker.loop.hold import Hold, Holds
from qo.worker.ports import AttemptStopper

log = logging.getLogger(__name__)

FIRST_READ_S = 0.5  # Of the board, after the start; doubles from then on.
UNREAD_MAX = 1.2  # The board is read after this many control intervals, unless the mailbox has read it.


class Control:
    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._paused_here = False
        self._by_operators = Orders()  # As of the last look.
        self.stopping = False
        self.hurrying = False

    @property
    def paused(self) -> bool:
        return self._paused_here or self._by_operators.paused

    @property
    def paused_types(self) -> frozenset[str]:
        return self._by_operators.paused_types

    def pause(self) -> None:
        self._paused_here = True
        self._on_change()

    def resume(self) -> None:
        """Lift the pause of this process. A pause by operators is theirs to lift."""
        self._paused_here = False
        self._on_change()

    def stop(self) -> None:
        """Stop for good: there is no way back."""
        self.stopping = True
        self._on_change()

    def hurry(self) -> None:
        self.stopping = self.hurrying = True
        self._on_change()

    def apply(self, by_operators: Orders) -> None:
        """Take over what operators want now."""
        if by_operators == self._by_operators:
            return
        self._by_operators = by_operators
        if by_operators.drain and not self.stopping:
            reason = f": {by_operators.reason}" if by_operators.reason else ""
            log.info("draining, as an operator asked%s", reason)
            self.stopping = True
        self._on_change()


class Follower:
    """Reads what operators want of a worker, and passes it on to its control and its attempts.

    The board says when that has changed, and is read here only if the mailbox does not read it often enough.
    """

    def __init__(
        self,
        queue: Queue,
        control: Control,
        *,
        worker_id: str,
        holds: Holds,
        attempts: AttemptStopper,
        on_board: Callable[[Board], None],
    ) -> None:
        self._queue = queue
        self._board = queue.board
        self._control = control
        self._worker_id = worker_id
        self._holds = holds
        self._attempts = attempts
        self._on_board = on_board
        self._since: datetime | None = None  # The worker's start: older orders to drain do not concern it.
        self._token = ""  # Of the orders that the board named last.
        self._looked_at = float("-inf")
        self._news = asyncio.Event()

    def begin(self, started_at: datetime) -> None:
        self._since = started_at
        self._board.subscribe(on_change=self._learn_board)

    def _learn_board(self, board: Board) -> None:
        self._on_board(board)
        if board.orders != self._token:
            self._token = board.orders
            self._news.set()

    async def run(self, every_s: float) -> None:
        """Follow the board, and look every so often where it cannot be relied on, until cancelled."""
        pace = Pace(min(FIRST_READ_S, every_s), every_s * UNREAD_MAX)
        while True:
            pace = pace.after(found_work=False)
            rest_s = max(pace.min_s, pace.rest_s(self._queue.ambient.unit()) - max(0.0, self._board.age_s()))
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._news.wait()
            await best_effort(self._follow(pace.current_s, every_s), "following the board")

    async def _follow(self, unread_max_s: float, every_s: float) -> None:
        # News came with the board: if it had to be read again for them, and could not be, they would wait in a loop
        # that never rests.
        if not self._news.is_set() and self._board.age_s() >= unread_max_s * 0.9:
            await self._board.read()
        if self._news.is_set() or not await self._is_announced(every_s):
            self._news.clear()
            await self.look()

    async def _is_announced(self, every_s: float) -> bool:
        """Whether the board would say that there are new orders."""
        since_s = self._queue.ambient.monotonic() - self._looked_at
        if since_s < every_s * 0.9:
            return True
        board = self._board.board
        return since_s < ORDERS_EVERY_S and board is not None and is_watched(board, await self._queue.store.now())

    async def look(self) -> None:
        """Read what is wanted. While that fails, the last known state counts."""
        self._looked_at = self._queue.ambient.monotonic()
        try:
            desired = await read(self._queue.store)
            self._control.apply(orders_for(desired, self._worker_id, self._since))
            listed = [hold for hold in self._holds if hold.task.id in desired.cancels]
            await gather_cancellable(self._cancel_if_requested(hold) for hold in listed)
        except QoError as error:
            log.warning("cannot see what operators want: %s", error)
        except Exception:
            log.exception("unexpected, but the worker goes on")

    async def _cancel_if_requested(self, hold: Hold) -> None:
        """Stop an attempt if its task says so: the operators' list of cancelled tasks is only a hint."""
        if hold.cancel.requested:
            return
        task = await self._queue.get(hold.task.id)
        if task.cancel_requested and task.lease_id == hold.claim.lease_id:
            self._attempts.stop(hold, Why.CANCELLED)
