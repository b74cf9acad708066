"""Find tasks without an index: list task objects page by page, and remember which need not be read again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from qo.core import keys
from qo.core.ownership import Block, Within, blocks
from qo.store.port import Entry, ObjectStore

REMEMBERED_MAX = 200_000


class Scan:
    """Lists ``tasks/`` of the given shards, one page per call, and starts over at the end."""

    def __init__(self, store: ObjectStore, shards: Sequence[str], page_size: int, after: str = "") -> None:
        self._store = store
        self._owned: Container[str] = frozenset(shards)
        self._blocks = (Block("", ""),)
        self._page_size = page_size
        self.after = after  # Where the next page begins; "" is the start.
        self._ended: OrderedDict[str, str] = OrderedDict()  # Key to ETag of tasks that need no second look.

    def own(self, units: Iterable[str]) -> None:
        """From now on, list only these units."""
        owned = tuple(units)
        self._owned, self._blocks = Within(owned), blocks(owned)

    async def page(self) -> list[Entry]:
        """Return the tasks of the next page, without those whose present version is known to have ended."""
        ahead = [block for block in self._blocks if self.after < block.end(keys.TASKS)]
        if not ahead:  # All units are done: start over.
            self.after, ahead = "", list(self._blocks)
        if not ahead:
            return []
        block, *later = ahead
        start = max(self.after, block.start(keys.TASKS))
        page = await self._store.list(f"{keys.TASKS}{block.common}", start_after=start, limit=self._page_size)
        if page.truncated and page.entries and page.entries[-1].key < block.end(keys.TASKS):
            self.after = page.entries[-1].key
        else:
            self.after = block.end(keys.TASKS) if later else ""
        return [entry for entry in page.entries if self._needs_reading(entry)]

    def settle(self, entry: Entry) -> None:
        """Remember that this version of a task has ended, so that it is not read again unless it changes."""
        self._ended[entry.key] = entry.etag
        if len(self._ended) > REMEMBERED_MAX:
            self._ended.popitem(last=False)

    def _needs_reading(self, entry: Entry) -> bool:
        if entry.key.split("/", 2)[1] not in self._owned or keys.task_id_of(entry.key) is None:
            return False
        return self._ended.get(entry.key) != entry.etag
