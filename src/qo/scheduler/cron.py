"""Cron sources: one cursor event for each planned moment, its seconds since 1970.

As many schedulers as one likes may run. The key of a firing is its planned moment, so all of them say the same
once. First it is said, then it is remembered: a scheduler that dies in between leaves a firing that is said again,
to no effect.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from qo.api.contract.task import EventBody
from qo.errors import QoError
from qo.scheduler.emitter import Emitter, Spoken, by_job
from qo.scheduler.timetable import Memory, from_config, recalled

log = logging.getLogger(__name__)

INTERVAL_S = 15.0  # How long a new or changed plan may go unnoticed.


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What one look at all cron sources did."""

    sources: int = 0
    fired: int = 0
    failures: tuple[str, ...] = ()
    wait_s: float = INTERVAL_S  # Until something is due, by the dispatcher's clock.


async def look(emitter: Emitter) -> Looked:
    """Fire what is due. What goes wrong with one source stays with it; it is still due at the next look."""
    found = by_job(await emitter.sources("cron"))
    fired, wait_s = 0, INTERVAL_S
    failures: list[str] = []
    for source in found:
        try:
            did, next_s = await _follow(emitter, source)
            fired, wait_s = fired + did, min(wait_s, next_s)
        except QoError as error:
            log.warning("cron source %s: %s", source.name, error)
            failures.append(f"{source.name}: {error}")
    return Looked(sources=len(found), fired=fired, failures=tuple(failures), wait_s=wait_s)


async def _follow(emitter: Emitter, source: Spoken) -> tuple[int, float]:
    plan = from_config(source.config)
    known = recalled(plan, source.memories)
    if known is None:
        # Noted at once, so that what is missed from now on is made up for even if nobody runs until then.
        following = plan.following(source.now)
        await _remember(emitter, source, Memory(plan, source.now))
        return 0, _until(source, following)
    latest = None if source.paused is not None else plan.latest(known.after, source.now)
    if latest is not None:
        event = EventBody(cursor=int(latest.timestamp()), attributes={"scheduled_at": latest.isoformat()})
        await emitter.emit(source.dag, source.job, key=f"cron:{latest.isoformat()}", events=[event])
        await _remember(emitter, source, Memory(plan, latest))
    return int(latest is not None), _until(source, plan.following(source.now))


async def _remember(emitter: Emitter, source: Spoken, memory: Memory) -> None:
    for edition in source.editions:
        await emitter.remember(edition, memory.to_json())


def _until(source: Spoken, following: datetime | None) -> float:
    if following is None:
        return INTERVAL_S
    # A hair late rather than early: early would be a look for nothing.
    return max((following - source.now + timedelta(milliseconds=20)).total_seconds(), 0.02)
