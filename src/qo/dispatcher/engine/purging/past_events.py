"""Which events are history, by ``core.pipeline.purge_rules``, and deleting them with their deliveries.

The counts of events and deliveries (``tallies``) go on: they count what there ever was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline.purge_rules import KeepReason, PastEvent, reason_to_keep_event
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.dispatcher.state import schema
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx, batches

_events, _deliveries, _tasks = schema.events, schema.deliveries, schema.tasks
_generations = schema.generation_rows
_later = _events.alias("later")


def _followed_by(same: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    later = sa.select(_later.c.seq).where(
        _later.c.dataset_id == _events.c.dataset_id,
        _later.c.generation_id == _events.c.generation_id,
        same,
        _later.c.seq > _events.c.seq,
        # Tasks that no event starts get the attributes of the last event that had any.
        sa.or_(_events.c.attributes.is_(None), _later.c.attributes.is_not(None)),
    )
    return later.exists()


# Two subqueries: each can use the index, and one for both could not.
_FOLLOWED = sa.or_(
    _followed_by(_later.c.partition_key == _events.c.partition_key),
    _followed_by(sa.and_(_later.c.partition_key.is_(None), _events.c.partition_key.is_(None))),
)
_WAITS = (
    sa.select(_deliveries.c.edition_id)
    .where(_deliveries.c.event_seq == _events.c.seq, _deliveries.c.outcome + inline("") == DeliveryOutcome.PENDING)
    .exists()
)
_STARTS = (
    sa.select(_tasks.c.id)
    .join(_deliveries, _deliveries.c.task_id == _tasks.c.id)
    .where(_deliveries.c.event_seq == _events.c.seq, _tasks.c.event_seq == _events.c.seq)
    .exists()
)


@dataclass(frozen=True, slots=True)
class Examined:
    after: int | None  # Where to go on; None: that was all, or what follows is too young.
    purgeable: Sequence[int]
    reasons: Counter[KeepReason]  # Why the others are kept.


def examine(
    tx: Tx, after: int, before: datetime | None, limit: int, also_given_up: Collection[str] = ()
) -> Examined:
    """Examine the next ``limit`` events."""
    query = (
        sa.select(
            _events.c.seq,
            _events.c.generation_id,
            _events.c.received_at,
            (_events.c.state == EventState.PENDING).label("unrouted"),
            _FOLLOWED.label("followed"),
            _WAITS.label("waits"),
            _STARTS.label("starts"),
        )
        .where(_events.c.seq > after)
        .order_by(_events.c.seq)
        .limit(limit)
    )
    rows = tx.all(query)
    newest = tx.value(sa.select(sa.func.max(_events.c.seq)))  # Its number would be given out again (on SQLite).
    given_up = _given_up(tx, {row["generation_id"] for row in rows}) | set(also_given_up)
    purgeable: list[int] = []
    reasons = Counter[KeepReason]()
    for row in rows:
        event = PastEvent(
            received_at=row["received_at"],
            is_open=row["unrouted"] or row["waits"],
            is_last=not row["followed"],
            starts_kept_task=row["starts"],
            is_given_up=row["generation_id"] in given_up and row["seq"] != newest,
        )
        reason = reason_to_keep_event(event, before)
        if reason is None:
            purgeable.append(row["seq"])
        else:
            reasons[reason] += 1
    return Examined(rows[-1]["seq"] if len(rows) == limit else None, purgeable, reasons)


def purge(tx: Tx, examined: Examined) -> int:
    """Delete the purgeable events. An event that is routed and waits for nothing changes no more."""
    for some in batches(examined.purgeable):
        tx.execute(sa.delete(_deliveries).where(_deliveries.c.event_seq.in_(some)))
        tx.execute(sa.delete(_events).where(_events.c.seq.in_(some)))
    return len(examined.purgeable)


def _given_up(tx: Tx, generations: Collection[str]) -> set[str]:
    ids = set[str]()
    for some in batches(sorted(generations)):
        query = sa.select(_generations.c.id).where(
            _generations.c.id.in_(some), _generations.c.collected_at.is_not(None)
        )
        ids.update(tx.execute(query).scalars())
    return ids
