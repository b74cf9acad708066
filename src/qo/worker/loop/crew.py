"""A worker as one of many: it is counted on the board, learns of new tasks and of its shards there, and may be the
lookout."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from qo.core.board import Board, Rank, call_roll, rank_of, sign_off, sign_on
from qo.core.discovery import IndexMode
from qo.core.dispatch import lease_s
from qo.queue.deferred_tasks import Judge
from qo.queue.feed import Feed
from qo.queue.inbox_lease import InboxLease
from qo.queue.inbox_recovery import InboxRecovery
from qo.queue.inbox_walk import InboxScope
from qo.queue.lookout import Lookout
from qo.queue.notice_reader import NoticeReader
from qo.queue.queue import Queue
from qo.queue.roster import SILENT_BEATS
from qo.queue.shard_tenure import ShardTenure
from qo.worker.config import WorkerConfig
from qo.worker.loop.best_effort import best_effort
from qo.worker.loop.control import Control, Follower
from qo.worker.loop.hold import Holds
from qo.worker.ports import AttemptStopper, Ports

log = logging.getLogger(__name__)

EMPTIED_WITHIN_S = 5.0  # After everything else has ended.


class Crew:
    def __init__(self, queue: Queue, config: WorkerConfig, ports: Ports) -> None:
        self._queue = queue
        self._config = config
        self._ports = ports
        self._emptying: asyncio.Task[None] | None = None
        self.lookout = Lookout(
            queue,
            name=config.worker_id,
            rank=Rank.WORKER if config.has_monitor else Rank.WORKER_ALONE,
            silent_max_s=SILENT_BEATS * config.heartbeat_s,
            times=config.watch,
        )
        self.tenure = self._make_tenure()
        self.inbox_lease = (
            InboxLease(queue, worker_id=config.worker_id, ttl_s=lease_s(config.heartbeat_s))
            if config.owns_inbox
            else None
        )

    def _make_tenure(self) -> ShardTenure | None:
        leasing = self._config.shard_leasing
        if leasing is None or not self._config.leases_shards:
            return None
        return ShardTenure(
            self._queue, leasing, worker_id=self._config.worker_id, on_change=self._ports.shards_changed
        )

    @property
    def on_duty(self) -> bool:
        return self.lookout.on_duty

    def make_feed(self, judge: Judge) -> Feed:
        config = self._config
        return Feed(
            self._queue,
            shards=config.shards,
            mode=config.index_mode,
            ready_page_size=config.ready_page_size,
            log_scan_page_size=config.log_scan_page_size,
            judge=judge,
            notices=self._make_notice_reader(),
            inbox=self._inbox_scope(),
            tenure=self.tenure,
        )

    def _inbox_scope(self) -> InboxScope | None:
        """Return the inboxes that this worker looks into: its own or, if it has to find the queue empty, all."""
        lease = self.inbox_lease
        if lease is not None:
            return InboxScope(self._config.worker_id, lambda: lease.is_held)
        return InboxScope(None) if self._config.stop_when_empty else None

    def start_emptying(self) -> None:
        """Begin to offer what was routed to this worker to all others: it takes no more. Running tasks are not delayed
        by that."""
        if self.inbox_lease is not None and self.inbox_lease.is_held:
            self._emptying = asyncio.create_task(best_effort(self._empty_inbox(), "giving the inbox back"))

    async def finish_emptying(self) -> None:
        if self._emptying is not None:
            await asyncio.wait({self._emptying}, timeout=EMPTIED_WITHIN_S)
            self._emptying.cancel()  # The lookout does the rest.

    async def _empty_inbox(self) -> None:
        count = await InboxRecovery(self._queue).offer_inbox(self._config.worker_id)
        if count:
            log.info("%d tasks of this worker's inbox are offered to all", count)

    def make_follower(self, control: Control, holds: Holds, attempts: AttemptStopper, feed: Feed) -> Follower:
        return Follower(
            self._queue,
            control,
            worker_id=self._config.worker_id,
            holds=holds,
            attempts=attempts,
            on_board=partial(self._share, feed),
        )

    def _share(self, feed: Feed, board: Board) -> None:
        """Begin with other shards than the other workers do."""
        if board.workers:
            feed.prefer(rank_of(board, self._config.worker_id), board.workers)

    def _make_notice_reader(self) -> NoticeReader | None:
        """None: this worker lists its shards, or the tasks themselves, at every poll."""
        config = self._config
        if config.stop_when_empty or config.index_mode is IndexMode.LOG_SCAN:
            return None
        return NoticeReader(
            self._queue,
            worker_id=config.worker_id,
            rest_s=config.pace.max_s,
            on_duty=lambda: self.on_duty,
            on_news=self._ports.look,
            holds_inbox=scope.holds if (scope := self._inbox_scope()) is not None else lambda worker_id: False,
            tenure=self.tenure,
        )

    async def join(self) -> None:
        await self._queue.board.edit(lambda board: self._call_roll(sign_on(board, self._config.worker_id)))

    async def release_shards(self) -> None:
        """Own no shards any more, and let the lookout know: this worker is about to stop."""
        if self.tenure is not None:
            self.tenure.leave()
            await self._queue.board.edit(call_roll)

    def _call_roll(self, board: Board) -> Board:
        return board if self.tenure is None else call_roll(board)

    async def leave(self) -> None:
        await self._queue.board.edit(lambda board: self._call_roll(sign_off(board, self._config.worker_id)))
