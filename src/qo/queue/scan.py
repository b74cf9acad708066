"""Finding tasks without an index: reading task objects page by page, remembering which can be skipped."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from qo.core import keys
from qo.store.port import Entry, ObjectStore

REMEMBERED_MAX = 200_000


class Scan:
    """Goes round and round over ``tasks/`` of the given shards, a page at a call."""

    def __init__(self, store: ObjectStore, shards: Sequence[str], page_size: int, after: str = "") -> None:
        self._store = store
        self._owned = frozenset(shards)
        self._page_size = page_size
        self.after = after  # Where the next page begins; "" is the start.
        self._settled: OrderedDict[str, str] = OrderedDict()  # Key to ETag of tasks that need no second look.

    async def page(self) -> list[Entry]:
        """The next page's tasks, less those known to be settled in exactly this version."""
        page = await self._store.list(keys.TASKS, start_after=self.after, limit=self._page_size)
        self.after = page.entries[-1].key if page.truncated and page.entries else ""
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
