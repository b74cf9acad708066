"""Remove what hints leave behind in a versioned bucket: delete markers, and old versions.

A worker that was told of a task knows the version of its hint and removes exactly that. One that found the hint by a
LIST does not know it, so its removal leaves a marker. Many of them make every LIST slow, long before a lifecycle rule
removes them. A thousand are removed here for two requests. That never does harm: a hint that it brings back, or hits,
costs somebody a read, and the sweeper repairs it.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from qo.core import keys
from qo.core.rhythm import MARKERS_EVERY_S
from qo.errors import AccessDenied
from qo.queue.queue import Queue
from qo.store.port import Deletion, VersionMark

log = logging.getLogger(__name__)

PREFIXES = (keys.READY, keys.LEASES, keys.WAITING, keys.INBOX)
PAGES_MAX = 20  # In one go, for each prefix. The next one goes on from there.
LEFT_FOR = timedelta(minutes=1)  # Younger ones may belong to a write that is under way.
REFUSED_REST_S = 86_400.0


class HintMarkers:
    def __init__(self, queue: Queue) -> None:
        self._store = queue.store
        self._monotonic = queue.ambient.monotonic
        self._due_at = self._monotonic() + MARKERS_EVERY_S * queue.ambient.unit()
        self._after: dict[str, VersionMark | None] = {}

    async def remove_if_due(self) -> int:
        """Remove markers, unless that was done a while ago. Return how many versions were removed."""
        if self._monotonic() < self._due_at:
            return 0
        self._due_at = self._monotonic() + MARKERS_EVERY_S
        try:
            return await self.remove()
        except AccessDenied as error:
            self._due_at = self._monotonic() + REFUSED_REST_S
            log.info("delete markers of hints are left to the lifecycle rules: %s", error)
            return 0

    async def remove(self) -> int:
        """Remove markers and old versions. In a bucket without versioning there are none."""
        before = await self._store.now() - LEFT_FOR
        return sum([await self._remove_below(prefix, before) for prefix in PREFIXES])

    async def _remove_below(self, prefix: str, before: datetime) -> int:
        removed, mark = 0, self._after.get(prefix)
        for _ in range(PAGES_MAX):
            page = await self._store.list_versions(prefix, after=mark)
            mark = page.next
            left_behind = [
                Deletion(key, version.version)
                for key, version in page.entries
                if (version.deleted or not version.latest) and version.modified < before
            ]
            if left_behind:
                await self._store.delete_many(left_behind)
                removed += len(left_behind)
            if mark is None:
                break
        self._after[prefix] = mark
        return removed
