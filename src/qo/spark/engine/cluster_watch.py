"""Decides whether a Spark session still has a cluster, from one observation after another.

A session without executors is normal while there is nothing to do: dynamic allocation gives them back. So is one that
waits for its first executors: a full cluster gives them late. A session that had executors, has work, and has had none
for ``lost_after_s`` is lost: its master may have forgotten it, and then no executor will ever come. If the master is
known to have been away, the session is lost sooner.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.spark.engine.endpoint import Reach

AWAY_S = 3.0  # At least two observations: a single refused connection may be an accident.
# A session that never had executors would lose its place in the cluster's queue: wait so many times longer.
FIRST_EXECUTORS = 8


class Driver(StrEnum):
    ALIVE = "alive"
    STOPPED = "stopped"  # The context was ended while its process lives: the cluster has removed the application.
    DEAD = "dead"  # The process has ended.


@dataclass(frozen=True, slots=True)
class Observation:
    at: float  # In seconds, of a monotonic clock.
    endpoint: Reach = Reach.UNKNOWN  # Of the master, or of the Connect server.
    executors: int | None = None  # None: not known, as behind a Connect server.
    waiting: int = 0  # Spark jobs that have begun and not ended.
    running: int = 0  # Spark tasks that run; only counted where executors are not known.
    driver: Driver = Driver.ALIVE
    session: int = 0  # Observations of a session with another number do not count for this one.


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
    """The state kept between observations of a session."""

    session: int = 0
    had_executors: bool = False
    was_away: bool = False  # The endpoint refused a connection at some time since the session began.
    starved_since: float | None = None  # There is work, and no executor to run it.
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
    """The session waits for executors."""

    since: float


@dataclass(frozen=True, slots=True)
class Lost:
    cause: Cause


Verdict = Healthy | Waiting | Lost


def judge(before: Record, observation: Observation, limits: Limits) -> tuple[Record, Verdict]:
    """Return the record to keep for the next observation, and the verdict after this one."""
    if before.session != observation.session:
        before = Record(session=observation.session)
    has_executors = bool(observation.executors) or observation.running > 0
    starved = observation.waiting > 0 and not has_executors
    unreachable = observation.endpoint in (Reach.REFUSED, Reach.SILENT)
    record = Record(
        session=observation.session,
        had_executors=before.had_executors or has_executors,
        was_away=before.was_away or observation.endpoint is Reach.REFUSED,
        starved_since=_since(before.starved_since, observation.at) if starved else None,
        unreachable_since=_since(before.unreachable_since, observation.at) if unreachable else None,
    )
    if observation.driver is Driver.DEAD:
        return record, Lost(Cause.DRIVER_DEAD)
    if observation.driver is Driver.STOPPED:
        return record, Lost(Cause.DRIVER_STOPPED)
    if record.starved_since is None:
        return record, Healthy()
    cause, since, limit_s = _limit(record, record.starved_since, observation, limits)
    if limit_s is not None and observation.at - since >= limit_s:
        return record, Lost(cause)
    return record, Waiting(record.starved_since)


def _limit(
    record: Record, starved_since: float, observation: Observation, limits: Limits
) -> tuple[Cause, float, float | None]:
    """Return why a session without executors would be lost, since when to count, and after how long; None: never."""
    soon_s = min(AWAY_S, limits.lost_after_s)
    if record.unreachable_since is not None:
        since = max(starved_since, record.unreachable_since)
        if observation.endpoint is Reach.REFUSED:
            return Cause.ENDPOINT_GONE, since, soon_s
        return Cause.ENDPOINT_SILENT, since, limits.lost_after_s
    if record.was_away:
        return Cause.ENDPOINT_RESTARTED, starved_since, soon_s
    if observation.executors is None:
        return Cause.NO_EXECUTORS, starved_since, None  # Other applications may be using them all.
    if record.had_executors and not limits.scales_to_zero:
        return Cause.NO_EXECUTORS, starved_since, limits.lost_after_s
    return Cause.NO_EXECUTORS, starved_since, limits.first_executors_s


def _since(before: float | None, now: float) -> float:
    return now if before is None else before
