"""A worker as one of many: it is counted on the board, learns of new tasks there, and may be the lookout."""

from __future__ import annotations

from functools import partial

from qo.core.board import Board, Rank, rank_of, sign_off, sign_on
from qo.core.discovery import IndexMode
from qo.queue.deferred_tasks import Judge
from qo.queue.feed import Feed
from qo.queue.lookout import Lookout
from qo.queue.notice_reader import NoticeReader
from qo.queue.queue import Queue
from qo.worker.config import WorkerConfig
from qo.worker.loop.control import Control, Follower
from qo.worker.loop.hold import Holds
from qo.worker.ports import AttemptStopper, Ports

SILENT_BEATS = 3  # A worker that has missed so many heartbeats is not counted.


class Crew:
    def __init__(self, queue: Queue, config: WorkerConfig, ports: Ports) -> None:
        self._queue = queue
        self._config = config
        self._ports = ports
        self.lookout = Lookout(
            queue,
            name=config.worker_id,
            rank=Rank.WORKER if config.has_monitor else Rank.WORKER_ALONE,
            silent_max_s=SILENT_BEATS * config.heartbeat_s,
            times=config.watch,
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
        )

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
        if config.leases_shards or config.stop_when_empty or config.index_mode is IndexMode.LOG_SCAN:
            return None
        return NoticeReader(
            self._queue,
            worker_id=config.worker_id,
            rest_s=config.pace.max_s,
            on_duty=lambda: self.on_duty,
            on_news=self._ports.look,
        )

    async def join(self) -> None:
        await self._queue.board.edit(lambda board: sign_on(board, self._config.worker_id))

    async def leave(self) -> None:
        await self._queue.board.edit(lambda board: sign_off(board, self._config.worker_id))
