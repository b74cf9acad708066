"""How many workers a runtime should have: a decision from its load, its workers and a policy.

A decision is explained by a ``Reason``, which ``scaling_reasons`` turns into text. Workers have places, numbered from 1
to ``max``: two scalers that decide at the same time want the same places filled, and a launcher fills a place once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

BACKOFF_S = (
    0.0,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
)  # Before starts after the first, second, … early death in a row.
HEALTHY_S = 30.0  # A worker that has lived for so long did not die of its start.


class WorkerState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # It finishes what it runs, claims nothing, and ends.
    DEAD = "dead"  # It has ended, and nobody had asked it to.


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    place: int
    state: WorkerState
    busy: int = 0  # Tasks that it runs, as far as that is known.


@dataclass(frozen=True, slots=True)
class Load:
    """The work of a runtime, over all its queues."""

    waiting: int = (
        0  # Tasks that were woken and that nobody has claimed. Tasks that are held back are not among them.
    )
    running: int = 0
    oldest_s: float = 0.0  # How long the oldest of the waiting ones has waited.
    task_s: float | None = None  # How long recent tasks ran, on average; None: not known.
    in_flight_max: int | None = None  # The runtime's own limit of tasks that wait or run.
    held: int = 0  # Jobs whose tasks are held back.


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    min: int = 0
    max: int
    slots: int = 1  # Tasks that one worker runs at a time.
    target_wait_s: float = 10.0  # How long a task may wait for a worker; 0: as many workers as there is work for.
    idle_s: float = 60.0  # For so long fewer workers must have been enough before one is drained.


class Code(StrEnum):
    """Why a decision was taken."""

    BELOW_MIN = "below_min"
    WORK_AT_ZERO = "work_at_zero"
    BACKLOG = "backlog"
    LATE = "late"
    ABOVE_MAX = "above_max"
    SURPLUS = "surplus"
    IDLE = "idle"
    ENOUGH = "enough"
    HELD = "held"
    AT_MAX = "at_max"
    COOLING = "cooling"
    PLACES_TAKEN = "places_taken"
    BACKOFF = "backoff"


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    load: Load
    live: int
    needed: int
    draining: int = 0
    rest_s: float = 0.0  # Until it is decided again, for ``cooling`` and ``backoff``.
    deaths: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier turns have left: the highest needs of the last ``idle_s``, and the deaths in a row."""

    since: float  # When the first turn was.
    needs: tuple[
        tuple[float, int], ...
    ] = ()  # Time and workers needed, falling: a higher one makes earlier ones moot.
    deaths: int = 0  # In a row, each soon after its start.
    died_at: float = -math.inf

    def with_need(self, now: float, needed: int, keep_s: float) -> Memory:
        higher = [(at, each) for at, each in self.needs if at > now - keep_s and each > needed]
        return replace(self, needs=(*higher, (now, needed)))

    def with_deaths(self, ages_s: Iterable[float], now: float) -> Memory:
        """Note workers that have died, each at this age. One that was killed after a good while is replaced at once."""
        memory = self
        for age_s in ages_s:
            memory = replace(memory, deaths=memory.deaths + 1 if age_s < HEALTHY_S else 0, died_at=now)
        return memory

    def rest_s(self, now: float) -> float:
        """Return for how long no worker may be started because others died."""
        if self.deaths == 0:
            return 0.0
        delay_s = BACKOFF_S[min(self.deaths, len(BACKOFF_S)) - 1]
        return max(0.0, self.died_at + delay_s - now)


@dataclass(frozen=True, slots=True)
class Decision:
    reason: Reason
    memory: Memory
    start: tuple[int, ...] = ()  # Places.
    drain: tuple[Worker, ...] = ()


def decide(load: Load, workers: Sequence[Worker], policy: Policy, memory: Memory, *, now: float) -> Decision:
    """Decide which workers to start, or which to drain. Dead workers hold no place."""
    live = [each for each in workers if each.state in (WorkerState.STARTING, WorkerState.READY)]
    draining = sum(each.state is WorkerState.DRAINING for each in workers)
    needed, code = _count_needed(load, live, policy)
    memory = memory.with_need(now, needed, policy.idle_s)
    reason = Reason(code, load, len(live), needed, draining)
    if needed > len(live):
        return _grow(reason, workers, policy, memory, now=now)
    if needed < len(live):
        return _shrink(reason, live, policy, memory, now=now)
    return Decision(reason, memory)


def _count_needed(load: Load, live: Sequence[Worker], policy: Policy) -> tuple[int, Code]:
    """Return how many workers the load needs, within the policy's bounds, and why."""
    work = load.waiting + load.running
    if work == 0:
        idle = Code.HELD if load.held else Code.ENOUGH
        return policy.min, Code.BELOW_MIN if len(live) < policy.min else idle
    needed = math.ceil(max(load.running, work * _occupied_share(load, policy)) / policy.slots)
    code = Code.BACKLOG if live else Code.WORK_AT_ZERO
    if _is_late(load, live, policy):
        # The estimate was wrong: tasks take longer than recent ones did.
        grown = len(live) + max(1, len(live) // 2)
        needed, code = (grown, Code.LATE) if grown > needed else (needed, code)
    needed = max(1, min(needed, _count_useful(load, policy)))
    if needed > policy.max:
        return policy.max, Code.AT_MAX if len(live) >= policy.max else code
    if needed < policy.min:
        return policy.min, Code.BELOW_MIN if len(live) < policy.min else Code.ENOUGH
    return needed, code if needed > len(live) else Code.ENOUGH


def _occupied_share(load: Load, policy: Policy) -> float:
    """Return the part of the work that must be in a slot at once for all of it to begin within the target.

    A slot runs ``target_wait_s / task_s`` tasks in that time. Without an estimate, each task is taken for a long one.
    """
    if load.task_s is None or load.task_s >= policy.target_wait_s:
        return 1.0
    return load.task_s / policy.target_wait_s


def _is_late(load: Load, live: Sequence[Worker], policy: Policy) -> bool:
    """Whether tasks wait for too long, though all workers are at work: those that start may be all that is missing."""
    if load.oldest_s <= policy.target_wait_s or any(each.state is WorkerState.STARTING for each in live):
        return False
    return load.waiting > len(live) * policy.slots - load.running


def _count_useful(load: Load, policy: Policy) -> int:
    """Return how many workers can have something to do at all."""
    work = load.waiting + load.running
    if load.in_flight_max is not None:
        work = min(work, max(load.in_flight_max, load.running))
    return math.ceil(work / policy.slots)


def _grow(reason: Reason, workers: Sequence[Worker], policy: Policy, memory: Memory, *, now: float) -> Decision:
    rest_s = memory.rest_s(now)
    if rest_s > 0:
        return Decision(replace(reason, code=Code.BACKOFF, rest_s=rest_s, deaths=memory.deaths), memory)
    dead = {each.place for each in workers if each.state is WorkerState.DEAD}
    occupied = {each.place for each in workers if each.state is not WorkerState.DEAD}
    free = [place for place in range(1, policy.max + 1) if place not in occupied]
    # Places outside of the bounds are held by workers of an earlier policy; they count as well.
    room = max(0, policy.max - reason.live - reason.draining)
    # What a dead worker has left stays as long as possible, for whoever wants to know why it died.
    places = sorted(free, key=lambda place: (place in dead, place))[: min(room, reason.needed - reason.live)]
    if not places:
        return Decision(replace(reason, code=Code.PLACES_TAKEN), memory)
    return Decision(reason, memory, start=tuple(places))


def _shrink(reason: Reason, live: Sequence[Worker], policy: Policy, memory: Memory, *, now: float) -> Decision:
    highest = max(each for _, each in memory.needs)
    rest_s = max(memory.since, *(at for at, each in memory.needs if each == highest)) + policy.idle_s - now
    enough = max(highest, reason.needed)
    if now < memory.since + policy.idle_s:
        enough = len(live)  # Nobody has watched for long enough.
    remaining = min(enough, policy.max)
    if remaining >= len(live):
        return Decision(replace(reason, code=Code.COOLING, rest_s=max(0.0, rest_s)), memory)
    code = Code.ABOVE_MAX if len(live) > policy.max else Code.SURPLUS
    if code is Code.SURPLUS and highest == 0:
        code = Code.IDLE
    # Idle ones first: nobody waits for them. Then those that have just begun, then the highest places.
    ordered = sorted(live, key=lambda each: (each.busy, each.state is WorkerState.READY, -each.place))
    return Decision(replace(reason, code=code), memory, drain=tuple(ordered[: len(live) - remaining]))
