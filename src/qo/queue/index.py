"""Find the due keys of an index prefix with as few LISTs as the keys allow.

While everything fits one page, one LIST over all shards is enough: that is the cost of an idle poll. Beyond that, the
shards are visited in sixteen segments (by their first hex character) in turn. A visit starts at the head, where the
oldest keys are. It skips the rest of a shard at the first key that is not due, since all later ones are not due
either, and it continues past keys that are not usable, so that no task behind them starves. Urgent tasks that are not
due yet stand before others; those of one place and one due minute are skipped together.

Workers that know of each other start with different segments (``prefer``). They do not own them: a worker that finds
nothing in its own segments looks at all others, and now and then every worker does, since the workers of a segment may
be busy or run other types of tasks.

Workers that lease their shards (``own``) list only those. Adjacent shards take one LIST, however crowded the rest of
the index is; beyond a page, they are visited in turn as above.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from datetime import datetime

from qo.ambient import Ambient
from qo.core import keys
from qo.core.discovery import Due, due_entries, share
from qo.core.ownership import Block, Within, blocks
from qo.queue.concurrency import gather_cancellable
from qo.store.port import ObjectStore, Page

Usable = Callable[[Due], bool]

ELSEWHERE = 0.1  # The share of walks that treat all segments alike.


class Walk:
    def __init__(
        self, store: ObjectStore, prefix: str, shards: Sequence[str], page_size: int, ambient: Ambient
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._owned: Container[str] = frozenset(shards)
        self._leased = False
        self._whole = Block("", "")
        self._shards = tuple(shards)
        self._segments = _segments(shards)
        self._page_size = page_size
        self._crowded = False  # More keys than one page holds.
        self._unit = ambient.unit
        # Workers that start together should not all start with the same segment.
        self._turn = int(ambient.unit() * len(self._segments))
        self._after: dict[Block, str] = {}  # Where the next visit to a segment continues; absent: at its head.
        self._mine = frozenset(self._segments)
        self._preferred: tuple[int, int] | None = None

    def prefer(self, rank: int, workers: int) -> None:
        """Start with the share of worker number ``rank`` of ``workers``, while all shards are listed."""
        self._preferred = rank, workers
        if not self._leased:
            mine = share([segment.first for segment in self._segments], rank, workers)
            self._mine = frozenset(Block(first, first) for first in mine)

    def own_all(self) -> None:
        """From now on, list all shards again."""
        self._owned, self._leased, self._crowded = frozenset(self._shards), False, False
        self._segments, self._whole, self._after = _segments(self._shards), Block("", ""), {}
        self._mine = frozenset(self._segments)
        if self._preferred is not None:
            self.prefer(*self._preferred)

    def own(self, units: Iterable[str]) -> None:
        """From now on, list only these units."""
        owned = sorted(units)
        self._owned, self._leased, self._crowded = Within(owned), True, False
        by_segment = [
            [unit for unit in owned if unit[0] == first] for first in sorted({unit[0] for unit in owned})
        ]
        self._segments = tuple(block for segment in by_segment for block in blocks(segment))
        self._whole = Block(owned[0], owned[-1]) if owned else Block("", "")
        self._after = {segment: after for segment, after in self._after.items() if segment in self._segments}
        self._mine = frozenset(self._segments)

    async def due(self, usable: Usable) -> list[Due]:
        """Return the usable due keys: all of them if they fit one page, else some. Empty if there are none."""
        if not self._segments:
            return []
        now = await self._store.now()
        mine = self._mine if self._unit() >= ELSEWHERE else frozenset(self._segments)
        if not self._crowded:
            page = await self._page(self._whole, "")
            if not page.truncated:
                tasks = self._usable_tasks(page, now, usable)
                at_home = [due for due in tasks if Block(due.task_id[0], due.task_id[0]) in mine]
                return tasks if self._leased else at_home or tasks
            self._crowded = True
        # Each walk starts one segment further on, so that a segment that is never empty does not starve the others.
        self._turn = (self._turn + 1) % len(self._segments)
        order = [*self._segments[self._turn :], *self._segments[: self._turn]]
        order.sort(key=lambda segment: segment not in mine)
        first, *others = order
        tasks, key_count = await self._visit(first, now, usable)
        for some in ([s for s in others if s in mine], [s for s in others if s not in mine]):
            if tasks:
                return tasks
            # If one segment is empty, often all are: visit the others concurrently.
            visits = await gather_cancellable(self._visit(segment, now, usable) for segment in some)
            key_count += sum(count for _, count in visits)
            tasks = [due for dues, _ in visits for due in dues]
        self._crowded = bool(tasks) or key_count > self._page_size
        return tasks

    async def _visit(self, segment: Block, now: datetime, usable: Usable) -> tuple[list[Due], int]:
        """Return the first usable keys of a segment, from where the last visit ended and then from its head, and the
        number of keys listed."""
        after, key_count = self._after.pop(segment, ""), 0
        again = after != ""  # If nothing follows that place, start again at the head.
        while True:
            page = await self._page(segment, after)
            key_count += len(page.entries)
            tasks = self._usable_tasks(page, now, usable)
            if page.truncated:
                after = keys.next_start(self._prefix, page.entries[-1].key, keys.minute_of(now))
            if tasks:
                shard = _only_shard(page)
                if page.truncated and shard is None:
                    self._after[segment] = after
                elif page.truncated and not segment.first == segment.last == shard:
                    # Its neighbours are next: a shard that is never empty must not starve them.
                    self._after[segment] = f"{self._prefix}{shard}/{keys.AFTER_ALL}"
                # If the segment is one crowded shard, the next visit starts at its head: claimed tasks leave it.
                return tasks, key_count
            if not page.truncated:
                if not again:
                    return [], key_count
                after, again = "", False

    async def _page(self, block: Block, after: str) -> Page:
        """List the keys of the block after ``after``, without those beyond its end."""
        start = after or block.start(self._prefix)
        page = await self._store.list(f"{self._prefix}{block.common}", start_after=start, limit=self._page_size)
        end = block.end(self._prefix)
        if page.entries and page.entries[-1].key > end:
            return Page([entry for entry in page.entries if entry.key < end], truncated=False)
        return page

    def _usable_tasks(self, page: Page, now: datetime, usable: Usable) -> list[Due]:
        tasks = due_entries(page.entries, now=now, shards=self._owned)
        return [due for due in tasks if usable(due)]


def _segments(shards: Sequence[str]) -> tuple[Block, ...]:
    return tuple(Block(first, first) for first in sorted({shard[0] for shard in shards}))


def _only_shard(page: Page) -> str | None:
    """Return the shard that all keys of the page belong to, if it is only one."""
    first, last = keys.parse_index(page.entries[0].key), keys.parse_index(page.entries[-1].key)
    return first.shard if first is not None and last is not None and first.shard == last.shard else None
