"""Rounds of the purge: once a day over all events, then over all tasks, a few hundred in each transaction.

How far a round has come is stored, so another dispatcher, or the same after a restart, goes on from there. One works at
a time: whoever holds the row of the mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.purge_rules import Horizon, KeepReason
from qo.dispatcher.engine.purging import given_up_versions, past_events, past_tasks
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx

CHUNK = 500  # Records of one transaction.
ROUND_EVERY = timedelta(days=1)  # From the start of one round to the start of the next.

_state = schema.operator_state
_PLACE = {"edition_id": "", "key": "purge"}  # Of the mark.


class Stage(StrEnum):
    VERSIONS = "versions"
    EVENTS = "events"  # Before tasks: whoever produced an event is kept as long as that.
    TASKS = "tasks"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long records are kept; None: for ever."""

    history: timedelta | None = None
    versions: timedelta | None = None

    def __bool__(self) -> bool:
        return self.history is not None or self.versions is not None

    def horizon(self, now: datetime) -> Horizon:
        return Horizon(
            history=None if self.history is None else now - self.history,
            versions=None if self.versions is None else now - self.versions,
        )


@dataclass(frozen=True, slots=True)
class PurgeCounts:
    """What was examined and deleted, or with a dry run would be."""

    generations: int = 0  # Given up.
    tasks: int = 0
    events: int = 0
    tasks_kept: Counter[KeepReason] = field(default_factory=Counter[KeepReason])
    events_kept: Counter[KeepReason] = field(default_factory=Counter[KeepReason])

    @property
    def examined(self) -> int:
        return self.tasks + self.events + self.tasks_kept.total() + self.events_kept.total()

    def __add__(self, other: PurgeCounts) -> PurgeCounts:
        return PurgeCounts(
            self.generations + other.generations,
            self.tasks + other.tasks,
            self.events + other.events,
            self.tasks_kept + other.tasks_kept,
            self.events_kept + other.events_kept,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a round has come."""

    stage: Stage
    started_at: datetime
    after: str | int | None = None  # None: at the beginning of the stage.


def step(state: State, keep: Keep, limit: int = CHUNK) -> PurgeCounts | None:
    """Take the next step of the round under way, or start one that is due; None: there is nothing to do for now."""
    if not keep or not _is_due(state):
        return None
    with state.write() as tx:
        mark = _take_mark(tx)
        if mark is None:
            return None  # Another dispatcher is at work.
        if mark.stage is Stage.OVER:
            mark = Mark(Stage.VERSIONS, tx.now)
        mark, counts = _advance(tx, mark, keep.horizon(tx.now), limit)
        _save(tx, mark)
        return counts


def run(state: State, keep: Keep, limit: int = CHUNK) -> Iterator[PurgeCounts]:
    """Run rounds at once, whatever the stored mark says, until one finds nothing more; yield what each step did.

    A task may go once the events are gone that it produced, and these once the tasks are gone that they started.
    """
    deleted = 1
    while deleted:
        mark, deleted = None, 0
        while mark is None or mark.stage is not Stage.OVER:
            with state.write() as tx:
                mark, counts = _advance(tx, mark or Mark(Stage.VERSIONS, tx.now), keep.horizon(tx.now), limit)
            deleted += counts.tasks + counts.events
            yield counts


def preview(state: State, keep: Keep, limit: int = CHUNK) -> Iterator[PurgeCounts]:
    """Yield what ``run`` would do at least, step by step, and change nothing: when events have gone, more tasks can go,
    and the other way round."""
    with state.read() as tx:
        horizon = keep.horizon(tx.now)
        given_up = _find_given_up(tx, horizon)
    yield PurgeCounts(generations=len(given_up))
    place: int | None = 0
    while place is not None:
        with state.read() as tx:
            events = past_events.examine(tx, place, horizon.history, limit, given_up)
        place = events.after
        yield PurgeCounts(events=len(events.purgeable), events_kept=events.reasons)
    after: str | None = ""
    while after is not None:
        with state.read() as tx:
            tasks = past_tasks.examine(tx, after, horizon.history, limit, given_up)
        after = tasks.after
        yield PurgeCounts(tasks=len(tasks.purgeable), tasks_kept=tasks.reasons)


def _advance(tx: Tx, mark: Mark, horizon: Horizon, limit: int) -> tuple[Mark, PurgeCounts]:
    match mark.stage:
        case Stage.VERSIONS:
            given_up = () if horizon.versions is None else given_up_versions.give_up(tx, horizon.versions, limit)
            following = mark if len(given_up) == limit else replace(mark, stage=Stage.EVENTS)
            return following, PurgeCounts(generations=len(given_up))
        case Stage.TASKS:
            tasks = past_tasks.examine(tx, str(mark.after or ""), horizon.history, limit)
            deleted = past_tasks.purge(tx, tasks)
            following = replace(mark, after=tasks.after)
            if tasks.after is None:
                following = replace(mark, stage=Stage.OVER, after=None)
            return following, PurgeCounts(tasks=deleted, tasks_kept=tasks.reasons)
        case Stage.EVENTS:
            events = past_events.examine(tx, int(mark.after or 0), horizon.history, limit)
            deleted = past_events.purge(tx, events)
            following = replace(mark, after=events.after)
            if events.after is None:
                following = replace(mark, stage=Stage.TASKS, after=None)
            return following, PurgeCounts(events=deleted, events_kept=events.reasons)
        case Stage.OVER:
            return mark, PurgeCounts()


def _find_given_up(tx: Tx, horizon: Horizon) -> Collection[str]:
    return () if horizon.versions is None else given_up_versions.find(tx, horizon.versions, limit=1_000_000)


def _is_due(state: State) -> bool:
    """Tell whether a round is under way or due. Without work, no write transaction is opened."""
    with state.read() as tx:
        value = tx.value(sa.select(_state.c.value).where(*_own()))
        mark = None if value is None else _mark(value)
        return mark is None or mark.stage is not Stage.OVER or tx.now - mark.started_at >= ROUND_EVERY


def _take_mark(tx: Tx) -> Mark | None:
    first = {**_PLACE, "value": _value(Mark(Stage.VERSIONS, tx.now)), "updated_at": tx.now}
    tx.insert_absent(_state, [first], returning=_state.c.key)
    row = tx.one(tx.lock(sa.select(_state.c.value).where(*_own()), skip=True))
    return None if row is None else _mark(row["value"])


def _save(tx: Tx, mark: Mark) -> None:
    tx.upsert(_state, {**_PLACE, "value": _value(mark), "updated_at": tx.now})


def _own() -> list[sa.ColumnElement[bool]]:
    return [_state.c[name] == value for name, value in _PLACE.items()]


def _value(mark: Mark) -> dict[str, Any]:
    return {"stage": mark.stage.value, "started_at": mark.started_at.isoformat(), "after": mark.after}


def _mark(value: dict[str, Any]) -> Mark:
    return Mark(Stage(value["stage"]), datetime.fromisoformat(value["started_at"]), value["after"])
