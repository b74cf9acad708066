"""Cron sources: one cursor event for each planned time, its seconds since 1970, or one for its partition.

Any number of schedulers may run: the key of an event is its planned time, so the dispatcher accepts it once. An event
is emitted before it is remembered. A scheduler that dies in between leaves an event that is emitted again, without
effect.

While what a source feeds is overfull, its times wait. Then each is emitted by itself, or, if the source coalesces, the
last one with a record of how many it stands for.

A source that declares its partitions announces the one that contains a planned time, or another one from there
(``offset``). All that were missed are made up for then, since none of them covers another.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

import msgspec

from qo.api.contract.source import Coalesced
from qo.api.contract.task import EventBody
from qo.config.settings import Settings
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.partitions import Part, Partitions, following, is_expected, part_at, preceding
from qo.errors import QoError
from qo.scheduler.emitter import Emitter, SourceView, by_job
from qo.scheduler.poller import PollResult
from qo.scheduler.timetable import Memory, from_config, latest_memory

log = logging.getLogger(__name__)

HELD_INTERVAL_S = 1.0  # While a source waits, or makes up for what waited.
MADE_UP_AT_ONCE = 20  # Then the dispatcher is asked again whether the source may go on.
TIMES_MAX = 10_000  # So many times that waited are counted.
INTERVAL_S = 15.0  # How long a new or changed schedule may go unnoticed.


class CronPoller:
    """All cron sources of a dispatcher."""

    def __init__(self, kind: SourceKind, emitter: Emitter, settings: Settings) -> None:
        del kind, settings
        self._emitter = emitter

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def poll(self) -> PollResult:
        return await poll(self._emitter)


async def poll(emitter: Emitter) -> PollResult:
    """Emit what is due. A source that fails is still due at the next call, and does not affect the others."""
    sources = by_job(await emitter.sources("cron"))
    emitted, wait_s = 0, INTERVAL_S
    failures: list[str] = []
    for source in sources:
        try:
            count, next_s = await _follow(emitter, source)
            emitted, wait_s = emitted + count, min(wait_s, next_s)
        except QoError as error:
            log.warning("cron source %s: %s", source.name, error)
            failures.append(f"{source.name}: {error}")
    return PollResult(sources=len(sources), emitted=emitted, failures=tuple(failures), wait_s=wait_s)


async def _follow(emitter: Emitter, source: SourceView) -> tuple[int, float]:
    """Emit the latest due time of one source. Return how many events that were, and the seconds until the next time."""
    plan = from_config(source.config)
    memory = latest_memory(plan, source.memories)
    if memory is None:
        # Remembered at once, so that times missed from now on are made up for even if no scheduler runs until then.
        following = plan.following(source.now)
        await _remember(emitter, source, Memory(plan, source.now))
        return 0, _seconds_until(source, following)
    latest = None if source.paused is not None else plan.latest(memory.after, source.now)
    next_s = _seconds_until(source, plan.following(source.now))
    if latest is None:
        return 0, next_s
    if source.held is not None:
        await _wait(emitter, source, memory, latest)
        return 0, min(next_s, HELD_INTERVAL_S)
    if (partitions := _partitions_of(source)) is not None:
        count, is_more = await _announce(emitter, source, memory, partitions)
        return count, min(next_s, HELD_INTERVAL_S) if is_more else next_s
    if memory.held_from is None:
        await _emit(emitter, source, latest)
        await _remember(emitter, source, Memory(plan, latest))
        return 1, next_s
    return await _make_up(emitter, source, memory, latest), min(next_s, HELD_INTERVAL_S)


async def _wait(emitter: Emitter, source: SourceView, memory: Memory, latest: datetime) -> None:
    """Remember which times came while the source was held back."""
    held_from = memory.held_from or latest
    # The microsecond before, so that the first one counts.
    times = memory.plan.times(held_from - timedelta(microseconds=1), source.now, TIMES_MAX)
    waiting = Memory(memory.plan, memory.after, held_from, len(times))
    if waiting != memory:
        await _remember(emitter, source, waiting)


async def _make_up(emitter: Emitter, source: SourceView, memory: Memory, latest: datetime) -> int:
    """Emit what waited: each time by itself, some at a poll, or all as one. Return how many events that were."""
    plan, held_from = memory.plan, memory.held_from or latest
    before = max(memory.after, held_from - timedelta(microseconds=1))
    if source.coalesces:
        count = len(plan.times(before, latest, TIMES_MAX))
        stands_for = Coalesced(count=count, since=held_from) if count > 1 else None
        await _emit(emitter, source, latest, stands_for)
        await _remember(emitter, source, Memory(plan, latest))
        return 1
    times = plan.times(before, latest, MADE_UP_AT_ONCE)
    for each in times:
        await _emit(emitter, source, each)
    last = times[-1] if times else latest
    rest = Memory(plan, last) if last >= latest else Memory(plan, last, held_from, memory.waiting - len(times))
    await _remember(emitter, source, rest)
    return len(times)


async def _announce(
    emitter: Emitter, source: SourceView, memory: Memory, partitions: Partitions
) -> tuple[int, bool]:
    """Announce the partitions of the next times that are due; of several in one partition, the last. Return how many
    there were, and whether there are more."""
    times = memory.plan.times(memory.after, source.now, MADE_UP_AT_ONCE)
    last_times = {
        part.key: at for at in times if (part := _part_of(partitions, at, int(source.config.get("offset") or 0)))
    }
    for key, at in last_times.items():
        event = EventBody(partition_key=key, attributes={"scheduled_at": at.isoformat()})
        await emitter.emit(source.dag, source.job, key=f"cron:{at.isoformat()}", events=[event])
    await _remember(emitter, source, Memory(memory.plan, times[-1] if times else source.now))
    return len(last_times), len(times) == MADE_UP_AT_ONCE


def _part_of(partitions: Partitions, at: datetime, offset: int) -> Part | None:
    """Return the partition so many from the one that contains a time; None if it is not expected."""
    part: Part | None = part_at(partitions, int(at.timestamp()))
    for _ in range(abs(offset)):
        if part is not None:
            part = following(partitions, part) if offset > 0 else preceding(partitions, part)
    return part if part is not None and is_expected(partitions, part) else None


def _partitions_of(source: SourceView) -> Partitions | None:
    declared = source.config.get("partitions")
    return None if declared is None else msgspec.convert(declared, Partitions)


async def _emit(emitter: Emitter, source: SourceView, at: datetime, coalesced: Coalesced | None = None) -> None:
    event = EventBody(cursor=int(at.timestamp()), attributes={"scheduled_at": at.isoformat()})
    await emitter.emit(source.dag, source.job, key=f"cron:{at.isoformat()}", events=[event], coalesced=coalesced)


async def _remember(emitter: Emitter, source: SourceView, memory: Memory) -> None:
    for edition in source.editions:
        await emitter.remember(edition, memory.to_json())


def _seconds_until(source: SourceView, following: datetime | None) -> float:
    if following is None:
        return INTERVAL_S
    # Slightly late rather than early: an early poll would find nothing due.
    return max((following - source.now + timedelta(milliseconds=20)).total_seconds(), 0.02)
