"""The lease under which a worker owns its inbox: its record on the roster, written by compare-and-swap.

A heartbeat renews it, so that it costs no request of its own. The ETag of the last write is kept: no renewal reads
before it writes. The owner relies on the lease until ``ttl_s`` after the request was sent, by its own clock.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import datetime, timedelta
from weakref import WeakSet

from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.dispatch import InboxOwner, may_own
from qo.core.storetime import APART_S
from qo.errors import Contended, CorruptRecord, LeaseLost, PreconditionFailed, Refused
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo
from qo.store import register
from qo.store.port import Stored

log = logging.getLogger(__name__)

TRIES = 3
MARGIN_MAX = 0.1  # As a share of the lease.


class InboxLease:
    def __init__(self, queue: Queue, *, worker_id: str, ttl_s: float) -> None:
        self._store = queue.store
        self._ambient = queue.ambient
        self._worker_id = worker_id
        self._key = keys.worker(worker_id)
        self._ttl_s = ttl_s
        self._margin_s = min(APART_S, MARGIN_MAX * ttl_s)
        self._etag: str | None = None
        self._tokens: frozenset[str] = frozenset()  # Of our writes that may be stored.
        self._until = float("-inf")
        self._started_at: datetime | None = None
        self.is_lost = False
        _OF_THIS_PROCESS.add(self)

    @property
    def is_held(self) -> bool:
        """Whether no other worker can own the inbox. While the store is away for long, this is not known."""
        return not self.is_lost and self._ambient.monotonic() < self._until

    async def acquire(self, info: WorkerInfo) -> None:
        """Sign on as the owner. Raises Refused if a live worker has the same id."""
        stored = await self._store.get(self._key)
        for _ in range(TRIES):
            other = self._decode(stored)
            owner = None if other is None else InboxOwner(other.token, other.inbox_until)
            abandoned = other is not None and has_ended(other)
            if not may_own(owner, self._tokens, now=await self._store.now(), is_abandoned=abandoned):
                assert other is not None
                raise Refused(describe_namesake(other))
            if (
                other is not None
                and other.inbox_until is None
                and not (abandoned or other.is_stale(info.last_heartbeat))
            ):
                log.warning(
                    "a worker %s without an inbox has reported a moment ago (host %s, pid %s): if it still runs, give "
                    "one of the two another id",
                    other.worker_id,
                    other.host,
                    other.pid,
                )
            self._etag = None if stored is None else stored.etag
            moved = await self._write(info)
            if moved is None:
                return
            stored = moved.current
        raise Contended(f"other workers sign on as {self._worker_id} all the time; try again")

    async def renew(self, info: WorkerInfo) -> None:
        """Report, and stay the owner. Raises LeaseLost if another worker has taken the inbox over."""
        if self.is_lost:
            return
        for _ in range(TRIES):
            moved = await self._write(info)
            if moved is None:
                return
            other = self._decode(moved.current)
            if other is not None and other.token not in self._tokens:
                self.is_lost = True
                raise LeaseLost(
                    f"worker {other.worker_id} (host {other.host}, pid {other.pid}) has taken over the inbox of this "
                    "one, which was silent for too long or has the same id: it stops, and its tasks are given back"
                )
            # A write of ours whose reply was lost; or the record was removed, and nobody owns the inbox.
            self._etag = None if moved.current is None else moved.current.etag
        raise Contended(f"the record of worker {self._worker_id} is being changed by others all the time")

    async def release(self) -> bool:
        """Give the inbox up. Return False if it is another's by now: then nothing is removed."""
        self._until = float("-inf")
        if self.is_lost or self._etag is None:
            return False
        stored = await self._store.get(self._key)  # The reply to the last renewal may not have come.
        other = self._decode(stored)
        if stored is None or other is None or other.token not in self._tokens:
            return False
        try:
            await self._store.delete(self._key, if_match=stored.etag)
        except PreconditionFailed:
            return False
        return True

    def wrote(self, record: WorkerInfo) -> bool:
        """Whether a record is of the worker that has this lease, in whatever version."""
        return (record.worker_id, record.started_at) == (self._worker_id, self._started_at)

    async def _write(self, info: WorkerInfo) -> register.Moved | None:
        """Write the record; return what is there instead if it has changed."""
        token, sent_at = self._ambient.token(), self._ambient.monotonic()
        self._tokens |= {token}
        self._started_at = info.started_at
        until = await self._store.now() + timedelta(seconds=self._ttl_s)
        wrote = await register.write(
            self._store,
            self._key,
            wire.encode(replace(info, inbox_until=until, token=token)),
            if_match=self._etag,
            ours=lambda body: wire.decode(WorkerInfo, body, self._key).token == token,
            ambient=self._ambient,
        )
        if isinstance(wrote, register.Moved):
            return wrote
        self._etag, self._tokens = wrote.etag, frozenset({token})
        self._until = sent_at + self._ttl_s - self._margin_s
        return None

    def _decode(self, stored: Stored | None) -> WorkerInfo | None:
        try:
            return None if stored is None else wire.decode(WorkerInfo, stored.body, self._key)
        except CorruptRecord as error:
            log.error("%s It is replaced.", error)  # Whoever wrote it cannot renew it.
            return None


_OF_THIS_PROCESS: WeakSet[InboxLease] = WeakSet()


def check_namesake(other: WorkerInfo, now: datetime) -> None:
    """Raise Refused if a worker of this id owns its inbox, so that no other may report under the id."""
    if other.owns_inbox(now) and not has_ended(other):
        raise Refused(describe_namesake(other))


def describe_namesake(other: WorkerInfo) -> str:
    until = "" if other.inbox_until is None else f" until {other.inbox_until.isoformat(timespec='seconds')}"
    return (
        f"a worker {other.worker_id} runs already (host {other.host}, pid {other.pid}) and owns the inbox of this id"
        f"{until}: give this one another id (QO_WORKER_ID, or none), or stop the other; if that one has died, start "
        "again after this time"
    )


def has_ended(worker: WorkerInfo) -> bool:
    """Whether the process of a worker is known to have ended: it ran on this machine, and is not there any more."""
    if worker.host != socket.gethostname() or worker.pid is None:
        return False
    if worker.pid == os.getpid():  # This process, or an earlier one: in a container, most have the same number.
        return not any(lease.wrote(worker) for lease in _OF_THIS_PROCESS)
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
