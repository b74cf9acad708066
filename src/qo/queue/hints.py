"""The index keys under ``ready/`` and ``leases/``: written at once, removed a little later, together.

They are hints: the task object is the truth, so a hint that cannot be written is logged and left to the sweeper. The
old hint of a task is dropped only after its new one is written, so that a process which dies in between leaves a key
that leads to the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress

from qo.core.rhythm import DELETE_EVERY_S, DELETE_ONE_BY_ONE_MAX
from qo.errors import ConcurrentWrite, PreconditionFailed, StoreError
from qo.store.port import DELETE_LIMIT_MAX, Deletion, ObjectStore, PutResult

log = logging.getLogger(__name__)

FLUSH_AT = 100
LATE_S = 0.5


def exactly(key: str, result: PutResult) -> Deletion:
    """Return how to remove exactly the hint that was written. By version, it leaves no delete marker."""
    return Deletion(key, result.version, None if result.version is not None else result.etag)


class Hints:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pending: dict[tuple[str, str | None], Deletion] = {}  # To be removed soon, by key and version.
        self._leaving: dict[str, asyncio.Task[None]] = {}  # Keys whose removal is under way, in whatever version.
        self._flushes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def add(self, key: str, token: str) -> PutResult | None:
        """Write a hint. Its body is the token of the task's write, so that exactly this hint can be removed.

        Return None if that failed: the task's old hint must then stay.
        """
        # A quick retry has the same minute and so the same key. The removal of the old hint could hit the new one
        # unless it names a version: not every server checks the ETag when it removes many.
        while (leaving := self._leaving.get(key)) is not None:
            await asyncio.wait({leaving})  # Otherwise the removal could overtake this write.
        self._pending.pop((key, None), None)
        try:
            return await self._store.put(key, token.encode())
        except StoreError as error:
            log.warning("could not write the index key %s: %s; the sweeper will", key, error)
            return None

    def start_adding(self, key: str, token: str) -> Awaitable[PutResult | None]:
        """Start writing a hint. Await the result for what ``add`` returns."""
        return asyncio.ensure_future(self.add(key, token))

    async def restore(self, key: str, token: str) -> bool:
        """Write a hint that is missing. Return False if somebody else has written it meanwhile."""
        try:
            await self._store.put(key, token.encode(), if_absent=True)
        except (PreconditionFailed, ConcurrentWrite):
            return False
        return True

    def drop(self, hint: Deletion) -> None:
        """Remove a hint soon, together with others."""
        self._pending[hint.key, hint.version] = hint
        if len(self._pending) >= FLUSH_AT:
            self._start_flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELETE_EVERY_S, self._start_flush)

    async def drop_stale(self, key: str, etag: str) -> bool:
        """Remove a hint that does not match its task, unless it was written again since it was listed."""
        try:
            await self._store.delete(key, if_match=etag)
        except PreconditionFailed:
            return False
        except StoreError as error:
            log.debug("could not remove the stale index key %s: %s", key, error)
            return False
        return True

    async def flush(self) -> None:
        """Wait until every hint dropped so far has been removed, or its removal has failed."""
        self._start_flush()
        while self._flushes:
            await asyncio.wait(set(self._flushes))

    def _start_flush(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if loop.time() - self._timer.when() > LATE_S:
                # This process stalled, perhaps for longer than its leases, and another may have written the same keys
                # again. Hints that are stale all the same are removed by the worker that follows them.
                self._pending = {name: each for name, each in self._pending.items() if each.version or each.etag}
            self._timer.cancel()
            self._timer = None
        while self._pending:
            batch = list(self._pending.values())[:DELETE_LIMIT_MAX]
            for deletion in batch:
                del self._pending[deletion.key, deletion.version]
            flush = loop.create_task(self._remove(batch))
            self._flushes.add(flush)
            self._leaving.update({deletion.key: flush for deletion in batch if deletion.version is None})

    async def _remove(self, batch: list[Deletion]) -> None:
        try:
            if len(batch) > DELETE_ONE_BY_ONE_MAX:
                await self._store.delete_many(batch)
            else:
                answers = await asyncio.gather(*map(self._remove_one, batch), return_exceptions=True)
                for error in answers:
                    if error is not None:
                        raise error
        except StoreError as error:
            log.debug("could not remove %d index keys: %s; the sweeper will", len(batch), error)
        finally:
            me = asyncio.current_task()
            for deletion in batch:
                if self._leaving.get(deletion.key) is me:
                    del self._leaving[deletion.key]
            self._flushes.discard(me)  # type: ignore[arg-type]

    async def _remove_one(self, hint: Deletion) -> None:
        with suppress(PreconditionFailed):
            await self._store.delete(hint.key, if_match=hint.etag, version=hint.version)
