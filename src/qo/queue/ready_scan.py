"""Where in the whole queue something is due, learned with as few LISTs as the keys allow.

One, while everything fits a page. Beyond that, a unit of which one due key is known is jumped over, and so is
the rest of a shard behind a key that is not due. What one round does not reach is the next one's.
"""

from __future__ import annotations

from collections.abc import Callable

from qo.core import keys
from qo.core.discovery import Due, harvest
from qo.core.ownership import overdue, unit_of
from qo.core.shard import all_shards
from qo.queue.queue import Queue
from qo.store.port import LIST_LIMIT_MAX, Page

LISTS_MAX = 32  # In one round.
OVERDUE_MAX = 100


class ReadyScan:
    def __init__(self, queue: Queue) -> None:
        self._store = queue.store
        self._rng = queue.ambient.rng
        self._shards = frozenset(all_shards(queue.prefix_len))
        self._after = ""
        self._lit: set[str] = set()  # In the last pass over the whole, and in this one so far.
        self._passed: set[str] = set()

    @property
    def lit(self) -> list[str]:
        """The units in which something is due, as far as is known."""
        return sorted(self._lit | self._passed)

    async def round(self, usable: Callable[[Due], bool], *, late_s: float) -> list[Due]:
        """Look on. The answer is some of what has lain due for longer than ``late_s`` and is usable, wherever it is."""
        now, late = await self._store.now(), list[Due]()
        minute = keys.minute_of(now)
        for _ in range(LISTS_MAX):
            page = await self._store.list(keys.READY, start_after=self._after, limit=LIST_LIMIT_MAX)
            tasks = harvest(page.entries, now=now, shards=self._shards)
            self._passed.update(unit_of(_shard(due.key)) for due in tasks)
            late += [due for due in tasks if overdue(due, late_s) and usable(due)]
            if not page.truncated:
                self._after, self._lit, self._passed = "", self._passed, set()
                break
            self._after = self._next_start(page, minute)
        # Any of them: the first are what their owners come to next.
        return self._rng.sample(late, min(len(late), OVERDUE_MAX))

    def _next_start(self, page: Page, minute: int) -> str:
        last = page.entries[-1].key
        parsed = keys.parse_index(last)
        if parsed is None:
            return last
        if (unit := unit_of(parsed.shard)) in self._passed:
            return f"{keys.READY}{unit}{keys.AFTER_ALL}"
        if parsed.minute > minute:
            return f"{keys.READY}{parsed.shard}/{keys.AFTER_ALL}"
        return last


def _shard(index_key: str) -> str:
    return index_key.split("/", 2)[1]
