"""Direct dispatch: which worker's inbox a new task goes to, who owns an inbox, and when its tasks are offered to all.

A task that is routed to a worker has its hint in that worker's inbox, instead of the ready index. Both are hints: the
task says which one it has (``Task.inbox``), and whoever claims the task first runs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from qo.core.task import Status, Task

LEASE_BEATS = 3  # An inbox is leased for so many heartbeats.
LEASE_MIN_S = 10.0

# In one round, of tasks that have waited too long in the inboxes of live workers. While others have enough to do, few
# are offered: each costs two writes. While what was offered is taken, ever more.
OFFERS_MIN, OFFERS_FIRST, OFFERS_MAX = 4, 8, 1024


class Dispatch(StrEnum):
    """How new tasks reach workers."""

    SHARED = "shared"  # Every worker finds them in the ready index.
    DIRECT = "direct"  # Each is put into the inbox of one worker.


class Routing(StrEnum):
    """How a worker is chosen for a task."""

    ROUND_ROBIN = "round_robin"
    HASH = "hash"  # By the task's id, so that most tasks keep their worker when others come and go.
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """How tasks are routed by whoever submits them, and when the lookout offers them to all."""

    dispatch: Dispatch = Dispatch.SHARED
    routing: Routing = Routing.ROUND_ROBIN
    view_s: float = 30.0  # How long a view of the workers is used.
    offer_after_s: float = 10.0  # A task that nobody has claimed from an inbox for so long is offered to all.


# Routing


def is_routable(task: Task) -> bool:
    """Whether a new task may go to an inbox: if it can be claimed now.

    The worker that is chosen now may be gone when a delayed task is due, or when what a task waits for has ended.
    """
    return task.status is Status.PENDING and not task.waiting and task.available_at <= task.updated_at


def choose_owner(owners: Sequence[str], routing: Routing, *, task_id: str, turn: int, chance: float) -> str | None:
    """Choose one of the workers that take a task; None if there is none.

    ``turn`` counts the tasks that were routed before, ``chance`` is a number in [0, 1).
    """
    if not owners:
        return None
    ordered = sorted(owners)
    match routing:
        case Routing.ROUND_ROBIN:
            return ordered[turn % len(ordered)]
        case Routing.HASH:
            return max(ordered, key=lambda owner: zlib.crc32(f"{task_id} {owner}".encode()))
        case Routing.RANDOM:
            return ordered[int(chance * len(ordered))]


# Owning


@dataclass(frozen=True, slots=True)
class InboxOwner:
    """Who owns an inbox, as the record of the worker says."""

    token: str  # Of the write of the record.
    until: datetime | None  # None: the worker owns none.


def may_own(
    stored: InboxOwner | None, tokens: frozenset[str], *, now: datetime, is_abandoned: bool = False
) -> bool:
    """Whether a worker may write itself as the owner, by compare-and-swap on what is stored.

    ``tokens``: of our own writes, so that one whose reply was lost is recognised. ``is_abandoned``: the owner is known
    to have ended.
    """
    if stored is None or stored.until is None or stored.token in tokens:
        return True
    return is_abandoned or stored.until <= now


def lease_s(heartbeat_s: float) -> float:
    """Return for how long a heartbeat makes its sender the owner of its inbox."""
    return max(LEASE_MIN_S, LEASE_BEATS * heartbeat_s)


# Offering to all


def next_offers(last: int, ready: int) -> int:
    """Return how many tasks of slow workers to offer in this round, if ``last`` were offered in the last one and
    ``ready`` tasks wait that anybody may claim."""
    if ready > 0:
        return OFFERS_MIN
    return min(OFFERS_MAX, max(OFFERS_FIRST, 2 * last))
