"""Find out which units of the whole queue have due tasks, with as few LISTs as the keys allow.

One LIST is enough while everything fits a page. Beyond that, the scan skips the rest of a unit once it knows one due
key of it, and the rest of a shard after a key that is not due. The next round continues where this one stopped.
"""

from __future__ import annotations

from collections.abc import Callable

from qo.core import keys
from qo.core.discovery import Due, due_entries
from qo.core.ownership import is_overdue, unit_of
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
        self._lit: set[str] = set()  # Units with due tasks in the last complete pass, …
        self._passed: set[str] = set()  # … and in the current pass so far.

    @property
    def lit(self) -> list[str]:
        """The units that had due tasks when they were last scanned."""
        return sorted(self._lit | self._passed)

    async def round(self, usable: Callable[[Due], bool], *, late_s: float) -> list[Due]:
        """Continue the scan. Return some usable tasks, of any unit, that have been due for longer than ``late_s``."""
        now, late = await self._store.now(), list[Due]()
        minute = keys.minute_of(now)
        for _ in range(LISTS_MAX):
            page = await self._store.list(keys.READY, start_after=self._after, limit=LIST_LIMIT_MAX)
            tasks = due_entries(page.entries, now=now, shards=self._shards)
            self._passed.update(unit_of(_shard(due.key)) for due in tasks)
            late += [due for due in tasks if is_overdue(due, late_s) and usable(due)]
            if not page.truncated:
                self._after, self._lit, self._passed = "", self._passed, set()
                break
            self._after = self._next_start(page, minute)
        # A random sample: their owners will claim the first ones next.
        return self._rng.sample(late, min(len(late), OVERDUE_MAX))

    def _next_start(self, page: Page, minute: int) -> str:
        last = page.entries[-1].key
        parsed = keys.parse_index(last)
        if parsed is None:
            return last
        if (unit := unit_of(parsed.shard)) in self._passed:
            return f"{keys.READY}{unit}{keys.AFTER_ALL}"
        return keys.next_start(keys.READY, last, minute)


def _shard(index_key: str) -> str:
    return index_key.split("/", 2)[1]
