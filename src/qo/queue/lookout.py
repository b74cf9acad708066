"""The lookout: the one process that watches the queue for all others.

It lists ``ready/`` every few seconds and posts a notice of each task that nobody was told of: delayed tasks that become
due, and those whose notice was lost. It counts the workers, plans which of them has which shards if those are leased,
repeats the orders' token, and runs the monitor. The duty is on the board (``watch``) and ends by itself; any worker
takes it over then. Two lookouts at once only waste requests.
Tasks that wait too long in the inbox of a worker it offers to all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from qo.core import board as rules
from qo.core import keys
from qo.core.board import AHEAD_S, Board, Notice, WatchTimes, take_watch
from qo.core.discovery import Due, due_entries
from qo.core.rhythm import COUNT_EVERY_S, COUNT_LEASED_EVERY_S
from qo.core.shard import all_shards
from qo.core.sweep import is_left_behind
from qo.core.task import Status
from qo.errors import CorruptRecord, QoError
from qo.queue import control, roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.inbox_recovery import InboxRecovery
from qo.queue.queue import Queue
from qo.queue.shard_planner import ShardPlanner
from qo.store.port import LIST_LIMIT_MAX, UNCHANGED

log = logging.getLogger(__name__)

ROUND_MAX_S = 60.0  # While the index takes many LISTs.
IDLE_CHECK_S = 5.0  # How often others look whether there is a lookout.
HELD_SHARE = 0.9  # Of its time, for which a lookout relies on its duty.
LISTS_MAX = 16  # In one round.
FRESH_S = 5.0  # Whoever wrote a hint posts its notice within this time.
AGAIN_FIRST_S, AGAIN_MAX_S = 10.0, 640.0  # After a notice that nobody followed; doubled each time.
READS_MAX = rules.BATCH_MAX  # Tasks that one round reads and posts; if more wait, every worker lists.


class Lookout:
    def __init__(
        self,
        queue: Queue,
        *,
        name: str,
        rank: int,
        silent_max_s: float,
        times: WatchTimes | None = None,
    ) -> None:
        """``silent_max_s``: workers that have not reported for so long do not count. Make it within the event loop that
        runs it."""
        self._queue = queue
        self._board = queue.board
        self._time = asyncio.get_running_loop().time
        self._name = name
        self._rank = rank
        self._silent_max = timedelta(seconds=silent_max_s)
        self._times = times or WatchTimes()
        self._count_leased_s = min(COUNT_LEASED_EVERY_S, silent_max_s / 3)
        self._shards = frozenset(all_shards(queue.prefix_len))
        self._until = self._renew_at = self._count_at = float("-inf")
        self._roll = 0  # As of the last count.
        self._planner = ShardPlanner(queue)
        self._orders_etag = ""
        self._orders: str | None = None  # The token of the orders, once they were read.
        self._posted: dict[
            tuple[str, str], tuple[float, float]
        ] = {}  # By hint: when to post again, and the rest then.
        self._backlog_at, self._backlog_rest_s = float("-inf"), AGAIN_FIRST_S
        self._lists = 1  # That the last round took.
        self._due_count = 0  # Tasks that were due in the index in the last round.
        self._inboxes = InboxRecovery(queue, silent_max_s=silent_max_s)

    @property
    def on_duty(self) -> bool:
        return self._time() < self._until

    async def run(self) -> None:
        """Watch whenever no other process does, until cancelled; no error ends it. Call ``leave`` afterwards."""
        while True:
            try:
                await self.step()
            except QoError as error:
                log.warning("looking out: %s", error)
            except Exception:
                log.exception("looking out: this should not happen; the next round tries again")
            await asyncio.sleep(self._rest_s() * (0.9 + 0.2 * self._queue.ambient.unit()))

    def _rest_s(self) -> float:
        if not self.on_duty:
            return min(IDLE_CHECK_S, self._times.round_s)
        return min(self._times.round_s * max(1.0, self._lists / 2), ROUND_MAX_S)

    async def step(self) -> None:
        """Take over the duty if nobody has it, and do it if this process has it."""
        if not self.on_duty and not await self._take_over():
            return
        notices, backlog = await self._survey()
        now = await self._queue.store.now()
        if self._inboxes.is_due(self._board.board, now):
            await self._inboxes.offer_overdue(self._due_count)
        edits: list[Callable[[Board], Board]] = []
        if notices:
            edits.append(lambda board: rules.post(board, notices, now=now))
        if backlog:
            edits.append(lambda board: rules.announce(board, backlog))
        if self._time() >= self._renew_at - self._times.round_s / 2 or self._is_roll_new():
            edits += await self._gather_news(now)
        if edits:
            await self._publish(edits, now)

    async def leave(self) -> None:
        """Give the duty back, if this process has it."""
        if self.on_duty:
            self._until = float("-inf")
            await self._board.edit(lambda board: rules.end_watch(board, self._name))

    async def _take_over(self) -> bool:
        board, now = self._board.board, await self._queue.store.now()
        if board is None or self._board.age_s() > self._times.ttl_s / 4:
            board = await self._board.read()
        if board is not None and self._take_watch(board, now) is None:
            return False
        await self._publish([], now)
        if self.on_duty:
            log.info("this process is the lookout now")
            self._count_at = self._renew_at = self._time()
        return self.on_duty

    def _take_watch(self, board: Board, now: datetime) -> Board | None:
        return take_watch(board, self._name, self._rank, now=now, ttl_s=self._times.ttl_s)

    async def _publish(self, edits: list[Callable[[Board], Board]], now: datetime) -> None:
        """Change the board, and renew the duty with the same write. If another process has the duty, give it up."""
        sent_at, lost = self._time(), False

        def edit(board: Board) -> Board | None:
            nonlocal lost
            watched = self._take_watch(board, now)
            lost = watched is None
            if watched is None:
                return None
            for each in edits:
                watched = each(watched)
            return rules.drop_old(watched, now=now)

        if await self._board.edit(edit):
            self._until = sent_at + self._times.ttl_s * HELD_SHARE
            self._renew_at = sent_at + self._times.renew_s
        elif lost:
            self._until = float("-inf")

    async def _gather_news(self, now: datetime) -> list[Callable[[Board], Board]]:
        """Return the edits that go with a renewal: the count of workers, the number of the plan, and the token of the
        orders."""
        edits: list[Callable[[Board], Board]] = []
        if self._time() >= self._count_at or self._is_roll_new():
            edits.append(await self._count(now))
        if self._planner.number:
            edits.append(lambda board: rules.show_plan(board, self._planner.number))
        if (orders := await self._read_orders()) is not None:
            edits.append(lambda board: rules.show_orders(board, orders))
        return edits

    def _is_roll_new(self) -> bool:
        return self._board.board is not None and self._board.board.roll != self._roll

    async def _count(self, now: datetime) -> Callable[[Board], Board]:
        """Count the workers, and plan by that. Return the edit that publishes the count."""
        board, is_roll_new = self._board.board or Board(), self._is_roll_new()
        last_reports = await roster.last_heard(self._queue.store)
        live = [each for each, at in last_reports.items() if at >= now - self._silent_max]
        try:
            await self._planner.plan(live, shown_number=board.plan, read_all=is_roll_new)
        except QoError as error:
            log.warning("the shards are not shared out anew: %s", error)
        self._roll = board.roll
        self._count_at = self._time() + (self._count_leased_s if self._planner.is_used else COUNT_EVERY_S)
        return lambda board: rules.count_workers(board, live)

    async def _read_orders(self) -> str | None:
        """Return the token of the orders; None: it cannot be read."""
        store, etag = self._queue.store, self._orders_etag
        stored = await (store.get_if_changed(keys.DESIRED, etag) if etag else store.get(keys.DESIRED))
        if stored is not UNCHANGED:
            try:
                self._orders = control.decode(stored).token
                self._orders_etag = "" if stored is None else stored.etag
            except CorruptRecord as error:
                log.debug("%s", error)
                self._orders = None
        return self._orders

    # The index

    async def _survey(self) -> tuple[list[Notice], int]:
        """List the index. Return notices of tasks that nobody was told of; and the number of tasks that wait, if it is
        time to say that there are too many to name."""
        now = await self._queue.store.now()
        listed = await self._list(now)
        self._due_count = sum(due.due_minute <= keys.minute_of(now) for due in listed)
        waiting = [due for due in listed if self._is_due_for_notice(due, now)]
        if len(waiting) > READS_MAX:
            minute = keys.minute_of(now)  # Of many, those of the next minute can wait for it.
            waiting = [due for due in waiting if due.due_minute <= minute]
        if len(waiting) > READS_MAX:
            if self._time() < self._backlog_at:
                return [], 0
            self._backlog_at = self._time() + self._backlog_rest_s
            self._backlog_rest_s = min(2 * self._backlog_rest_s, AGAIN_MAX_S)
            return [], len(waiting)
        self._backlog_rest_s = AGAIN_FIRST_S
        notices = await gather_cancellable(self._notice(due) for due in waiting)
        return [notice for notice in notices if notice is not None], 0

    async def _list(self, now: datetime) -> list[Due]:
        """Return the hints that are due, or soon will be, as far as the bounded number of LISTs goes."""
        horizon = now + timedelta(seconds=AHEAD_S / 2)
        after, found_dues, self._lists = "", list[Due](), 0
        while self._lists < LISTS_MAX and len(found_dues) <= LIST_LIMIT_MAX:
            self._lists += 1
            page = await self._queue.store.list(keys.READY, start_after=after, limit=LIST_LIMIT_MAX)
            dues = due_entries(page.entries, now=horizon, shards=self._shards)
            found_dues += dues
            if not page.truncated:
                self._forget_gone(found_dues)
                break
            after = keys.next_start(keys.READY, page.entries[-1].key, keys.minute_of(horizon))
        return found_dues

    def _forget_gone(self, listed: list[Due]) -> None:
        remaining = {(due.task_id, due.etag) for due in listed}
        self._posted = {hint: again for hint, again in self._posted.items() if hint in remaining}

    def _is_due_for_notice(self, due: Due, now: datetime) -> bool:
        if (now - due.written_at).total_seconds() < FRESH_S:
            return False  # Its writer is about to post it.
        at, hint = self._time(), (due.task_id, due.etag)
        again = self._posted.get(hint)
        if again is not None:
            return at >= again[0]
        notices = [] if self._board.board is None else self._board.board.notices
        notice = next((each for each in notices if (each.task, each.etag) == hint), None)
        if notice is None:
            return True
        age_s = (now - max(notice.at, notice.due)).total_seconds()
        self._posted[hint] = (at + AGAIN_FIRST_S - age_s, AGAIN_FIRST_S)
        return age_s >= AGAIN_FIRST_S

    async def _notice(self, due: Due) -> Notice | None:
        """Return the notice of a task that is still pending. Its hint says the minute, the task says the moment."""
        at, rest_s = self._time(), self._posted.get((due.task_id, due.etag), (0.0, AGAIN_FIRST_S / 2))[1]
        rest_s = min(2 * rest_s, AGAIN_MAX_S)
        try:
            snapshot = await self._queue.tasks.load(due.task_id)
        except CorruptRecord as error:
            log.error("%s", error)
            self._posted[due.task_id, due.etag] = (at + AGAIN_MAX_S, rest_s)
            return None
        now = await self._queue.store.now()
        if snapshot is None or snapshot.task.status is not Status.PENDING or snapshot.task.waiting:
            task = None if snapshot is None else snapshot.task
            if task is None or is_left_behind(task, now):
                await self._queue.tasks.repair_hint(due, task)
            self._posted[due.task_id, due.etag] = (at + self._times.round_s, rest_s)
            return None
        waits_s = max(0.0, (snapshot.task.available_at - now).total_seconds())
        self._posted[due.task_id, due.etag] = (at + waits_s + rest_s, rest_s)
        task = snapshot.task
        return Notice(task=task.id, hint=due.key, due=task.available_at, at=now, etag=due.etag)
