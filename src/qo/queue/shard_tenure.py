"""Which shards one worker owns now, by the plan that the board shows.

The worker reads the board anyway; the plan itself only when the board shows another number. A worker that owns nothing,
because it has just come or there are more workers than units, looks everywhere, as workers do that lease no shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from qo.core import keys
from qo.core.board import Board
from qo.core.ownership import (
    LeasingConfig,
    ShardPlan,
    Tenure,
    adopt,
    decode_plan,
    left_over,
    owned_units,
    relied_until,
    units,
)
from qo.errors import CorruptRecord, QoError
from qo.queue.queue import Queue

log = logging.getLogger(__name__)

READ_AGAIN_S = 1.0  # After a plan that could not be read, or was not the one that the board shows.


class Turn(NamedTuple):
    """A worker's place among those that read the board in turns."""

    place: int
    workers: int


class ShardTenure:
    def __init__(
        self,
        queue: Queue,
        config: LeasingConfig,
        *,
        worker_id: str,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is called when this worker owns other units than before."""
        self._store = queue.store
        self._board = queue.board
        self._monotonic = queue.ambient.monotonic
        self._config = config
        self._worker_id = worker_id
        self._on_change = on_change
        self._units = units(queue.prefix_len)
        self._tenure: Tenure | None = None
        self._turn: Turn | None = None
        self._left_over: frozenset[str] = frozenset()
        self._shown_at = float("-inf")  # Before the last request that showed the number of our plan.
        self._seen_at = 0.0  # After the answer that first showed the number on the board.
        self._reported: tuple[str, ...] = ()
        self._has_left = False
        self._news = asyncio.Event()
        queue.board.subscribe(on_change=self._learn_board)

    @property
    def owned(self) -> tuple[str, ...]:
        """The units that are certainly this worker's, in key order."""
        tenure = self._current()
        if tenure is None:
            return ()
        return owned_units(tenure, self._worker_id, shown_at=self._shown_at, now=self._monotonic())

    @property
    def scope(self) -> frozenset[str] | None:
        """The units that this worker lists: its own, and those that are nobody's; None: all."""
        owned = self.owned
        return self._left_over.union(owned) if owned else None

    @property
    def turn(self) -> Turn | None:
        """Its turn in reading the board, while it goes by a plan."""
        return self._turn if self._current() is not None else None

    async def run(self) -> None:
        """Follow the plans that the board shows, until cancelled; no error ends it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s()):
                    await self._news.wait()
            self._news.clear()
            try:
                await self._follow()
            except QoError as error:
                log.warning("reading the plan of shards: %s", error)
            self._report()

    def leave(self) -> None:
        """Own nothing from now on."""
        self._has_left = True
        self._tenure = None
        self._report()

    def _learn_board(self, board: Board) -> None:
        if self._tenure is None or board.plan != self._tenure.plan.number:
            self._seen_at = self._monotonic()
            self._news.set()

    def _current(self) -> Tenure | None:
        """Return the tenure if the board still shows its plan, as far as this worker knows."""
        tenure, board = self._tenure, self._board.board
        if tenure is None or (board is not None and board.plan != tenure.plan.number):
            return None
        if board is not None:
            self._shown_at = max(self._shown_at, self._board.read_at)
        return tenure

    def _rest_s(self) -> float:
        if self._is_behind():
            return READ_AGAIN_S
        now, starts = self._monotonic(), () if self._tenure is None else self._tenure.starts.values()
        return min((at - now for at in starts if at > now), default=self._config.renew_s)

    def _is_behind(self) -> bool:
        """Whether the board shows a plan that this worker has not read."""
        board = self._board.board
        if self._has_left or board is None or not board.plan:
            return False
        return self._tenure is None or board.plan != self._tenure.plan.number

    async def _follow(self) -> None:
        board = self._board.board
        if board is None or not self._is_behind():
            return
        number, seen_at = board.plan, self._seen_at
        stored = await self._store.get(keys.SHARD_PLAN)
        try:
            plan = None if stored is None else decode_plan(stored.body, self._units)
        except CorruptRecord as error:
            log.debug("%s The lookout replaces it.", error)
            return
        # The board will show a later plan soon; until then, nobody goes by it.
        if plan is not None and plan.number == number and not self._has_left:
            self._adopt(plan, seen_at)

    def _adopt(self, plan: ShardPlan, seen_at: float) -> None:
        old, self._tenure = self._tenure, adopt(self._tenure, plan, self._worker_id, at=seen_at)
        self._left_over = left_over(plan, self._units)
        members = plan.members
        self._turn = Turn(members.index(self._worker_id), len(members)) if self._worker_id in members else None
        mine = self._granted(plan)
        if (
            old is not None
            and seen_at >= relied_until(old, self._shown_at)
            and not mine >= self._granted(old.plan)
        ):
            log.warning(
                "shards of this worker are others' now: it did not read the board for %g s", old.plan.ttl_s
            )
        log.info("%d workers share the shards; %d are for this one", len(members), len(mine))

    def _granted(self, plan: ShardPlan) -> set[str]:
        return {unit for grant in plan.grants if grant.worker_id == self._worker_id for unit in grant.units}

    def _report(self) -> None:
        if (owned := self.owned) != self._reported:
            self._reported = owned
            self._on_change()
