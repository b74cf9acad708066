"""Limits that hold over all workers: how many tasks run at a time, and how many start per time.

Each limit is one object. Workers lease *shares* of it: permits for so many tasks at a time, until an instant; and they
take starts in batches of at most a second's worth. So a claim costs no request. The permits of all shares that have not
run out never add up to more than the limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, cast

import msgspec

from qo.core import wire
from qo.core.struct_preload import preload
from qo.core.task import Instant
from qo.errors import UsageError

# A share that would last for longer is a mistake, of a clock say: it must not take permits away for good.
SHARE_S_MAX = 900.0

_MEMBER = "input."
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"([1-9][0-9]{0,6})/(s|m|h|d)\Z").match
_COUNT = re.compile(r"[1-9][0-9]{0,6}\Z").match


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most ``concurrency`` tasks at a time and ``starts`` per ``per_s`` seconds, over all workers.

    With ``by``, such as "input.customer", that is so for each value of this member of the input by itself.
    """

    name: str = ""  # Task types with the same name share the limit. Empty: that of the task type.
    concurrency: int | None = None
    starts: int | None = None
    per_s: float = 1.0
    by: str | None = None

    def __post_init__(self) -> None:
        if self.concurrency is None and self.starts is None:
            raise UsageError(
                f"the limit {self.name or 'of a task type'} limits nothing: give it a concurrency, a rate, or both"
            )
        if (self.concurrency is not None and self.concurrency < 1) or (
            self.starts is not None and self.starts < 1
        ):
            raise UsageError(f"the limit {self.name or 'of a task type'} must allow at least one task")
        if self.per_s <= 0:
            raise UsageError(
                f"the rate of the limit {self.name or 'of a task type'} must be per so many seconds, not {self.per_s}"
            )

        if self.by is not None and not self.by.startswith(_MEMBER):
            raise UsageError(
                f"the limit {self.name or 'of a task type'} is by a member of the input such as input.customer, not "
                f"by {self.by!r}"
            )

    def for_key(self, key: str) -> Limit:
        """Return the limit of one key."""
        return replace(self, name=f"{self.name}[{key}]", by=None)

    def key_in(self, input: Any) -> str:
        """Return the key of a task with this input, as a text; "" if it lacks the member. For limits with ``by``."""
        value = input
        for name in (self.by or "").split(".")[1:]:
            if not isinstance(value, dict) or name not in value:
                return ""
            value = cast("dict[str, Any]", value)[name]
        return wire.encode(value).decode()

    @property
    def gap_s(self) -> float:
        """The time between two starts, on average."""
        return self.per_s / self.starts if self.starts else 0.0

    @property
    def batch(self) -> int:
        """How many starts may be taken at once: a second's worth."""
        return max(1, int(1 / self.gap_s)) if self.starts else 0


def parse_limit(name: str, text: str) -> Limit:
    """Read a limit such as "10", "100/m", "10 100/m" or "2 by input.customer". Raises UsageError."""
    concurrency, starts, per_s = None, None, 1.0
    amounts, separator, by = text.partition(" by ")
    for word in amounts.split():
        if (rate := _RATE(word)) is not None and starts is None:
            starts, per_s = int(rate[1]), _UNITS[rate[2]]
        elif _COUNT(word) is not None and concurrency is None:
            concurrency = int(word)
        else:
            raise UsageError(
                f"the limit of {name!r} is a number of tasks at a time, a rate, or both: "
                f'"10", "100/m", "10 100/m" or "2 by input.customer", not {text!r}'
            )
    key = by.strip() if separator else None
    return Limit(name=name, concurrency=concurrency, starts=starts, per_s=per_s, by=key)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker may use until an instant."""

    permits: int
    demand: int  # How many it could use.
    until: Instant


class LimitRegister(msgspec.Struct, frozen=True, kw_only=True):
    """``registers/limits/{hash}.json``."""

    name: str
    shares: dict[str, Share] = {}  # By worker.
    next_start: Instant | None = None  # All starts before this instant have been taken.
    token: str = ""

    def shares_at(self, now: datetime) -> dict[str, Share]:
        """Return the shares that count, by worker."""
        latest = now + timedelta(seconds=SHARE_S_MAX)
        return {worker: share for worker, share in self.shares.items() if now < share.until <= latest}


for _kind in (Share, LimitRegister):
    preload(_kind)


class Grant(NamedTuple):
    """The answer to a worker."""

    permits: int  # How many tasks it may run at a time, until its share runs out. If it runs more, it starts none.
    starts: int  # How many it may start.
    starts_in_s: float  # If it got fewer starts than it wanted: when there may be more.
    lasts_s: float  # For how long the permits are its own.


class Wish(NamedTuple):
    """What a worker wants. Without any demand, its share is given back."""

    worker_id: str
    in_use: int
    demand: int
    starts: int


def grant(
    register: LimitRegister, limit: Limit, wish: Wish, *, now: datetime, ttl_s: float
) -> tuple[LimitRegister, Grant]:
    """Return the register with the worker's new share, and what it got. The caller sets the token."""
    others = {worker: share for worker, share in register.shares_at(now).items() if worker != wish.worker_id}
    permits, reserved = (0, 0) if limit.concurrency is None else _permits(limit.concurrency, others, wish)
    starts, next_start, starts_in_s = _take_starts(register, limit, wish.starts, now)
    shares = others
    if limit.concurrency is not None and wish.demand > 0:
        until = now + timedelta(seconds=ttl_s)
        shares = {**others, wish.worker_id: Share(permits=reserved, demand=wish.demand, until=until)}
    after = LimitRegister(name=limit.name, shares=shares, next_start=next_start)
    return after, Grant(permits, starts, starts_in_s, ttl_s)


def _permits(concurrency: int, others: Mapping[str, Share], wish: Wish) -> tuple[int, int]:
    """Return how many tasks the worker may run, and how many permits are reserved for it: what is in use stays, as far
    as it was not given to others since."""
    free = max(0, concurrency - sum(share.permits for share in others.values()))
    wants = {worker: share.demand for worker, share in others.items()} | {wish.worker_id: wish.demand}
    part = fair_parts(concurrency, wants)[wish.worker_id]
    # One that nobody has taken is not left unused, whoever may be entitled to it.
    permits = min(free, max(part, min(wish.demand, 1)))
    return permits, min(free, max(permits, wish.in_use))


def fair_parts(total: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Divide a total: nobody gets more than it wants, and what one does not want, the others share equally."""
    parts = dict.fromkeys(wants, 0)
    rest = total
    open_wants: dict[str, int] = {**wants}
    while rest > 0 and open_wants:
        each = max(1, rest // len(open_wants))
        for worker in sorted(open_wants):
            more = min(open_wants[worker], each, rest)
            parts[worker] += more
            rest -= more
            open_wants[worker] -= more
        open_wants = {worker: want for worker, want in open_wants.items() if want > 0}
    return parts


def _take_starts(
    register: LimitRegister, limit: Limit, demand: int, now: datetime
) -> tuple[int, datetime | None, float]:
    """Take up to a batch of starts. Those of the last second that nobody took are still there, older ones are not."""
    if limit.starts is None:
        return 0, register.next_start, 0.0
    gap = timedelta(seconds=limit.gap_s)
    oldest = now - gap * (limit.batch - 1)
    next_start = oldest if register.next_start is None else max(register.next_start, oldest)
    # A rate that was raised since must not wait for what the old one took.
    next_start = min(next_start, now + gap * limit.batch)
    there = int((now - next_start) / gap) + 1 if next_start <= now else 0
    starts = max(0, min(demand, there, limit.batch))
    after = next_start + gap * starts
    wait_s = max(0.0, (after - now).total_seconds()) if starts < demand else 0.0
    return starts, after if starts else register.next_start, wait_s


def is_settled(
    before: LimitRegister, after: LimitRegister, worker_id: str, *, now: datetime, ttl_s: float
) -> bool:
    """Whether a worker may do without writing its share: it changes nothing, and lasts for a while."""
    old, new = before.shares.get(worker_id), after.shares.get(worker_id)
    if before.next_start != after.next_start or (old is None) is not (new is None):
        return False
    if old is None or new is None:
        return True
    same = (old.permits, old.demand) == (new.permits, new.demand)
    return same and old.until > now + timedelta(seconds=ttl_s / 2)
