"""Shard leases, and the plan that distributes shards among workers.

A lease is on a *unit*: one shard or, with more than 256 shards, all shards that begin with the same two characters. So
a queue has at most 256 leases, however many shards it has. One more lease of the same form names the *lookout*: the
worker that watches the whole queue for all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

import msgspec

from qo.core import keys
from qo.core.discovery import Due
from qo.core.shard import all_shards
from qo.core.struct_preload import preload
from qo.core.task import Instant
from qo.errors import UsageError

UNIT_LEN_MAX = 2
LOOKOUT = "lookout"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasingConfig:
    shards_per_worker: int = 16  # At most. With more than 256 shards, these are units.
    ttl_s: float = 30.0
    renew_s: float = 10.0
    watch_s: float = 5.0  # Seconds between polls for news, at most.

    def __post_init__(self) -> None:
        if self.shards_per_worker < 1:
            raise UsageError(f"a worker must be allowed a shard at least, not {self.shards_per_worker}")
        if not 0 < 2 * self.renew_s <= self.ttl_s or self.watch_s <= 0:
            raise UsageError(f"a shard lease must be renewed twice while it lasts, at least: {self}")

    @property
    def round_s(self) -> float:
        return min(self.watch_s, self.renew_s)


class ShardLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``shard-leases/{shard}.json``. Until it has run out, only its holder changes it."""

    shard: str  # The unit, or LOOKOUT.
    worker_id: str
    lease_expires_at: Instant
    updated_at: Instant
    token: str = ""  # Of the last write.
    members: list[str] = []  # The lookout's: the workers that share the units, in this order.
    lit: list[str] = []  # The lookout's: units in which something is due.


preload(ShardLease)


def units(prefix_len: int) -> tuple[str, ...]:
    """Return all units of a queue, in key order."""
    return all_shards(min(prefix_len, UNIT_LEN_MAX))


def unit_of(shard: str) -> str:
    return shard[:UNIT_LEN_MAX]


class Within:
    """The shards of some units, as a container."""

    __slots__ = ("units",)

    def __init__(self, owned: Iterable[str]) -> None:
        self.units = frozenset(owned)

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, str) and unit_of(shard) in self.units


# Leases


@dataclass(frozen=True, slots=True)
class Acquire:
    worker_id: str
    token: str  # Identifies this write, so that it is recognised if its reply is lost.
    ttl_s: float
    tokens: frozenset[str] = frozenset()  # Tokens of our earlier writes to this lease: what bears one is ours.


@dataclass(frozen=True, slots=True)
class Release:
    token: str
    tokens: frozenset[str]


def decide_lease(
    shard: str, lease: ShardLease | None, want: Acquire | Release, *, now: datetime
) -> ShardLease | None:
    """Return the lease to write, or None if another worker holds it.

    Renewing is acquiring a lease that is ours already. A released lease has run out and stays: taking it over is the
    same conditional write for everybody, and nothing is ever deleted.
    """
    ours = lease is not None and lease.token in want.tokens
    match want:
        case Acquire(worker_id, token, ttl_s):
            if lease is not None and not ours and lease.lease_expires_at > now:
                return None
            until = now + timedelta(seconds=ttl_s)
            if lease is None:
                return ShardLease(
                    shard=shard, worker_id=worker_id, lease_expires_at=until, updated_at=now, token=token
                )
            # A new lookout starts with what the last one knew.
            return msgspec.structs.replace(
                lease, shard=shard, worker_id=worker_id, lease_expires_at=until, updated_at=now, token=token
            )
        case Release(token):
            if lease is None or not ours:
                return None
            return msgspec.structs.replace(lease, lease_expires_at=now, updated_at=now, token=token)


def may_look_out(lease: ShardLease | None, *, now: datetime, room: bool, ttl_s: float) -> bool:
    """Whether to try to acquire the lookout's lease.

    Workers with room go first. If none of them takes it for the length of a lease, any worker should: members must be
    counted and the tasks of dead workers taken back even when all are busy.
    """
    if lease is None:
        return True
    patience = timedelta(seconds=0 if room else ttl_s)
    return lease.lease_expires_at + patience <= now


# The plan


def plan(members: Sequence[str], leasable: Sequence[str], cap: int) -> dict[str, tuple[str, ...]]:
    """Return the units of each member: adjacent ones, evenly spread, at most ``cap`` each.

    If the cap leaves units over, they are the last ones.
    """
    shared = min(len(leasable), cap * len(members))
    place, planned = 0, dict[str, tuple[str, ...]]()
    for rank, member in enumerate(members):
        until = (rank + 1) * shared // len(members)
        planned[member] = tuple(leasable[place:until])
        place = until
    return planned


def left_over(planned: dict[str, tuple[str, ...]], leasable: Sequence[str]) -> tuple[str, ...]:
    """Return the units that the plan gives to nobody."""
    return tuple(leasable[sum(len(owned) for owned in planned.values()) :])


# What it means for listing


class Block(NamedTuple):
    """Adjacent units, from the first to the last, both included. One LIST can go over all of them."""

    first: str
    last: str

    def start(self, prefix: str) -> str:
        """Return the key to list after; empty if the common prefix is enough."""
        return "" if self.common == self.first else f"{prefix}{self.first}"

    def end(self, prefix: str) -> str:
        """Return a key that sorts after every key of the block, and before all later ones."""
        return f"{prefix}{self.last}{keys.AFTER_ALL}"

    @property
    def common(self) -> str:
        """The common prefix of all shards of the block."""
        same = 0
        while same < min(len(self.first), len(self.last)) and self.first[same] == self.last[same]:
            same += 1
        return self.first[:same]


def blocks(owned: Iterable[str]) -> tuple[Block, ...]:
    """Return the fewest blocks that hold exactly these units."""
    ordered = sorted(set(owned))
    if not ordered:
        return ()
    breaks = [(a, b) for a, b in pairwise(ordered) if int(b, 16) != int(a, 16) + 1]
    firsts = [ordered[0], *(b for _, b in breaks)]
    lasts = [*(a for a, _ in breaks), ordered[-1]]
    return tuple(Block(first, last) for first, last in zip(firsts, lasts, strict=True))


def is_overdue(due: Due, for_s: float) -> bool:
    """Whether a hint has been due for longer than ``for_s``: its owner is busy, stuck or gone."""
    since = due.written_at.timestamp()
    if keys.minute_of(due.written_at) < due.due_minute:
        since = (due.due_minute + 1) * 60.0  # It was written ahead, for some instant in this minute.
    return due.listed_at.timestamp() - since > for_s
