"""Which tasks a worker should try to claim next."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Iterable, Sequence

from qo.core import keys, wire
from qo.core.discovery import Due, IndexMode, Verdict
from qo.core.ownership import overdue, unit_of, units
from qo.core.shard import chosen_shards
from qo.core.task import Status
from qo.errors import CorruptRecord
from qo.queue.deferred import DeferredTasks, Judge
from qo.queue.index import Walk
from qo.queue.queue import Queue
from qo.queue.scan import Scan
from qo.store.port import Entry

log = logging.getLogger(__name__)

HYBRID_SCAN_EVERY_S = 60.0
DEFERRED_MAX = 50_000
FRESH_FOR_S = 5.0
# Long, because an older backlog of types that we do not handle is read once in this time.
TAKEN_FOR_S = 600.0
WALK_REST_PER_PAGE_S, WALK_REST_MAX_S = 0.25, 15.0
SHORT_S = 120.0  # Deferrals up to this are for tasks that we shall run; their end is waited for.


class Feed:
    """Candidates, oldest first as far as the index says. Claiming one may still fail; ``defer`` says so."""

    def __init__(
        self,
        queue: Queue,
        *,
        shards: tuple[str, ...] = (),
        mode: IndexMode = IndexMode.HYBRID,
        ready_page_size: int = 100,
        log_scan_page_size: int = 50,
        judge: Judge = lambda task_type, ahead: Verdict.TAKE,
    ) -> None:
        """``judge`` says whether tasks of a type are for us, once that is known."""
        self._queue = queue
        self._monotonic = queue.ambient.monotonic
        self.mode = mode
        self._page_size = ready_page_size
        self._units: frozenset[str] | None = None  # None: shards are not leased.
        self._late_s: float | None = None
        owned = chosen_shards(shards, queue.prefix_len)
        self._walk = Walk(queue.store, keys.READY, owned, ready_page_size, queue.ambient)
        self._scan = Scan(queue.store, owned, log_scan_page_size)
        self._scan_at = self._monotonic() + HYBRID_SCAN_EVERY_S
        self._candidates: deque[Due] = deque()
        self._listed_at = 0.0
        self._late: deque[Due] = deque()  # What others own and have not come to.
        self.looks = 0  # How often the store was asked, and when last.
        self.depth = 0  # How many candidates it showed then.
        self.looked_at = self._monotonic()
        self.fruitful_at = float("-inf")  # When something was last found.
        self._barren_round = False  # Nothing was found since the scan's round began.
        self._barren = False  # The last look went everywhere, and there was nothing.
        self._deferred_max = DEFERRED_MAX
        self._deferred: dict[tuple[str, str], float] = {}  # A hint, in one writing, to when to offer it again.
        self._ready_again = float("-inf")  # Until when something ready is put off.
        self._again: list[float] = []  # A heap of when short deferrals end.
        self._deferred_tasks = DeferredTasks(judge)
        self._withheld = 0  # How many the last look would have found, had there been room for their types.
        self._walk_at = float("-inf")  # Not to walk through all of those again before this.

    def prefer(self, rank: int, workers: int) -> None:
        """Begin with the share of worker number ``rank`` of so many, so that fewer races are run and lost."""
        self._walk.prefer(rank, workers)

    def own(self, owned: Iterable[str], *, late_s: float | None = None) -> None:
        """From now on, look at these units and no others; at none, if there are none.

        With ``late_s``, what has lain due for so long is taken too, whoever owns it, where tasks are read or
        ``offer`` brings it.
        """
        owned_units = frozenset(owned)
        if (owned_units, late_s) != (self._units, self._late_s):
            self._units, self._late_s = owned_units, late_s
            self._walk.own(owned_units)
            self._scan.own(owned_units if late_s is None else units(self._queue.prefix_len))

    def offer(self, late: Iterable[Due]) -> None:
        """Have these taken next: their owner has not come to them."""
        self._late = deque(late)

    @property
    def offered(self) -> bool:
        """Whether there is something to take without asking the store."""
        return bool(self._late)

    def wants(self, due: Due) -> bool:
        """Whether a hint would be taken, were it found in our units."""
        return not self._put_off(due) and self._deferred_tasks.verdict(due.task_id) is Verdict.TAKE

    def deferral_ended(self) -> bool:
        """Whether something that was put off for a short while may be taken now. True once for each."""
        ended = False
        while self._again and self._again[0] <= self._monotonic():
            heapq.heappop(self._again)
            ended = True
        return ended

    async def take(self, count: int) -> list[Due]:
        """Up to ``wanted`` candidates, each offered once until its deferral ends. Empty: rest, then ask again."""
        if self._monotonic() - self._listed_at > FRESH_FOR_S:
            self._candidates.clear()  # Others have taken most of these by now.
        tasks = self._deferred_tasks.take(count)
        for due in tasks:
            self._hand_out(due)
        if not tasks and not self._candidates and not self._late and self._monotonic() >= self._walk_at:
            await self._look()
        while (self._late or self._candidates) and len(tasks) < count:
            due = self._late.popleft() if self._late else self._candidates.popleft()
            if self._usable(due):
                self._hand_out(due)
                tasks.append(due)
        return tasks

    def _hand_out(self, due: Due) -> None:
        """In our hands now. When we are done with it, this writing of its hint is worth nothing."""
        self.defer(due, TAKEN_FOR_S)
        if due.key:
            self._queue.hints.learn(due.key, due.etag)

    async def _look(self) -> None:
        self.looks += 1
        self.looked_at = self._monotonic()
        self._withheld = 0
        self._candidates.extend(await self._refill())
        self.depth = len(self._candidates)
        self._listed_at = self._monotonic()
        if self._candidates:
            self.fruitful_at = self._listed_at
        elif self._withheld:
            # Whole pages of tasks for which there is no room: those that were read are on the shelf, and to list
            # all the others over and over would cost more than it brings.
            pages = self._withheld / self._page_size
            self._walk_at = self._listed_at + min(pages * WALK_REST_PER_PAGE_S, WALK_REST_MAX_S)

    @property
    def exhausted(self) -> bool:
        """After an empty ``take``: everything was looked at, and there was nothing that is ready."""
        return self._barren and not self.withheld and self._ready_again <= self._monotonic()

    @property
    def withheld(self) -> bool:
        """Whether something would have been found, had there been room for its type."""
        return self._withheld > 0

    def put_back(self, due: Due, task_type: str) -> None:
        """It was read, and is of a type that is not for us now. It is offered again when ``judge`` says so."""
        self._deferred_tasks.add(due, task_type)
        self._deferred.pop((due.task_id, due.etag), None)

    def mark_tried(self, due: Due) -> None:
        """It has been read: whether there is room for more of its type can be judged without it."""
        self._deferred_tasks.mark_tried(due.task_id)

    def defer(self, due: Due, for_s: float, *, ready: bool = False, expect_gone: bool = False) -> None:
        """Do not offer this hint again for a while, unless it is written anew. If its task is ``ready`` all the same,
        the feed is not exhausted meanwhile. If it should be ``gone`` by then, nobody waits for that while to end."""
        now = self._monotonic()
        if ready:
            self._ready_again = max(self._ready_again, now + for_s)
        if len(self._deferred) > self._deferred_max:
            self._deferred = {hint: until for hint, until in self._deferred.items() if until > now}
            self._deferred_max = max(DEFERRED_MAX, 2 * len(self._deferred))
        self._deferred[due.task_id, due.etag] = now + for_s
        if self._units is not None and for_s <= SHORT_S and not expect_gone:
            heapq.heappush(self._again, now + for_s)

    def _usable(self, due: Due) -> bool:
        """Asked when it is found, and again when it is taken: it may have become another's meanwhile."""
        if self._put_off(due) or not self._owns(due):
            return False
        verdict = self._deferred_tasks.verdict(due.task_id)
        self._withheld += verdict is Verdict.LATER
        return verdict is Verdict.TAKE

    def _put_off(self, due: Due) -> bool:
        return self._deferred.get((due.task_id, due.etag), 0.0) > self._monotonic()

    def _owns(self, due: Due) -> bool:
        if self._units is None or (self._late_s is not None and overdue(due, self._late_s)):
            return True
        shard = due.key.split("/", 2)[1] if due.key else due.task_id[: self._queue.prefix_len]
        return unit_of(shard) in self._units

    async def _refill(self) -> Sequence[Due]:
        if self.mode is not IndexMode.LOG_SCAN:
            tasks = await self._walk.due(self._usable)
            self._barren = not tasks
            if tasks or self.mode is IndexMode.INDEX_ONLY or self._monotonic() < self._scan_at:
                return self._shuffle(tasks)
            self._scan_at = self._monotonic() + HYBRID_SCAN_EVERY_S
        return await self._scan_page()

    def _shuffle(self, tasks: list[Due]) -> list[Due]:
        """Within a minute the order means nothing, so each worker takes its own: fewer races are lost."""
        self._queue.ambient.rng.shuffle(tasks)
        tasks.sort(key=lambda due: due.minute)
        return tasks

    async def _scan_page(self) -> list[Due]:
        barren = self._barren_round or self._scan.after == ""
        self._barren_round = False  # Until the page has been read: one that cannot be is not one without tasks.
        entries = await self._scan.page()
        checked = await asyncio.gather(*(self._claimable(entry) for entry in entries), return_exceptions=True)
        failed = [each for each in checked if isinstance(each, BaseException)]
        if failed and len(failed) == len(checked):
            raise failed[0]
        tasks = [due for due in checked if isinstance(due, Due) and self._usable(due)]
        self._barren_round = barren and not tasks and not failed
        if self.mode is IndexMode.LOG_SCAN:
            self._barren = self._barren_round and self._scan.after == ""
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
        if task.status is not Status.PENDING or task.available_at > now:
            return None
        return Due(task.id, "", task.token, keys.minute_of(task.available_at), now, entry.modified)
