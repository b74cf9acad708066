"""The embedded default: a bucket in one SQLite file, for all processes of one machine.

    store = await LocalStore.open(Path(".qo"), forget=EPHEMERAL)

**What survives.** An acknowledged write survives the death of any process, ``kill -9`` included. With
``durable=True`` it survives a power cut too, at the price of a disk flush for each batch of writes; without,
a power cut may cost the last moments before it, never the consistency of the file.

**Where.** On a local disk. SQLite's locks do not work over network file systems.

**Fork.** A store does not survive a fork: open it in the child. One opened before raises UsageError when used.

One deviation from S3, shared with ``memory``: deleting a key that is not there leaves no delete marker.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from qo.errors import UsageError
from qo.store.embedded import Clock, check_delete_many, check_limit, check_put
from qo.store.port import (
    LIST_LIMIT_MAX,
    Deletion,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionMark,
    VersionPage,
)
from qo.store.sqlite_checkpoint import Checkpoints
from qo.store.sqlite_file import connect
from qo.store.sqlite_objects import SqliteObjects
from qo.store.sqlite_thread import SqliteThread


class LocalStore:
    """An ``ObjectStore`` in a directory. Usable from several threads and event loops at a time.

    A failing disk or a lock that is never released raises Unavailable, as other stores do.
    """

    def __init__(self, thread: SqliteThread, clock: Clock) -> None:
        """Not for callers: use ``LocalStore.open``."""
        self._thread = thread
        self._clock = clock
        # The thread must not outlive a store that was dropped without being closed.
        weakref.finalize(self, thread.stop)

    @classmethod
    async def open(cls, path: Path, *, forget: tuple[str, ...] = (), durable: bool = False) -> LocalStore:
        """Open the store in the directory ``path``, which is created if it does not exist.

        Keys that begin with one of ``forget`` keep no old versions and no delete markers. All processes that share a
        store should give the same.

        Raises ConfigError if ``path`` cannot hold a store, or holds one of a newer qo.
        """
        clock = Clock()
        connection = await asyncio.to_thread(connect, path, durable=durable, forget=forget)
        objects = SqliteObjects(connection, clock, forget)
        return cls(SqliteThread(objects, Checkpoints(path), f"the store in {path}"), clock)

    def get(self, key: str, *, version: str | None = None) -> asyncio.Future[Stored | None]:
        return self._thread.read(SqliteObjects.get, key, version)

    def get_if_changed(self, key: str, etag: str) -> asyncio.Future[Stored | Unchanged | None]:
        return self._thread.read(SqliteObjects.get_if_changed, key, etag)

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> asyncio.Future[PutResult]:
        check_put(key, if_match, if_absent)
        return self._thread.write(SqliteObjects.put, key, body, if_match, if_absent)

    def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> asyncio.Future[None]:
        if version is not None:
            return self._thread.write(SqliteObjects.delete_many, (Deletion(key, version),))
        return self._thread.write(SqliteObjects.delete, key, if_match)

    def delete_many(self, deletions: Sequence[Deletion]) -> asyncio.Future[None]:
        check_delete_many(deletions)
        return self._thread.write(SqliteObjects.delete_many, deletions)

    def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> asyncio.Future[Page]:
        return self._thread.read(SqliteObjects.list, prefix, start_after, check_limit(limit))

    def versions(self, key: str) -> asyncio.Future[Sequence[Version]]:
        return self._thread.read(SqliteObjects.versions, key)

    def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> asyncio.Future[VersionPage]:
        return self._thread.read(SqliteObjects.list_versions, prefix, after, check_limit(limit))

    async def versioned(self) -> bool:
        return True

    async def presign(self, key: str, *, expires_s: int, method: str = "GET") -> str:
        raise UsageError("the local store has no presigned links: only an S3 bucket has")

    async def now(self) -> datetime:
        """Return the machine's time: the store and all its users share the machine."""
        return self._clock.now()

    async def close(self) -> None:
        """Finish pending requests, then close the file. Closing twice is no error."""
        self._thread.stop()
        await asyncio.to_thread(self._thread.join)
