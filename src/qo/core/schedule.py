"""Cron schedules: when a task should be submitted again.

The plan is a five-field cron expression (minute, hour, day of month, month, day of week with Sunday as 0 or 7) in an
IANA time zone. Where clocks change, it follows Debian's cron:

- With a fixed minute and hour (neither field begins with ``*``) a time runs once per date: a time that the clocks skip
  runs at the first moment after the gap, a time that they repeat runs at its first occurrence.
- With ``*`` at the start of the minute or hour field the plan follows elapsed time: nothing runs in the skipped hour,
  and both passes of the repeated hour run.

Everything here is a pure function of a schedule and ``now``; ``queue.scheduler`` acts on the results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import asdict, replace

from qo.core.struct_preload import preload
from qo.core.task import FORMAT, Instant
from qo.errors import UsageError

GRACE_S = 60.0  # How late a run may be and still count as on time.
RUNS_MAX = 100  # Runs returned at once; the others are due at the next pass.

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}\Z")


class CatchUp(StrEnum):
    """What happens to missed runs, for example because no scheduler was running."""

    NONE = "none"  # They are dropped.
    LAST = "last"  # The latest is caught up, the others are dropped.
    ALL = "all"  # All are caught up, oldest first.


class Overlap(StrEnum):
    """What happens if a run is due while the task of the previous one has not ended."""

    ALLOW = "allow"  # Both run.
    SKIP = "skip"  # The new one is dropped.


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    format: int = FORMAT
    token: str  # Identifies the last write, so that a writer whose reply was lost recognises its own.

    # What is submitted
    task_type: str
    input: Any = None
    timeout_s: float | None = None
    max_retries: int = 3
    priority: int = 0

    # When
    cron: str
    timezone: str = "UTC"
    enabled: bool = True
    catch_up: CatchUp = CatchUp.LAST
    overlap: Overlap = Overlap.ALLOW

    # Timestamps, all by the store's clock
    created_at: Instant
    updated_at: Instant
    active_since: Instant  # When it was created, enabled or given this plan: no earlier time ever runs.
    last_run_at: Instant | None = None  # The planned time of the last run, not when it was submitted.
    last_task_id: str | None = None


preload(Schedule)


def validate_name(name: str) -> str:
    """Return the name itself. Raises UsageError: names become part of keys."""
    if not isinstance(name, str) or not _NAME.match(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{name!r} cannot name a schedule: use lower-case letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit, 100 characters at most"
        )
    return name


def validate(schedule: Schedule) -> Schedule:
    """Return the schedule as it will be read back. Raises UsageError that says what is wrong."""
    validate_name(schedule.name)
    _check_choice("catch_up", schedule.catch_up, CatchUp)
    _check_choice("overlap", schedule.overlap, Overlap)
    schedule = _convert(schedule)
    if next(_instants(schedule, schedule.active_since), None) is None:
        raise UsageError(f"cron {schedule.cron!r} never comes true")
    return schedule


def _convert(schedule: Schedule) -> Schedule:
    try:
        return msgspec.convert(asdict(schedule), Schedule)
    except msgspec.ValidationError as error:
        # For example: Expected `int`, got `float` - at `$.max_retries`
        problem, _, field = str(error).rpartition(" - at ")
        raise UsageError(f"the schedule's {field.strip('`').removeprefix('$.')} is wrong: {problem}") from error


def _check_choice(field: str, value: str, kind: type[StrEnum]) -> None:
    choices = [each.value for each in kind]
    if value not in choices:
        raise UsageError(f"{field} must be one of {', '.join(choices)}, not {value!r}")


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(f"there is no time zone {name!r}: use an IANA name such as Europe/Berlin") from error


def _local_times(cron: str, start: datetime) -> CronSim:
    fields = len(cron.split())
    if fields != 5:
        raise UsageError(
            f"cron {cron!r} has {fields} fields, not five: minute, hour, day of month, month, day of week"
        )
    try:
        return CronSim(cron, start)
    except (CronSimError, ValueError) as error:
        raise UsageError(f"cron {cron!r} cannot be read: {error}") from error


def _instants(schedule: Schedule, after: datetime) -> Iterator[datetime]:
    """Yield the planned times after ``after``, in order, without end for most plans."""
    zone = _zone(schedule.timezone)
    plan = _local_times(schedule.cron, after.astimezone(zone))
    for wall in plan:
        instant = wall.astimezone(UTC)
        if instant <= after:
            continue  # In the second pass of a repeated hour, the search starts from the first pass.
        local = instant.astimezone(zone)
        if local.hour != wall.hour and local.hour not in plan.hours:
            continue  # A midnight that the clocks skip, in a plan that follows elapsed time.
        yield instant


def _between(schedule: Schedule, after: datetime, until: datetime) -> Iterator[datetime]:
    for instant in _instants(schedule, after):
        if instant > until:
            return
        yield instant


def next_run(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the first planned time after now; None while the schedule is disabled."""
    return next(_instants(schedule, max(now, schedule.active_since)), None) if schedule.enabled else None


def due_runs(schedule: Schedule, now: datetime, *, grace_s: float = GRACE_S) -> list[datetime]:
    """Return the planned times to submit a task for now, oldest first, RUNS_MAX at most.

    They are after the last run and after the schedule became active, so that a new, re-enabled or changed plan never
    runs for an earlier time.
    """
    if not schedule.enabled:
        return []
    after = max(schedule.active_since, schedule.last_run_at or schedule.active_since)
    if schedule.catch_up == CatchUp.LAST:
        latest = _latest(schedule, after, now)
        return [] if latest is None else [latest]
    if schedule.catch_up == CatchUp.NONE:
        after = max(after, now - timedelta(seconds=grace_s))
    return list(islice(_between(schedule, after, now), RUNS_MAX))


def _latest(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    """Return the last planned time after ``after`` and up to ``until``. Looks back in doubling steps, so that a year of
    missed minutes costs no more than one."""
    latest = next(_between(schedule, after, until), None)
    back = timedelta(minutes=1)
    while latest is not None:
        instants = list(_between(schedule, max(latest, until - back), until))
        if instants:
            return instants[-1]
        if until - back <= latest:
            return latest
        back *= 2
    return None


def run_key(schedule: Schedule, instant: datetime) -> str:
    """Return the idempotency key of a run: the same for every scheduler, another for a later schedule of this name."""
    return f"schedule:{schedule.name}:{schedule.created_at.isoformat()}:{instant.isoformat()}"


def record_run(
    schedule: Schedule, instant: datetime, task_id: str | None, *, now: datetime, token: str
) -> Schedule:
    """Return the schedule with the run recorded (as skipped, without a task); the same schedule if this run or a later
    one was recorded before."""
    # One scheduler may skip a run while another submits it: the task is then still to be recorded.
    is_recorded = instant == schedule.last_run_at and task_id in (None, schedule.last_task_id)
    if is_recorded or (schedule.last_run_at is not None and instant < schedule.last_run_at):
        return schedule
    return replace(
        schedule,
        token=token,
        updated_at=max(now, schedule.updated_at),
        last_run_at=instant,
        last_task_id=task_id or schedule.last_task_id,
    )


def change(schedule: Schedule, *, now: datetime, token: str, **changes: Any) -> Schedule:
    """Return the schedule with some fields changed and validated. A new or re-enabled plan starts from now."""
    after = replace(schedule, token=token, updated_at=max(now, schedule.updated_at), **changes)
    replanned = (schedule.cron, schedule.timezone) != (after.cron, after.timezone)
    if replanned or (after.enabled and not schedule.enabled):
        after = replace(after, active_since=now)
    return validate(after)
