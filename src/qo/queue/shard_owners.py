"""Which worker owns which shards, for people to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from qo.core import keys
from qo.core.ownership import Grant, ShardPlan, blocks, decode_plan, left_over, units
from qo.core.struct_preload import preload
from qo.queue import roster
from qo.queue.queue import Queue


class OwnedShards(msgspec.Struct, frozen=True, kw_only=True):
    """Adjacent shards of one worker, or of none."""

    first: str
    last: str
    shards: int
    worker_id: str | None = None
    since: datetime | None = None  # When they were granted.
    moving: bool = False  # Granted so recently that the one before may still list them.
    heard_at: datetime | None = None  # When the worker last reported.
    expires_at: datetime | None = None  # When they become another's unless it reports again.


preload(OwnedShards)


async def read_shard_owners(queue: Queue) -> list[OwnedShards] | None:
    """Return all shards in key order; None if no worker ever leased any. Raises CorruptRecord for a broken plan."""
    stored = await queue.store.get(keys.SHARD_PLAN)
    if stored is None:
        return None
    leasable = units(queue.prefix_len)
    plan = decode_plan(stored.body, leasable)
    infos = {info.worker_id: info for info in await roster.workers(queue.store)}
    now = await queue.store.now()
    owned = [_owned(grant, plan, infos, queue.prefix_len, now) for grant in plan.grants]
    free = [_range(block.first, block.last, queue.prefix_len) for block in blocks(left_over(plan, leasable))]
    return sorted([*owned, *free], key=lambda each: each.first)


def _owned(
    grant: Grant, plan: ShardPlan, infos: Mapping[str, roster.WorkerInfo], prefix_len: int, now: datetime
) -> OwnedShards:
    info = infos.get(grant.worker_id)
    heard_at = None if info is None else info.last_heartbeat
    beats_s = roster.SILENT_BEATS * ((info and info.heartbeat_s) or roster.SILENT_UNKNOWN_S)
    return msgspec.structs.replace(
        _range(grant.first, grant.last, prefix_len),
        worker_id=grant.worker_id,
        since=grant.since,
        moving=now < grant.since + timedelta(seconds=plan.wait_s),
        heard_at=heard_at,
        expires_at=heard_at and heard_at + timedelta(seconds=beats_s),
    )


def _range(first: str, last: str, prefix_len: int) -> OwnedShards:
    """Return the shards from one unit to another. In a large queue, a unit has many shards."""
    begin, end = first.ljust(prefix_len, "0"), last.ljust(prefix_len, "f")
    return OwnedShards(first=begin, last=end, shards=int(end, 16) - int(begin, 16) + 1)


def count_unowned(owned: Sequence[OwnedShards]) -> int:
    return sum(each.shards for each in owned if each.worker_id is None)
