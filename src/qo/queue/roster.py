"""The roster: workers as they report themselves. Informative only; correctness never depends on it."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.struct_preload import preload
from qo.errors import ConcurrentWrite, CorruptRecord, PreconditionFailed, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import pages
from qo.store.port import Entry, ObjectStore

log = logging.getLogger(__name__)

# The names of states that workers report (``qo.worker.loop.state``).
PAUSED = "paused"
LEAVING = frozenset({"draining", "cancelling", "stopped", "failed"})

HEARTBEATS_MISSED_MAX = 4  # More than one: a request may fail, and a worker may be short of CPU.
SILENT_BEATS = 3  # A worker that has missed so many is not counted, and loses its leased shards.
SILENT_MIN_S = 10.0  # Even for frequent heartbeats: one slow request must not make a worker look dead.
SILENT_UNKNOWN_S = 60.0  # For workers whose record does not have their heartbeat interval.

_WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    worker_id: str
    started_at: datetime
    last_heartbeat: datetime
    heartbeat_s: float | None = None  # How often it reports; None: written by a version that did not record it.
    shards: list[str] = []  # Which it polls; empty means all.
    current_task: str | None = None  # The one it has held longest.
    current_tasks: list[str] = []
    tasks_completed: int = 0
    tasks_failed: int = 0
    released: int = 0  # Claimed, and given back undone.
    lost: int = 0  # Attempts whose lease somebody else had taken over.
    task_types: list[str] = []
    paused_types: list[str] = []  # Of which it claims none for now.
    state: str = "running"
    slots: int = 0  # How many tasks it can run at once.
    leasing: bool = False  # Whether it leases its shards, instead of only beginning with them.
    shards_max: int = 0  # The most units that it leases; 0: none, or as an earlier version did.
    shard_ttl_s: float = 0.0  # For how long it relies on them without a renewal.
    http: str | None = None  # Where its status server listens.
    push: str | None = None  # Where it takes wake-ups, "host:port"; None: nowhere.
    push_place: int = 0  # Of this queue among those of its process, which share the address.
    inbox_until: datetime | None = None  # Until when it owns the inbox of its id; None: it owns none.
    token: str = ""  # Of this write, if it owns an inbox.
    host: str | None = None
    pid: int | None = None
    requests: int = 0  # Sent to the store since the start, and what S3 would charge for them.
    dollars: float = 0.0

    @property
    def silent_max_s(self) -> float:
        """How long it may be silent and still count as alive."""
        if self.heartbeat_s is None:
            return SILENT_UNKNOWN_S
        return max(SILENT_MIN_S, HEARTBEATS_MISSED_MAX * self.heartbeat_s)

    def is_stale(self, now: datetime, threshold_s: float | None = None) -> bool:
        """Whether it has been silent for longer than the threshold; without one, than its own heartbeat allows."""
        silent_max_s = self.silent_max_s if threshold_s is None else threshold_s
        return now - self.last_heartbeat > timedelta(seconds=silent_max_s)

    @property
    def is_leaving(self) -> bool:
        return self.state in LEAVING

    def owns_inbox(self, now: datetime) -> bool:
        return self.inbox_until is not None and now < self.inbox_until


preload(WorkerInfo)


def validate_worker_id(worker_id: str) -> str:
    if not _WORKER_ID.match(worker_id):
        raise UsageError(f"{worker_id!r} cannot name a worker: use letters, digits, '.', '_' and '-', 100 at most")
    return worker_id


async def report(store: ObjectStore, info: WorkerInfo) -> None:
    await store.put(keys.worker(info.worker_id), wire.encode(info))


async def leave(store: ObjectStore, worker_id: str) -> None:
    await store.delete(keys.worker(worker_id))


async def find(store: ObjectStore, worker_id: str) -> WorkerInfo | None:
    """One worker, or None if it is not registered."""
    key = keys.worker(validate_worker_id(worker_id))
    stored = await store.get(key)
    return None if stored is None else wire.decode(WorkerInfo, stored.body, key)


async def workers(store: ObjectStore) -> list[WorkerInfo]:
    """Return every registered worker, however many there are."""
    infos: list[WorkerInfo] = []
    async for entries in pages(store, keys.WORKERS):
        infos += await _read_all(store, [entry.key for entry in entries])
    return infos


async def _read_all(store: ObjectStore, worker_keys: Sequence[str]) -> list[WorkerInfo]:
    infos: list[WorkerInfo] = []
    bodies = await gather_cancellable(store.get(key) for key in worker_keys)
    for key, stored in zip(worker_keys, bodies, strict=True):
        if stored is None:
            continue  # One that left while we were looking is no worker.
        try:
            infos.append(wire.decode(WorkerInfo, stored.body, key))
        except CorruptRecord as error:
            log.error("%s", error)  # One broken record must not hide all the others.
    return infos


async def some_workers(store: ObjectStore, *, since: datetime, count: int, ambient: Ambient) -> list[WorkerInfo]:
    """Return up to ``count`` workers that have reported since then, chosen at random, for one LIST and as many GETs."""
    recent = [
        entry.key
        async for entries in pages(store, keys.WORKERS)
        for entry in entries
        if entry.modified >= since and entry.key.endswith(".json")
    ]
    if len(recent) > count:
        recent = ambient.rng.sample(recent, count)
    return await _read_all(store, recent)


async def last_heard(store: ObjectStore) -> dict[str, datetime]:
    """Return when each worker last reported, by id. The listing has the times, so no record is read."""
    return {_worker_id(entry): entry.modified async for entries in pages(store, keys.WORKERS) for entry in entries}


async def forget_stale(store: ObjectStore, before: datetime) -> list[str]:
    """Remove the records of workers that have not reported since ``before``, and return their ids.

    A worker that reports meanwhile stays: its record has another ETag then.
    """
    silent = [
        entry
        async for entries in pages(store, keys.WORKERS)
        for entry in entries
        if entry.modified < before and entry.key.endswith(".json")
    ]
    removed: list[str] = []
    for entry in silent:
        with suppress(PreconditionFailed, ConcurrentWrite):
            await store.delete(entry.key, if_match=entry.etag)
            removed.append(_worker_id(entry))
    return removed


def _worker_id(entry: Entry) -> str:
    return entry.key.removeprefix(keys.WORKERS).removesuffix(".json")
