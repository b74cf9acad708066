"""Shard leases in the bucket: acquire, renew and release one at a time, by conditional write.

The holder may rely on a lease until ``Held.until`` by its own monotonic clock, counted from before the request was
sent. So two workers never rely on one lease at once, whatever is slow or lost on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from qo.core import keys, wire
from qo.core.ownership import Acquire, Release, ShardLease, decide_lease
from qo.core.storetime import APART_S
from qo.errors import CorruptRecord
from qo.queue.queue import Queue
from qo.store import register
from qo.store.port import PutResult, Stored

log = logging.getLogger(__name__)

MARGIN_S = APART_S
ANSWER_WAIT_S = 5.0  # How long a leaving worker waits for requests under way.
MARGIN_MAX = 0.1  # As a share of the lease, for short ones.


class Held(NamedTuple):
    """A lease that this worker holds."""

    lease: ShardLease
    etag: str
    until: float  # By the monotonic clock: from then on another worker may hold it.


class StoredLease(NamedTuple):
    """The object under a lease's key; without a lease if none was ever written."""

    lease: ShardLease | None
    etag: str | None


class ShardLeases:
    def __init__(self, queue: Queue, *, worker_id: str, ttl_s: float) -> None:
        self._store = queue.store
        self._ambient = queue.ambient
        self._worker_id = worker_id
        self._ttl_s = ttl_s
        self._tokens: dict[str, set[str]] = {}  # By unit, the tokens of our writes that may be stored there.
        self._writing: set[asyncio.Future[PutResult | register.Moved]] = set()
        self._broken: dict[str, tuple[str, datetime]] = {}  # By unit, an unreadable object and when it is free.

    async def read(self, unit: str) -> StoredLease:
        return await self._decode(unit, await self._store.get(keys.shard_lease(unit)))

    async def acquire(self, unit: str, stored: StoredLease | None = None) -> Held | None:
        """Acquire a lease that is free, has run out, or has a write of ours whose reply was lost. None: it is held.

        Raises Unavailable if the store gave no answer; calling again is safe.
        """
        stored = stored or await self.read(unit)
        return await self._acquire(unit, stored, None)

    async def renew(
        self, held: Held, *, members: Sequence[str] | None = None, lit: Sequence[str] | None = None
    ) -> Held | None:
        """Renew a lease, and publish what the lookout has found. None: the lease is lost.

        Raises Unavailable if the store gave no answer; calling again is safe.
        """
        details: dict[str, list[str]] = {}
        if members is not None:
            details["members"] = list(members)
        if lit is not None:
            details["lit"] = list(lit)
        return await self._acquire(held.lease.shard, StoredLease(held.lease, held.etag), details)

    async def release(self, held: Held) -> None:
        """Let a lease run out now. Does nothing if it is no longer ours."""
        await self._release(held.lease.shard, StoredLease(held.lease, held.etag))

    async def release_unanswered(self) -> None:
        """Release leases whose last write was cancelled before its reply came, so that it may have succeeded.

        Call it once nothing is acquired or renewed any more, and all held leases were released.
        """
        if self._writing:
            await asyncio.wait(self._writing, timeout=ANSWER_WAIT_S)
        for unit in list(self._tokens):
            await self._release(unit, await self.read(unit))

    async def _release(self, unit: str, stored: StoredLease) -> None:
        for _ in range(2):
            want = Release(self._ambient.token(), frozenset(self._tokens.get(unit, ())))
            decided = decide_lease(unit, stored.lease, want, now=await self._store.now())
            if decided is None:
                self._tokens.pop(unit, None)
                return
            wrote = await self._write(unit, decided, stored.etag)
            if isinstance(wrote, str):
                self._tokens.pop(unit, None)
                return
            stored = wrote  # A cancelled renewal may have succeeded: release that one.

    async def _acquire(self, unit: str, stored: StoredLease, details: dict[str, list[str]] | None) -> Held | None:
        for _ in range(2):
            sent_at, now = self._ambient.monotonic(), await self._store.now()
            want = Acquire(
                self._worker_id, self._ambient.token(), self._ttl_s, frozenset(self._tokens.get(unit, ()))
            )
            decided = decide_lease(unit, stored.lease, want, now=now)
            if decided is None:
                break
            if details:
                decided = msgspec.structs.replace(decided, **details)
            wrote = await self._write(unit, decided, stored.etag)
            if isinstance(wrote, str):
                self._tokens[unit] = {decided.token}
                margin_s = min(MARGIN_S, MARGIN_MAX * self._ttl_s)
                return Held(decided, wrote, sent_at + self._ttl_s - margin_s)
            if wrote.lease is None or wrote.lease.token not in self._tokens[unit]:
                break  # Somebody was quicker.
            stored = wrote  # An earlier write of ours, whose reply was lost.
        self._tokens.pop(unit, None)
        return None

    async def _write(self, unit: str, lease: ShardLease, etag: str | None) -> str | StoredLease:
        """Return the new ETag, or the lease that is there instead."""
        body = wire.encode(lease)
        self._tokens.setdefault(unit, set()).add(lease.token)
        writing = asyncio.ensure_future(
            register.write(
                self._store,
                keys.shard_lease(unit),
                body,
                if_match=etag,
                ours=lambda there: there == body,
                ambient=self._ambient,
            )
        )
        self._writing.add(writing)
        writing.add_done_callback(self._forget_write)
        # Cancelling does not undo a request that was sent: ``release_unanswered`` takes care of it.
        wrote = await asyncio.shield(writing)
        if isinstance(wrote, register.Moved):
            return await self._decode(unit, wrote.current)
        return wrote.etag

    def _forget_write(self, writing: asyncio.Future[Any]) -> None:
        self._writing.discard(writing)
        if not writing.cancelled():
            writing.exception()  # Marks it as retrieved; a caller that still waits raises it.

    async def _decode(self, unit: str, stored: Stored | None) -> StoredLease:
        if stored is None:
            return StoredLease(None, None)
        key = keys.shard_lease(unit)
        try:
            return StoredLease(wire.decode(ShardLease, stored.body, key), stored.etag)
        except CorruptRecord as error:
            now = await self._store.now()
            if self._broken.get(unit, ("",))[0] != stored.etag:
                log.error("%s It is taken over in %g s.", error, self._ttl_s)
                # The holder of the lease that was here cannot renew it, so by then it no longer relies on it.
                self._broken[unit] = (stored.etag, now + timedelta(seconds=self._ttl_s))
            free_at = self._broken[unit][1]
            return StoredLease(
                ShardLease(shard=unit, worker_id="", lease_expires_at=free_at, updated_at=now), stored.etag
            )
