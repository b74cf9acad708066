"""Whether a Spark session still has a cluster: decided from what is observed, one observation after another.

A session without executors is no news while there is nothing to do: dynamic allocation gives them back. Nor is one that
waits for its first executors: a full cluster gives them late. One that had executors, has work and has none for
``lost_after_s`` is lost: its master may have forgotten it, and then no executor will ever come. If the master is known
to have been away, there is no need to wait so long.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.spark.engine.endpoint import Reach

AWAY_S = 3.0  # Two observations at least: one refused connection may be an accident.
# A session that never had executors is in the cluster's line, and would lose its place: so many times as patient.
FIRST_EXECUTORS = 8


class Driver(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # The context was ended while its process lives: the cluster has removed the application.
    DEAD = "dead"  # The process is gone.


@dataclass(frozen=True, slots=True)
class Observation:
    at: float  # In seconds, of a clock that never goes back.
    endpoint: Reach = Reach.UNKNOWN  # Of the master, or of the Connect server.
    executors: int | None = None  # None: cannot be known, as of a Connect server.
    waiting: int = 0  # Spark jobs that have begun and not ended.
    running: int = 0  # Spark tasks that run. Needs not be known where executors are.
    driver: Driver = Driver.ALIVE
    session: int = 0  # Another number, another session: what was seen of the one before says nothing of it.


@dataclass(frozen=True, slots=True)
class Limits:
    lost_after_s: float
    scales_to_zero: bool = False  # Dynamic allocation: an idle application gives all executors back.
    patience: int = 1  # Doubled for each session in a row that was given up before it had an executor.

    @property
    def first_executors_s(self) -> float:
        return self.lost_after_s * FIRST_EXECUTORS * self.patience


@dataclass(frozen=True, slots=True)
class Record:
    """What earlier observations of the same session leave behind."""

    session: int = 0
    had_executors: bool = False
    was_away: bool = False  # Nobody listened at the endpoint at some time since the session began.
    starved_since: float | None = None  # There is work, and nothing that runs it.
    unreachable_since: float | None = None


class Cause(StrEnum):
    DRIVER_DEAD = "driver_dead"
    DRIVER_STOPPED = "driver_stopped"
    ENDPOINT_GONE = "endpoint_gone"
    ENDPOINT_SILENT = "endpoint_silent"
    ENDPOINT_RESTARTED = "endpoint_restarted"
    NO_EXECUTORS = "no_executors"


@dataclass(frozen=True, slots=True)
class Healthy:
    pass


@dataclass(frozen=True, slots=True)
class Waiting:
    """For executors."""

    since: float


@dataclass(frozen=True, slots=True)
class Lost:
    cause: Cause


Verdict = Healthy | Waiting | Lost


def judge(before: Record, seen: Observation, limits: Limits) -> tuple[Record, Verdict]:
    """What to think of a session after one more observation, and what to remember for the next."""
    if before.session != seen.session:
        before = Record(session=seen.session)
    has_executors = bool(seen.executors) or seen.running > 0
    starved = seen.waiting > 0 and not has_executors
    unreachable = seen.endpoint in (Reach.REFUSED, Reach.SILENT)
    record = Record(
        session=seen.session,
        had_executors=before.had_executors or has_executors,
        was_away=before.was_away or seen.endpoint is Reach.REFUSED,
        starved_since=_since(before.starved_since, seen.at) if starved else None,
        unreachable_since=_since(before.unreachable_since, seen.at) if unreachable else None,
    )
    if seen.driver is Driver.DEAD:
        return record, Lost(Cause.DRIVER_DEAD)
    if seen.driver is Driver.STOPPED:
        return record, Lost(Cause.DRIVER_STOPPED)
    if record.starved_since is None:
        return record, Healthy()
    cause, begun, limit_s = _limit(record, record.starved_since, seen, limits)
    if limit_s is not None and seen.at - begun >= limit_s:
        return record, Lost(cause)
    return record, Waiting(record.starved_since)


def _limit(
    record: Record, starved_since: float, seen: Observation, limits: Limits
) -> tuple[Cause, float, float | None]:
    """Why a session without executors would be lost, counted from when, and after how long; None: never."""
    soon_s = min(AWAY_S, limits.lost_after_s)
    if record.unreachable_since is not None:
        begun = max(starved_since, record.unreachable_since)
        if seen.endpoint is Reach.REFUSED:
            return Cause.ENDPOINT_GONE, begun, soon_s
        return Cause.ENDPOINT_SILENT, begun, limits.lost_after_s
    if record.was_away:
        return Cause.ENDPOINT_RESTARTED, starved_since, soon_s
    if seen.executors is None:
        return Cause.NO_EXECUTORS, starved_since, None  # Others may be using them all.
    if record.had_executors and not limits.scales_to_zero:
        return Cause.NO_EXECUTORS, starved_since, limits.lost_after_s
    return Cause.NO_EXECUTORS, starved_since, limits.first_executors_s


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
