"""What one worker learns of new tasks without listing: from the board, and from its own process.

The board is relied on only while a lookout keeps watch and no notice was missed. Otherwise the worker lists the index,
as if there were no board.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from datetime import datetime
from itertools import count

from qo.core import keys
from qo.core.board import (
    Board,
    Notice,
    Reader,
    due_from,
    has_missed,
    is_watched,
    rest_max_s,
    turn_s,
    until_turn_s,
)
from qo.core.discovery import Due
from qo.queue.queue import Queue
from qo.queue.shard_tenure import ShardTenure, Turn

log = logging.getLogger(__name__)

PLANNED_FOR_S = 5.0
AGENDA_MAX = 1_000  # Of tasks that this process knows of without the board. Those beyond are found by others.


class NoticeReader:
    def __init__(
        self,
        queue: Queue,
        *,
        worker_id: str,
        rest_s: float,
        on_duty: Callable[[], bool] = lambda: False,
        on_news: Callable[[], None] = lambda: None,
        holds_inbox: Callable[[str], bool] = lambda worker_id: False,
        tenure: ShardTenure | None = None,
    ) -> None:
        """``rest_s``: the longest rest between reads. ``on_duty``: whether this process is the lookout. ``on_news`` is
        called when this process itself has submitted a task. ``holds_inbox``: whether to take tasks out of the inbox of
        that worker. With ``tenure``, workers read in turns."""
        self._queue = queue
        self._board = queue.board
        self._monotonic = queue.ambient.monotonic
        self._rest_s = rest_s
        self._reader = Reader(worker_id, 1, rest_s)
        self.on_duty = on_duty
        self._on_news = on_news
        self._holds_inbox = holds_inbox
        self._tenure = tenure
        self._turn: Turn | None = None
        self._now_s = 0.0  # The store's time at the last read.
        self._last_number: int | None = (
            None  # The number of the last notice that was read; None: the board says nothing.
        )
        self._read_at = float("-inf")
        self._preferred_at = float("inf")  # When the first task that prefers this worker is due.
        self._agenda: list[tuple[float, int, Due]] = []  # A heap of tasks, by when to try them.
        self._order = count()
        self._followed: set[int] = set()  # Numbers of notices on the board that were followed.
        self._probes: set[str] = set()  # Old tasks that were tried, to learn whether there are more.
        self.has_backlog = False  # Whether an old task could still be claimed.
        queue.board.subscribe(on_post=self._plan_own)

    @property
    def is_reliable(self) -> bool:
        return self._last_number is not None

    @property
    def rest_max_s(self) -> float | None:
        return self._reader.rest_s if self.is_reliable else None

    def until_turn_s(self) -> float | None:
        """Return the seconds until this worker's turn to read the board; None: it reads whenever it likes."""
        if self._turn is None or not self.is_reliable:
            return None
        now_s = self._now_s + self._monotonic() - self._read_at
        return until_turn_s(self._turn.place, self._turn.workers, self._reader.rest_s, now_s)

    def next_due_s(self) -> float:
        """Return the seconds until something is due that this worker is to try."""
        due_at = min(self._preferred_at, self._agenda[0][0] if self._agenda else float("inf"))
        return max(0.0, due_at - self._monotonic())

    def plan(self, due: Due, in_s: float) -> None:
        """Try this task again after so many seconds."""
        if len(self._agenda) < AGENDA_MAX:
            heapq.heappush(self._agenda, (self._monotonic() + in_s, next(self._order), due))

    def _plan_own(self, notice: Notice) -> None:
        """Try a task that this process has submitted or put back: it need not wait for the board to say so."""
        if not self._may_follow(notice):
            return
        in_s = max(0.0, (notice.due - notice.at).total_seconds())
        self.plan(due_from(notice), in_s)
        self._on_news()

    def take_agenda(self) -> list[Due]:
        """Return the planned tasks that are due, each once; those that wait for long others have probably taken."""
        now, tasks = self._monotonic(), list[Due]()
        while self._agenda and self._agenda[0][0] <= now:
            at, _, due = heapq.heappop(self._agenda)
            if now - at <= PLANNED_FOR_S:
                tasks.append(due)
            else:
                self.has_backlog = True
        return tasks

    def mark_claimed(self, task_id: str) -> None:
        if task_id in self._probes:
            self._probes.clear()
            self.has_backlog = True

    async def read(self) -> list[Due] | None:
        """Return the tasks on the board that this worker should try; None: list the index instead."""
        was_away = self._monotonic() - self._read_at > 2 * self._reader.rest_s
        self._read_at, self._preferred_at = self._monotonic(), float("inf")
        self._probes.clear()
        board = await self._board.read()
        now = await self._queue.store.now()
        self._now_s = now.timestamp() - (self._monotonic() - self._read_at)
        last_number, self._last_number = self._last_number, None
        if board is None or not is_watched(board, now):
            return None
        self._last_number = board.sequence
        self._learn_crew(board)
        if last_number is None or has_missed(board, last_number):
            return None
        followed = [
            each for each in board.notices if self._follows(each, now, was_away and each.number > last_number)
        ]
        self._followed = {
            each.number for each in board.notices if each in followed or each.number in self._followed
        }
        return [due_from(notice) for notice in followed]

    def _follows(self, notice: Notice, now: datetime, is_new_after_absence: bool) -> bool:
        """Whether to try this task now; each notice is followed once."""
        if notice.number in self._followed or not self._may_follow(notice):
            return False
        if notice.hint.startswith(keys.INBOX):
            return True  # Nobody else will.
        if notice.due > now:
            if self._reader.is_preferred(notice):
                in_s = (notice.due - now).total_seconds()
                self._preferred_at = min(self._preferred_at, self._monotonic() + in_s)
            return False
        if self._reader.follows(notice, now):
            return True
        if is_new_after_absence and not self._probes:
            # Posted while this worker had no room. If it is still there, others may be, too.
            self._probes.add(notice.task)
            return True
        return False

    def _may_follow(self, notice: Notice) -> bool:
        """Whether the task is not in the inbox of another worker."""
        routed = keys.parse_inbox(notice.hint)
        return routed is None or self._holds_inbox(routed.worker_id)

    def _learn_crew(self, board: Board) -> None:
        self._turn = None if self._tenure is None else self._tenure.turn
        if self._tenure is None or self._turn is None:
            rest_s, workers, units = rest_max_s(board.workers, self._rest_s), board.workers, None
        else:
            workers, units = self._turn.workers, frozenset(self._tenure.owned)
            rest_s = turn_s(workers, self._rest_s)
        self._reader = self._reader._replace(workers=workers, rest_s=rest_s, units=units)
