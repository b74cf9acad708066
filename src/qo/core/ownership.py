"""The plan that leases shards to workers, in blocks of adjacent ones.

Shards are leased in *units*: one shard or, with more than 256 shards, all shards that begin with the same two
characters. The lookout writes the plan, and shows its number on the board. A worker goes by a plan for ``ttl_s`` after
it last read a board with its number, so a lease is renewed by reading. A block that is granted anew is in effect
``wait_s`` after its owner first read of it: by then whoever had it before no longer goes by the older plan. Both count
by their own clocks, from before a request and from after its answer, so no two own a unit at the same time.

Ownership decides who lists which shards. It does not decide who runs a task: claims do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from typing import Annotated, NamedTuple

import msgspec

from qo.core import keys, wire
from qo.core.discovery import Due
from qo.core.shard import all_shards
from qo.core.struct_preload import preload
from qo.core.task import Instant
from qo.errors import CorruptRecord, UsageError

UNIT_LEN_MAX = 2
MARGIN_S, MARGIN_MAX = 1.0, 0.1  # A lease is relied on for less than its time by this much, or this share of it.

TTL_MAX_S = 86_400.0

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=TTL_MAX_S)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasingConfig:
    shards_per_worker: int = 16  # At most. With more than 256 shards, these are units.
    ttl_s: float = 30.0
    renew_s: float = 10.0  # Seconds between two reads of the board, at most.

    def __post_init__(self) -> None:
        if self.shards_per_worker < 1:
            raise UsageError(f"a worker must be allowed a shard at least, not {self.shards_per_worker}")
        if self.ttl_s > TTL_MAX_S:
            raise UsageError(f"a shard lease may last {TTL_MAX_S:g} s at most, not {self.ttl_s:g}")
        if not 0 < 2 * self.renew_s <= self.ttl_s:
            raise UsageError(f"a shard lease must be renewed twice while it lasts, at least: {self}")


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


# The plan


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A block of adjacent units that is one worker's. What remains of it in later plans keeps its number."""

    worker_id: str
    first: str
    last: str
    since: Instant
    number: Count  # Of the plan that granted it.

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(
            f"{place:0{len(self.first)}x}" for place in range(int(self.first, 16), int(self.last, 16) + 1)
        )


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``shard-leases/plan.json``. The number grows with every change, also if the plan was lost meanwhile."""

    number: Count
    token: str  # Of the write.
    updated_at: Instant
    ttl_s: Seconds
    wait_s: Seconds
    members: list[str]  # In the order in which they share the units.
    grants: list[Grant]  # In key order.


preload(Grant, ShardPlan)


class Member(NamedTuple):
    """A worker that leases shards."""

    worker_id: str
    cap: int  # Units at most.
    ttl_s: float


def decode_plan(body: bytes, leasable: Sequence[str]) -> ShardPlan:
    """Raises CorruptRecord, also for a plan of a queue with other units."""
    plan = wire.decode(ShardPlan, body, keys.SHARD_PLAN)
    units_there, last = frozenset(leasable), ""
    for grant in plan.grants:
        if not (grant.first in units_there and grant.last in units_there and last < grant.first <= grant.last):
            raise CorruptRecord(f"{keys.SHARD_PLAN} grants shards that do not exist, or twice")
        last = grant.last
    return plan


def replan(
    old: ShardPlan | None,
    members: Sequence[Member],
    leasable: Sequence[str],
    *,
    shown_number: int,
    now: datetime,
    token: str,
) -> ShardPlan | None:
    """Return the plan for these members: the old one if it will do, None if there is nothing to plan.

    ``shown_number`` is the one on the board. If it is later than the old plan, that plan does not say who owns what.
    """
    if old is None and not members:
        return None
    base = old if old is not None and old.number >= shown_number else None
    caps = {member.worker_id: member.cap for member in members}
    order = _keep_places([] if old is None else old.members, sorted(caps))
    starts = {} if base is None else {grant.worker_id: grant.first for grant in reversed(base.grants)}
    planned = share_units({member: caps[member] for member in order}, leasable, starts)
    ttl_s = max((member.ttl_s for member in members), default=0.0)
    past_s = 0.0 if old is None else old.ttl_s
    if old is not None and (not ttl_s or now < old.updated_at + timedelta(seconds=2 * old.wait_s)):
        ttl_s = max(ttl_s, past_s)  # Some may still go by the plan before the old one.
    number = max(shown_number, 0 if old is None else old.number) + 1
    grants = _grant(base, planned, number, now)
    if base is not None and (base.members, base.grants, base.ttl_s) == (order, grants, ttl_s):
        return base
    return ShardPlan(
        number=number,
        token=token,
        updated_at=now,
        ttl_s=ttl_s,
        wait_s=max(ttl_s, past_s),
        members=order,
        grants=grants,
    )


def _keep_places(places: Sequence[str], present: Sequence[str]) -> list[str]:
    """Return those present, in their places. Newcomers take the places of those that have gone: less moves."""
    before, now = frozenset(places), frozenset(present)
    newcomers = [member for member in present if member not in before]
    order = [member if member in now else newcomers.pop(0) if newcomers else "" for member in places]
    return [*(member for member in order if member), *newcomers]


def share_units(
    caps: Mapping[str, int], leasable: Sequence[str], starts: Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the units of each member: adjacent ones, as many as the others have or one more, within its cap.

    ``starts`` are the units with which members began before: if the caps leave units over, others do not move for it.
    """
    sizes, rest = dict[str, int](), len(leasable)
    by_cap = sorted(caps, key=lambda member: caps[member])
    for place, member in enumerate(by_cap):
        sizes[member] = min(caps[member], rest // (len(by_cap) - place))
        rest -= sizes[member]
    place, planned = 0, dict[str, tuple[str, ...]]()
    before: Mapping[str, str] = {} if starts is None else starts
    for member in caps:
        if member in before:
            place = min(max(place, leasable.index(before[member])), place + rest)
        start, place = place, place + sizes[member]
        rest = len(leasable) - place - sum(sizes[each] for each in caps if each not in planned and each != member)
        planned[member] = tuple(leasable[start:place])
    return planned


def _grant(
    base: ShardPlan | None, planned: Mapping[str, tuple[str, ...]], number: int, now: datetime
) -> list[Grant]:
    grants = () if base is None else base.grants
    held = {(grant.worker_id, unit): (grant.number, grant.since) for grant in grants for unit in grant.units}
    result: list[Grant] = []
    for member, owned in planned.items():
        granted = [(held.get((member, unit), (number, now)), unit) for unit in owned]
        for (of, since), same in groupby(granted, lambda each: each[0]):
            run = [unit for _, unit in same]
            result.append(Grant(worker_id=member, first=run[0], last=run[-1], since=since, number=of))
    return sorted(result, key=lambda grant: grant.first)


def left_over(plan: ShardPlan, leasable: Sequence[str]) -> frozenset[str]:
    """Return the units that are nobody's."""
    return frozenset(leasable).difference(unit for grant in plan.grants for unit in grant.units)


# One worker's part in it


@dataclass(frozen=True, slots=True)
class Tenure:
    """The plan that a worker goes by, and when each of its grants comes into effect, by its own clock."""

    plan: ShardPlan
    starts: Mapping[int, float]  # By the number of the grant.


def adopt(tenure: Tenure | None, plan: ShardPlan, worker_id: str, *, at: float) -> Tenure:
    """Go by a plan from now on. ``at`` is after the answer that showed its number on the board."""
    starts: Mapping[int, float] = {} if tenure is None else tenure.starts
    numbers = {grant.number for grant in plan.grants if grant.worker_id == worker_id}
    return Tenure(plan, {number: starts.get(number, at + plan.wait_s) for number in numbers})


def relied_until(tenure: Tenure, shown_at: float) -> float:
    """Return when a worker stops to go by its plan. ``shown_at`` is before the request that last showed its number."""
    ttl_s = tenure.plan.ttl_s
    return shown_at + ttl_s - min(MARGIN_S, MARGIN_MAX * ttl_s)


def owned_units(tenure: Tenure, worker_id: str, *, shown_at: float, now: float) -> tuple[str, ...]:
    """Return the units that are certainly this worker's, in key order."""
    if now >= relied_until(tenure, shown_at):
        return ()
    mine = (grant for grant in tenure.plan.grants if grant.worker_id == worker_id)
    return tuple(unit for grant in mine if now >= tenure.starts[grant.number] for unit in grant.units)


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
