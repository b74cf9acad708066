"""Finding tasks without an index: reading task objects page by page, remembering which can be skipped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence

from qo.core import keys
from qo.core.ownership import Block, Within, blocks
from qo.store.port import Entry, ObjectStore

REMEMBERED_MAX = 200_000


class Scan:
    """Goes round and round over ``tasks/`` of the given shards, a page at a call."""

    def __init__(self, store: ObjectStore, shards: Sequence[str], page_size: int, after: str = "") -> None:
        self._store = store
        self._owned: Container[str] = frozenset(shards)
        self._blocks = (Block("", ""),)
        self._page_size = page_size
        self.after = after  # Where the next page begins; "" is the start.
        self._settled: OrderedDict[str, str] = OrderedDict()  # Key to ETag of tasks that need no second look.

    def own(self, units: Iterable[str]) -> None:
        """From now on, go over these units and no others."""
        owned = tuple(units)
        self._owned, self._blocks = Within(owned), blocks(owned)

    async def page(self) -> list[Entry]:
        """The next page's tasks, less those known to be settled in exactly this version."""
        ahead = [block for block in self._blocks if self.after < block.end(keys.TASKS)]
        if not ahead:  # Behind all that is ours: from the start again.
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
        return [entry for entry in page.entries if self._unknown(entry)]

    def settle(self, entry: Entry) -> None:
        """Remember that this version of a task has ended: unless it changes, nobody need read it again."""
        self._settled[entry.key] = entry.etag
        if len(self._settled) > REMEMBERED_MAX:
            self._settled.popitem(last=False)

    def _unknown(self, entry: Entry) -> bool:
        if entry.key.split("/", 2)[1] not in self._owned or keys.task_id_of(entry.key) is None:
            return False
        return self._settled.get(entry.key) != entry.etag
