"""The feed of a worker: the tasks that it should try to claim next."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from qo.core import keys, wire
from qo.core.discovery import Due, IndexMode, Verdict
from qo.core.ownership import units
from qo.core.rhythm import LOOK_ANYWAY_EVERY_S, SCAN_EVERY_S
from qo.core.shard import chosen_shards
from qo.core.task import Status
from qo.errors import CorruptRecord
from qo.queue.deferred_tasks import DeferredTasks, Judge
from qo.queue.inbox_walk import InboxScope, InboxWalk
from qo.queue.index import Walk
from qo.queue.late_tasks import LateTasks
from qo.queue.notice_reader import NoticeReader
from qo.queue.queue import Queue
from qo.queue.scan import Scan
from qo.queue.shard_tenure import ShardTenure
from qo.store.port import Entry

log = logging.getLogger(__name__)

DEFERRED_MAX = 50_000
FRESH_FOR_S = 5.0
PUSHED_MAX = 1_000
PUSHED = "pushed"  # In place of the ETag of a hint, which a wake-up does not name.
PUSHED_FOR_S = 2.0  # A wake-up for the same task within that time is a repeated one.
# Long, because a backlog of types that this worker does not handle is read again after this time.
TAKEN_FOR_S = 600.0
WALK_REST_PER_PAGE_S, WALK_REST_MAX_S = 0.25, 15.0
SHORT_S = 120.0  # Shorter deferrals are of tasks that this worker will run, so it plans to try them again.


class Feed:
    """Candidates for claiming, oldest first by the index. A claim may still fail; the worker then calls ``defer``."""

    def __init__(
        self,
        queue: Queue,
        *,
        shards: tuple[str, ...] = (),
        mode: IndexMode = IndexMode.HYBRID,
        ready_page_size: int = 100,
        log_scan_page_size: int = 50,
        judge: Judge = lambda task_type, ahead: Verdict.TAKE,
        notices: NoticeReader | None = None,
        inbox: InboxScope | None = None,
        tenure: ShardTenure | None = None,
    ) -> None:
        """``judge`` decides whether this worker takes tasks of a type, once the type is known. With ``notices``, the
        index is listed only if there is a reason to; without, at every poll. ``inbox``: where else tasks are listed.
        With ``tenure``, only the shards that it names are listed, and late tasks of others."""
        self._queue = queue
        self._monotonic = queue.ambient.monotonic
        self.mode = mode
        self._page_size = ready_page_size
        self._tenure = tenure
        self._units: frozenset[str] | None = None  # That are listed; None: not only leased ones.
        self._late_tasks = LateTasks(queue, ready_page_size)
        owned = chosen_shards(shards, queue.prefix_len)
        walk = Walk(queue.store, keys.READY, owned, ready_page_size, queue.ambient)
        self._walk = (
            walk if inbox is None else InboxWalk(queue.store, walk, inbox, ready_page_size, self._monotonic)
        )
        self._scan = Scan(queue.store, owned, log_scan_page_size)
        self._scan_at = self._monotonic() + SCAN_EVERY_S
        self._candidates: deque[Due] = deque()
        self._listed_at = 0.0
        self._pushed: deque[tuple[float, str]] = deque(
            maxlen=PUSHED_MAX
        )  # Tasks of wake-ups, and when those came.
        self.looks = 0  # How often the store was listed, and when last.
        self.depth = 0  # How many candidates that listing returned.
        self.looked_at = self._monotonic()
        self._listing_was_fruitful = False  # Whether the last listing returned a candidate.
        self._round_is_empty = False  # The current round of the scan has found nothing so far.
        self._listing_is_empty = False  # The last listing covered everything, and found nothing.
        self._deferred_max = DEFERRED_MAX
        self._deferred: dict[
            tuple[str, str], float
        ] = {}  # By task id and ETag of the hint: when to offer it again.
        self._ready_again = float("-inf")  # When the last deferral of a ready task ends.
        self._deferred_tasks = DeferredTasks(judge)
        self._withheld = 0  # Candidates of the last listing that lacked room for their type.
        self._walk_at = float("-inf")  # The index is not walked again before this time.
        self._notices = notices
        self._shards = frozenset(owned) if shards else None
        self.has_listed = True  # Whether the last candidates come from a listing: then there probably are more.
        self._owes_look = True  # Whether there was a reason to list, and no listing has succeeded since.
        self._listing_has_withheld = False
        self._took_planned = False  # Whether the last candidates were planned ones, without a request.
        self._fallback_look_s = LOOK_ANYWAY_EVERY_S * (0.9 + 0.2 * queue.ambient.unit())

    def prefer(self, rank: int, workers: int) -> None:
        """Start with the share of worker number ``rank`` of ``workers``, so that fewer claims collide."""
        self._walk.prefer(rank, workers)

    def own(self, owned: Iterable[str] | None) -> None:
        """From now on, list only these units; None: all."""
        listed = None if owned is None else frozenset(owned)
        if listed == self._units:
            return
        self._units = listed
        every = units(self._queue.prefix_len)
        if listed is None:
            self._walk.own_all()
        else:
            self._walk.own(listed)
        # In hybrid mode one worker scans for all: tasks without hints are nobody's.
        self._scan.own(every if listed is None or self.mode is IndexMode.HYBRID else listed)

    def push(self, task_ids: Iterable[str]) -> None:
        """Take these tasks next, unless that takes too long: a wake-up has named them."""
        now = self._monotonic()
        self._pushed.extend((now, task_id) for task_id in task_ids)

    async def take_pushed(self, count: int) -> list[Due]:
        """Return up to ``count`` tasks that wake-ups have named, without a request to the store."""
        tasks: list[Due] = []
        if not self._pushed:
            return tasks
        store_now = await self._queue.store.now()
        while self._pushed and len(tasks) < count:
            pushed_at, task_id = self._pushed.popleft()
            minute = keys.minute_of(store_now)
            due = Due(task_id, "", PUSHED, minute, store_now, store_now, minute)
            if self._monotonic() - pushed_at <= FRESH_FOR_S and self._usable(due):
                self.defer(due, PUSHED_FOR_S, expect_gone=True)
                tasks.append(due)
        return tasks

    @property
    def rest_max_s(self) -> float | None:
        """The longest rest between polls that the number of workers allows; None: it does not matter."""
        return None if self._notices is None else self._notices.rest_max_s

    def until_turn_s(self) -> float | None:
        """Return the seconds until this worker's turn to read the board, where workers take turns."""
        return None if self._notices is None else self._notices.until_turn_s()

    def next_due_s(self) -> float:
        """Return the seconds until a task is due that this worker is to try."""
        return float("inf") if self._notices is None else self._notices.next_due_s()

    @property
    def has_more(self) -> bool:
        """Whether there are candidates left that can be taken without a request."""
        return bool(self._candidates)

    def mark_claimed(self, due: Due) -> None:
        """Learn from a claim that succeeded: if the task was an old one, there are probably more."""
        if self._notices is not None:
            self._notices.mark_claimed(due.task_id)

    async def take(self, count: int) -> list[Due]:
        """Return up to ``count`` candidates, each only once until its deferral ends. If none, rest and ask again."""
        if self._tenure is not None:
            self.own(self._tenure.scope)
        if self._monotonic() - self._listed_at > FRESH_FOR_S:
            if self._candidates and self._notices is not None:
                self._notices.has_backlog = True
            self._candidates.clear()  # Others have taken most of these by now.
        tasks = self._deferred_tasks.take(count)
        for due in tasks:
            self._hand_out(due)
        tasks += await self.take_pushed(count - len(tasks))
        if not tasks and not self._candidates:
            if self._notices is not None:
                await self._look_or_read(self._notices)
            elif self._monotonic() >= self._walk_at:
                await self._look()
        while self._candidates and len(tasks) < count:
            due = self._candidates.popleft()
            if self._usable(due):
                self._hand_out(due)
                tasks.append(due)
        return tasks

    def _hand_out(self, due: Due) -> None:
        """Defer a task that is handed out."""
        self.defer(due, TAKEN_FOR_S)

    async def _look_or_read(self, notices: NoticeReader) -> None:
        """Find candidates without a request if some are known, else on the board, else in the index."""
        planned = [due for due in notices.take_agenda() if self._is_ours(due)]
        may_walk = self._monotonic() >= self._walk_at
        self._owes_look = self._must_look(notices)
        try:
            if may_walk and (self._owes_look or self._is_scan_due()):
                if not notices.is_reliable:
                    await notices.read()  # Before the listing, so that none is missed in between.
                await self._look(scan_only=not self._owes_look)
            elif not await self._follow_notices(notices, planned):
                self._owes_look = True
                if may_walk:
                    await self._look()
        finally:
            # Last: what this process submits itself must not keep older tasks waiting.
            self._candidates.extend(planned)

    async def _follow_notices(self, notices: NoticeReader, planned: list[Due]) -> bool:
        """Find candidates without listing. Return False if the index must be listed."""
        self._withheld, self._listed_at, self.has_listed = 0, self._monotonic(), False
        if self._took_planned or not any(self._usable(due) for due in planned):
            self._took_planned = False
            tasks = await notices.read()
            self._candidates.extend(due for due in tasks or () if self._is_ours(due) and self._usable(due))
            return tasks is not None
        self._took_planned = True  # The next time, the board is read as well.
        return True

    def _is_ours(self, due: Due) -> bool:
        return self._shards is None or due.task_id[: self._queue.prefix_len] in self._shards

    def _must_look(self, notices: NoticeReader) -> bool:
        """Whether there is a reason to list the index, whatever the board says."""
        return (
            self._owes_look
            or self._listing_was_fruitful  # Where there was something, there may be more.
            or self._listing_has_withheld  # There may be room for it now.
            or notices.has_backlog
            or self._monotonic() - self.looked_at >= self._fallback_look_s
        )

    def _is_scan_due(self) -> bool:
        """Whether to look for tasks without hints, too. Where there is a lookout, only that one does."""
        is_mine = self._notices is None or self._notices.on_duty()
        return self.mode is IndexMode.HYBRID and is_mine and self._monotonic() >= self._scan_at

    async def _look(self, *, scan_only: bool = False) -> None:
        self.looks += 1
        self.looked_at = self._monotonic()
        self._withheld = 0
        self._candidates.extend(await self._refill(scan_only))
        self._owes_look, self.has_listed, self._listing_has_withheld = False, True, self._withheld > 0
        if self._notices is not None:
            self._notices.has_backlog = False
        self.depth = len(self._candidates)
        self._listed_at = self._monotonic()
        self._listing_was_fruitful = bool(self._candidates)
        if not self._candidates and self._withheld:
            # Pages full of tasks without room. Those that were read are deferred; listing all the others again and
            # again would cost more than it brings.
            pages = self._withheld / self._page_size
            self._walk_at = self._listed_at + min(pages * WALK_REST_PER_PAGE_S, WALK_REST_MAX_S)

    @property
    def is_exhausted(self) -> bool:
        """After an empty ``take``: whether everything was listed and nothing is ready."""
        return self._listing_is_empty and not self.has_withheld and self._ready_again <= self._monotonic()

    @property
    def has_withheld(self) -> bool:
        """Whether the last listing had tasks that only lacked room for their type."""
        return self._withheld > 0

    def put_back(self, due: Due, task_type: str) -> None:
        """Return a task whose type this worker does not take now. It is offered again once ``judge`` allows it."""
        self._deferred_tasks.add(due, task_type)
        self._deferred.pop((due.task_id, due.etag), None)

    def mark_tried(self, due: Due) -> None:
        """Stop counting a task against the room of its type while it is being claimed."""
        self._deferred_tasks.mark_tried(due.task_id)

    def defer(self, due: Due, for_s: float, *, ready: bool = False, expect_gone: bool = False) -> None:
        """Do not offer this version of a hint again for ``for_s`` seconds.

        ``ready``: the task could be claimed all the same, so the feed is not exhausted meanwhile. ``expect_gone``: the
        hint should be removed by then, so there is no reason to look for it.
        """
        now = self._monotonic()
        if ready:
            self._ready_again = max(self._ready_again, now + for_s)
        if len(self._deferred) > self._deferred_max:
            self._deferred = {hint: until for hint, until in self._deferred.items() if until > now}
            self._deferred_max = max(DEFERRED_MAX, 2 * len(self._deferred))
        self._deferred[due.task_id, due.etag] = now + for_s
        if for_s <= SHORT_S and not expect_gone and self._notices is not None:
            self._notices.plan(due, for_s)

    def _usable(self, due: Due) -> bool:
        """Whether to claim a task. Asked when it is listed and again when it is taken."""
        if self._is_deferred(due):
            return False
        verdict = self._deferred_tasks.verdict(due.task_id)
        self._withheld += verdict is Verdict.LATER
        return verdict is Verdict.TAKE

    def _is_deferred(self, due: Due) -> bool:
        return self._deferred.get((due.task_id, due.etag), 0.0) > self._monotonic()

    async def _refill(self, scan_only: bool) -> Sequence[Due]:
        if self.mode is not IndexMode.LOG_SCAN:
            tasks = [] if scan_only else await self._walk.due(self._usable)
            if not tasks and self._units is not None and not scan_only:
                tasks = await self._late_tasks.find(self._usable)
            self._listing_is_empty = not tasks
            if tasks or not self._is_scan_due():
                return self._shuffle(tasks)
            self._scan_at = self._monotonic() + SCAN_EVERY_S
        return await self._scan_page()

    def _shuffle(self, tasks: list[Due]) -> list[Due]:
        """Shuffle the tasks of each minute: their order means nothing, and workers collide less."""
        self._queue.ambient.rng.shuffle(tasks)
        tasks.sort(key=lambda due: due.minute)
        return tasks

    async def _scan_page(self) -> list[Due]:
        was_empty = self._round_is_empty or self._scan.after == ""
        self._round_is_empty = False  # Stays False if the page cannot be read.
        entries = await self._scan.page()
        checked = await asyncio.gather(*(self._claimable(entry) for entry in entries), return_exceptions=True)
        failed = [each for each in checked if isinstance(each, BaseException)]
        if failed and len(failed) == len(checked):
            raise failed[0]
        tasks = [due for due in checked if isinstance(due, Due) and self._usable(due)]
        self._round_is_empty = was_empty and not tasks and not failed
        if self.mode is IndexMode.LOG_SCAN:
            self._listing_is_empty = self._round_is_empty and self._scan.after == ""
        return tasks

    async def _claimable(self, entry: Entry) -> Due | None:
        stored = await self._queue.store.get(entry.key)
        if stored is None:
            return None
        try:
            task = wire.decode_task(stored.body, entry.key)
        except CorruptRecord as error:
            log.error("%s", error)
            return None
        if task.ended:
            self._scan.settle(entry)
        now = await self._queue.store.now()
        if task.status is not Status.PENDING or task.waiting or task.available_at > now:
            return None
        minute = keys.minute_of(task.available_at)
        return Due(task.id, "", task.token, keys.ready_minute(task), now, entry.modified, minute)
