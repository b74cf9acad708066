"""Who polls which shards: the leases, and the plan that spreads them.

What is leased is a *unit*: one shard or, where there are more than 256, all shards that begin with the same two
characters. So a queue has at most 256 leases, however many shards it has. One more lease of the same form names the
*lookout*, who watches over the whole queue for all the others.
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
    shards_per_worker: int = 16  # At most. Where there are more than 256 shards, these are ranges of shards.
    ttl_s: float = 30.0
    renew_s: float = 10.0
    watch_s: float = 5.0  # Between questions for news, at most: the slowest pace of polling.

    def __post_init__(self) -> None:
        if self.shards_per_worker < 1:
            raise UsageError(f"a worker must be allowed a shard at least, not {self.shards_per_worker}")
        if not 0 < 2 * self.renew_s <= self.ttl_s or self.watch_s <= 0:
            raise UsageError(f"a shard lease must be renewed twice while it lasts, at least: {self}")

    @property
    def round_s(self) -> float:
        return min(self.watch_s, self.renew_s)


class ShardLease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``shard-leases/{shard}.json``. What lies there is not changed but by its holder until it has run out."""

    shard: str  # The unit, or LOOKOUT.
    worker_id: str
    lease_expires_at: Instant
    updated_at: Instant
    token: str = ""  # Of the last write.
    members: list[str] = []  # The lookout's: who shares the units, in this order.
    lit: list[str] = []  # The lookout's: units in which something is due.


preload(ShardLease)


def units(prefix_len: int) -> tuple[str, ...]:
    """Everything there is to lease, in key order."""
    return all_shards(min(prefix_len, UNIT_LEN_MAX))


def unit_of(shard: str) -> str:
    return shard[:UNIT_LEN_MAX]


class Within:
    """The shards of some units, as something to ask whether a shard is in it."""

    __slots__ = ("units",)

    def __init__(self, owned: Iterable[str]) -> None:
        self.units = frozenset(owned)

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, str) and unit_of(shard) in self.units


# Leases


@dataclass(frozen=True, slots=True)
class Acquire:
    worker_id: str
    token: str  # Drawn for this write, so that it is recognised when its reply is lost.
    ttl_s: float
    tokens: frozenset[str] = frozenset()  # Tokens of our earlier writes to this lease: what bears one is ours.


@dataclass(frozen=True, slots=True)
class Release:
    token: str
    tokens: frozenset[str]


def decide_lease(
    shard: str, lease: ShardLease | None, want: Acquire | Release, *, now: datetime
) -> ShardLease | None:
    """The lease as it should be from now on, or None if it is not ours to change.

    Renewing is acquiring what is ours already. A released lease has run out and stays where it is: taking it
    over is the same conditional write for everybody, and nothing is ever deleted.
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
            # What the last lookout knew is the best that a new one has to begin with.
            return msgspec.structs.replace(
                lease, shard=shard, worker_id=worker_id, lease_expires_at=until, updated_at=now, token=token
            )
        case Release(token):
            if lease is None or not ours:
                return None
            return msgspec.structs.replace(lease, lease_expires_at=now, updated_at=now, token=token)


def may_look_out(lease: ShardLease | None, *, now: datetime, room: bool, ttl_s: float) -> bool:
    """Whether to try for the lookout's lease.

    Those who could run what they find go first. If none of them comes for the length of a lease, anybody should:
    the members must be counted and the leases of dead workers' tasks looked after even when all are busy.
    """
    if lease is None:
        return True
    patience = timedelta(seconds=0 if room else ttl_s)
    return lease.lease_expires_at + patience <= now


# The plan


def plan(members: Sequence[str], leasable: Sequence[str], cap: int) -> dict[str, tuple[str, ...]]:
    """The units of each member: adjacent ones, as many for each as for the others or one more, ``cap`` at most.

    Without the cap nothing is left over; what the cap leaves over is at the end.
    """
    shared = min(len(leasable), cap * len(members))
    place, planned = 0, dict[str, tuple[str, ...]]()
    for rank, member in enumerate(members):
        until = (rank + 1) * shared // len(members)
        planned[member] = tuple(leasable[place:until])
        place = until
    return planned


def left_over(planned: dict[str, tuple[str, ...]], leasable: Sequence[str]) -> tuple[str, ...]:
    """The units that the plan gives to nobody."""
    return tuple(leasable[sum(len(owned) for owned in planned.values()) :])


# What it means for listing


class Block(NamedTuple):
    """Adjacent units, from the first to the last, both included. One LIST can go over all of them."""

    first: str
    last: str

    def start(self, prefix: str) -> str:
        """What to list after: nothing, if listing what all of it begins with says as much."""
        return "" if self.common == self.first else f"{prefix}{self.first}"

    def end(self, prefix: str) -> str:
        """Sorts behind every key of the block, and before all those behind it."""
        return f"{prefix}{self.last}{keys.AFTER_ALL}"

    @property
    def common(self) -> str:
        """What all shards of the block begin with."""
        same = 0
        while same < min(len(self.first), len(self.last)) and self.first[same] == self.last[same]:
            same += 1
        return self.first[:same]


def blocks(owned: Iterable[str]) -> tuple[Block, ...]:
    """The fewest blocks that hold exactly these units."""
    ordered = sorted(set(owned))
    if not ordered:
        return ()
    breaks = [(a, b) for a, b in pairwise(ordered) if int(b, 16) != int(a, 16) + 1]
    firsts = [ordered[0], *(b for _, b in breaks)]
    lasts = [*(a for a, _ in breaks), ordered[-1]]
    return tuple(Block(first, last) for first, last in zip(firsts, lasts, strict=True))


def overdue(due: Due, for_s: float) -> bool:
    """Whether a hint has lain due for so long: its owner is busy, stuck or gone."""
    since = due.written_at.timestamp()
    if keys.minute_of(due.written_at) < due.minute:
        since = (due.minute + 1) * 60.0  # It was written ahead, for some instant in this minute.
    return due.listed_at.timestamp() - since > for_s
