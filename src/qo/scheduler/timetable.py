"""When a cron source is due: five cron fields in a time zone, or ``rate(5 minutes)``. Pure.

Of the times that were missed while no scheduler ran, or while the source was paused, only the latest is made up for:
its cursor covers the others. A new or changed plan is never due at a time before it was first seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from qo.core.schedule import CatchUp, Schedule, due_runs, next_run
from qo.errors import UsageError

_RATE = re.compile(r"rate\(\s*([1-9][0-9]{0,5})\s+(minute|hour|day)s?\s*\)\Z")
_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    schedule: str
    timezone: str = "UTC"

    def latest(self, after: datetime, now: datetime) -> datetime | None:
        """Return the last planned time in (after, now]; None if there is none."""
        period = rate(self.schedule)
        if period is not None:
            last = _EPOCH + (now - _EPOCH) // period * period
            return last if last > after else None
        times = due_runs(self._cron(after), now)
        return times[-1] if times else None

    def times(self, after: datetime, upto: datetime, most: int) -> list[datetime]:
        """Return the first planned times in (after, upto], at most so many."""
        times: list[datetime] = []
        while len(times) < most and (following := self.following(times[-1] if times else after)) is not None:
            if following > upto:
                break
            times.append(following)
        return times

    def following(self, now: datetime) -> datetime | None:
        """Return the first planned time after now; None if there is none."""
        period = rate(self.schedule)
        if period is not None:
            return _EPOCH + ((now - _EPOCH) // period + 1) * period
        return next_run(self._cron(now), now)

    def _cron(self, after: datetime) -> Schedule:
        return Schedule(
            name="source",
            token="",
            task_type="cron",
            cron=self.schedule,
            timezone=self.timezone,
            catch_up=CatchUp.LAST,
            created_at=after,
            updated_at=after,
            active_since=after,
        )


def rate(schedule: str) -> timedelta | None:
    """Return the period of ``rate(5 minutes)``; None if the schedule has cron fields.

    Periods count from 1970, so that all schedulers agree. Raises UsageError for a malformed rate.
    """
    if not schedule.startswith("rate("):
        return None
    match = _RATE.match(schedule)
    if match is None:
        raise UsageError(
            f"{schedule!r} is no rate: write for example rate(5 minutes), rate(1 hour) or rate(1 day)"
        )
    return int(match[1]) * _UNITS[match[2]]


def from_config(config: dict[str, Any]) -> Plan:
    schedule = config.get("schedule")
    if not schedule:
        raise UsageError("a cron source needs a schedule")
    return Plan(str(schedule), str(config.get("timezone") or "UTC"))


@dataclass(frozen=True, slots=True)
class Memory:
    """The time up to which a plan has been followed. The dispatcher keeps it."""

    plan: Plan
    after: datetime
    held_from: datetime | None = (
        None  # The first time that came while the source was held back; emitted since: none.
    )
    waiting: int = 0  # How many have come since then; for people.

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "schedule": self.plan.schedule,
            "timezone": self.plan.timezone,
            "after": self.after.isoformat(),
        }
        if self.held_from is not None:
            document |= {"held_from": self.held_from.isoformat(), "waiting": self.waiting}
        return document


def latest_memory(plan: Plan, values: tuple[Any, ...]) -> Memory | None:
    """Return the latest memory of exactly this plan; None if the plan is new."""
    memories: list[Memory] = []
    for value in values:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if (fields.get("schedule"), fields.get("timezone")) == (plan.schedule, plan.timezone):
            held_from = fields.get("held_from")
            memories.append(
                Memory(
                    plan,
                    datetime.fromisoformat(str(fields["after"])),
                    None if held_from is None else datetime.fromisoformat(str(held_from)),
                    int(fields.get("waiting") or 0),
                )
            )
    return max(memories, key=lambda each: each.after, default=None)
