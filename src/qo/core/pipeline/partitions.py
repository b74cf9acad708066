"""Kinds of partitions: what the key of a partition says about the time, or the numbers, that are in it.

    minute   2026-03-29T01:30      day     2026-03-29      month   2026-03
    hour     2026-03-29T01         week    2026-W13        integer 3000, with ``range: 1000``: 3000 to 3999
    text     anything

A part is a half-open span ``[start, end)``, of seconds since 1970 or of numbers. Keys of time are those of the clocks
on the wall of a time zone: a day may have 23 or 25 hours, an hour that a change of clocks skips does not exist, and one
that it repeats has its offset from UTC behind it the second time (``2026-10-25T02+01:00``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec

from qo.core.words import quote, with_article
from qo.errors import UsageError


class PartitionKind(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"  # Of ISO 8601: it begins on a Monday.
    MONTH = "month"
    INTEGER = "integer"
    TEXT = "text"


class Partitions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the partitions of a job's outputs are."""

    kind: PartitionKind
    timezone: str | None = None  # Unset: UTC.
    start: str | None = None  # The first partition that is expected.
    range: int | None = None  # integer: how many numbers are in a partition.
    weekdays: str | None = None  # minute, hour, day: only these are expected, as in MON-FRI.
    without: tuple[str, ...] = ()  # Keys that are not expected, such as holidays.

    @property
    def in_time(self) -> bool:
        return self.kind not in (PartitionKind.INTEGER, PartitionKind.TEXT)


@dataclass(frozen=True, slots=True)
class Part:
    key: str
    start: int
    end: int


EXAMPLES = {
    PartitionKind.MINUTE: "2026-03-29T01:30",
    PartitionKind.HOUR: "2026-03-29T01",
    PartitionKind.DAY: "2026-03-29",
    PartitionKind.WEEK: "2026-W13",
    PartitionKind.MONTH: "2026-03",
}
WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
# How long a part of a kind usually is.
SECONDS = {
    PartitionKind.MINUTE: 60,
    PartitionKind.HOUR: 3_600,
    PartitionKind.DAY: 86_400,
    PartitionKind.WEEK: 604_800,
    PartitionKind.MONTH: 2_678_400,
}
_OFFSET = r"(?P<offset>[+-]\d\d:\d\d(?::\d\d)?)?"
_DAY = r"(?P<year>[1-9]\d{3})-(?P<month>\d\d)-(?P<day>\d\d)"
_FORMS = {
    PartitionKind.MINUTE: re.compile(rf"{_DAY}T(?P<hour>\d\d):(?P<minute>\d\d){_OFFSET}\Z", re.ASCII),
    PartitionKind.HOUR: re.compile(rf"{_DAY}T(?P<hour>\d\d){_OFFSET}\Z", re.ASCII),
    PartitionKind.DAY: re.compile(rf"{_DAY}\Z", re.ASCII),
    PartitionKind.WEEK: re.compile(r"(?P<year>[1-9]\d{3})-W(?P<week>\d\d)\Z", re.ASCII),
    PartitionKind.MONTH: re.compile(r"(?P<year>[1-9]\d{3})-(?P<month>\d\d)\Z", re.ASCII),
}
_NUMBER = re.compile(r"(?:0|[1-9]\d{0,17})\Z", re.ASCII)
_YEAR_MAX = 9_998  # The part after the last has an end as well.


def find_part(partitions: Partitions, key: str) -> Part:
    """Return the part with this key. Raises UsageError for a key that is none of its kind, or any of a text."""
    if partitions.kind is PartitionKind.INTEGER:
        return _number_part(partitions, key)
    if partitions.kind is PartitionKind.TEXT:
        raise UsageError(f"partition {quote(key)} is text, which has no span")
    wrong = f"{quote(key)} is not {with_article(partitions.kind)}"
    match = _FORMS[partitions.kind].match(key)
    if match is None:
        raise UsageError(f"{wrong}: write it as in {EXAMPLES[partitions.kind]}")
    start = _start_of(partitions, match.groupdict())
    part = None if start is None else part_at(partitions, start)
    if part is None or part.key != key:
        raise UsageError(
            f"{wrong} of the time zone {partitions.timezone or 'UTC'}: there is no such {partitions.kind}"
        )
    return part


def part_at(partitions: Partitions, at: int) -> Part:
    """Return the part that contains a second or a number."""
    if partitions.kind is PartitionKind.INTEGER:
        size = partitions.range or 1
        return Part(str(at // size * size), at // size * size, (at // size + 1) * size)
    start = _floor(partitions, at)
    while (end := _next_start(partitions, start)) <= at:
        start = end  # A change of clocks at midnight shows the date of yesterday once more.
    return Part(_key_of(partitions, start), start, end)


def following(partitions: Partitions, part: Part) -> Part:
    """Return the part that begins where this one ends."""
    return part_at(partitions, part.end)


def preceding(partitions: Partitions, part: Part) -> Part | None:
    """Return the part that ends where this one begins; None for the first of numbers."""
    return None if part.start == 0 and not partitions.in_time else part_at(partitions, part.start - 1)


def is_expected(partitions: Partitions, part: Part) -> bool:
    """Whether the part is one that there should be: not before the start, and not in a declared gap."""
    if partitions.start is not None and part.start < find_part(partitions, partitions.start).start:
        return False
    if partitions.weekdays is not None:
        weekday = _local(partitions, part.start).weekday()
        if weekday not in parse_weekdays(partitions.weekdays):
            return False
    return part.key not in partitions.without


@lru_cache(maxsize=256)
def parse_weekdays(text: str) -> frozenset[int]:
    """Return the days that a text such as ``MON-FRI`` or ``MON,WED`` names, counted from Monday."""
    days: set[int] = set()
    for each in text.split(","):
        first, _, last = each.partition("-")
        begin, end = WEEKDAYS.index(first), WEEKDAYS.index(last or first)
        days.update(range(begin, end + 1) if begin <= end else (*range(begin, 7), *range(end + 1)))
    return frozenset(days)


def check_key(partitions: Partitions | None, key: str | None) -> None:
    """Raise UsageError for a key that is none of these partitions. None fits, and so does any key without a kind."""
    if partitions is not None and key is not None and partitions.kind is not PartitionKind.TEXT:
        find_part(partitions, key)


def is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _number_part(partitions: Partitions, key: str) -> Part:
    size = partitions.range or 1
    if not _NUMBER.match(key) or int(key) % size:
        steps = "a whole number" if size == 1 else f"a multiple of {size}, which is where its range begins"
        raise UsageError(f"{quote(key)} is no partition of integers: write {steps}")
    return Part(key, int(key), int(key) + size)


@lru_cache(maxsize=256)
def _zone(name: str | None) -> ZoneInfo:
    return ZoneInfo(name or "UTC")


def _start_of(partitions: Partitions, fields: dict[str, str | None]) -> int | None:
    """Return when the part with these fields begins; None if there is no such date or offset."""
    numbers = {name: int(text) for name, text in fields.items() if text is not None and name != "offset"}
    if numbers["year"] > _YEAR_MAX:
        return None
    try:
        if "week" in numbers:
            local = datetime.fromisocalendar(numbers["year"], numbers["week"], 1)
        else:
            date = numbers["year"], numbers["month"], numbers.get("day", 1)
            local = datetime(*date, numbers.get("hour", 0), numbers.get("minute", 0), tzinfo=UTC)
    except ValueError:
        return None
    again = fields.get("offset") is not None
    return _instant(partitions, local.replace(fold=int(again)))


def _instant(partitions: Partitions, local: datetime) -> int:
    return int(local.replace(tzinfo=_zone(partitions.timezone)).timestamp())


def _local(partitions: Partitions, at: int) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone(_zone(partitions.timezone)).replace(tzinfo=None)


def _truncate(kind: PartitionKind, local: datetime) -> datetime:
    whole = local.replace(second=0, microsecond=0)
    match kind:
        case PartitionKind.MINUTE:
            return whole
        case PartitionKind.HOUR:
            return whole.replace(minute=0)
        case _:
            day = whole.replace(hour=0, minute=0, fold=0)
    if kind is PartitionKind.WEEK:
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if kind is PartitionKind.MONTH else day


def _floor(partitions: Partitions, at: int) -> int:
    return _instant(partitions, _truncate(partitions.kind, _local(partitions, at)))


def _next_start(partitions: Partitions, start: int) -> int:
    kind = partitions.kind
    if kind in (PartitionKind.MINUTE, PartitionKind.HOUR):
        at = start + SECONDS[kind]
        while (end := _floor(partitions, at)) <= start:
            at += SECONDS[kind]
        return end
    local = _truncate(kind, _local(partitions, start))
    while True:
        # A zone that crosses the date line skips a day.
        local = _step(kind, local)
        if (end := _instant(partitions, local)) > start:
            return end


def _step(kind: PartitionKind, local: datetime) -> datetime:
    if kind is PartitionKind.MONTH:
        return (local + timedelta(days=31)).replace(day=1)
    return local + timedelta(days=7 if kind is PartitionKind.WEEK else 1)


def _key_of(partitions: Partitions, start: int) -> str:
    local = _truncate(partitions.kind, _local(partitions, start))
    match partitions.kind:
        case PartitionKind.WEEK:
            year, week, _ = local.isocalendar()
            return f"{year:04}-W{week:02}"
        case PartitionKind.MONTH:
            return local.strftime("%Y-%m")
        case PartitionKind.DAY:
            return local.strftime("%Y-%m-%d")
        case _:
            text = local.strftime("%Y-%m-%dT%H:%M" if partitions.kind is PartitionKind.MINUTE else "%Y-%m-%dT%H")
    is_repeated = local.fold and _instant(partitions, local) > _instant(partitions, local.replace(fold=0))
    return text + _offset(partitions, local) if is_repeated else text


def _offset(partitions: Partitions, local: datetime) -> str:
    return local.replace(tzinfo=_zone(partitions.timezone)).isoformat()[len("2026-10-25T02:00:00") :]
