"""When a cron source fires: five cron fields in a time zone, or ``rate(5 minutes)``. Pure.

Of the moments that were missed while no scheduler ran, or while the source was paused, only the latest is made up
for: its cursor covers the others. A new or changed plan never fires for a moment before it was first seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from qo.core.schedule import CatchUp, Schedule, due, next_run
from qo.errors import UsageError

_RATE = re.compile(r"rate\(\s*([1-9][0-9]{0,5})\s+(minute|hour|day)s?\s*\)\Z")
_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    schedule: str
    timezone: str = "UTC"

    def latest(self, after: datetime, now: datetime) -> datetime | None:
        """The last planned moment in (after, now]; None: there is none."""
        period = rate(self.schedule)
        if period is not None:
            last = _EPOCH + (now - _EPOCH) // period * period
            return last if last > after else None
        found = due(self._cron(after), now)
        return found[-1] if found else None

    def following(self, now: datetime) -> datetime | None:
        """The first planned moment after now; None: it never comes."""
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
    """The period of ``rate(5 minutes)``, counted from 1970 so that all schedulers agree; None: it is a cron plan."""
    if not schedule.startswith("rate("):
        return None
    found = _RATE.match(schedule)
    if found is None:
        raise UsageError(
            f"{schedule!r} is no rate: write for example rate(5 minutes), rate(1 hour) or rate(1 day)"
        )
    return int(found[1]) * _UNITS[found[2]]


def from_config(config: dict[str, Any]) -> Plan:
    schedule = config.get("schedule")
    if not schedule:
        raise UsageError("a cron source needs a schedule")
    return Plan(str(schedule), str(config.get("timezone") or "UTC"))


@dataclass(frozen=True, slots=True)
class Memory:
    """Up to when a plan has been followed. Kept with the dispatcher."""

    plan: Plan
    after: datetime

    def to_json(self) -> dict[str, str]:
        return {"schedule": self.plan.schedule, "timezone": self.plan.timezone, "after": self.after.isoformat()}


def recalled(plan: Plan, memories: tuple[Any, ...]) -> Memory | None:
    """The furthest memory of this very plan; None: it is new."""
    found: list[Memory] = []
    for told in memories:
        memory = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
        if (memory.get("schedule"), memory.get("timezone")) == (plan.schedule, plan.timezone):
            found.append(Memory(plan, datetime.fromisoformat(str(memory["after"]))))
    return max(found, key=lambda each: each.after, default=None)
