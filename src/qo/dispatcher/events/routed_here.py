"""Events that the transaction which stores them routes as well: they are stored as routed, and not written again.

    begin(tx, 128)                  the fast path will end this transaction
    event_log.accept_all(tx, …)     stores up to so many events as routed
    events = take(tx)               the fast path routes them
    postpone(tx, events)            or leaves them to the router after all

On PostgreSQL an event that changes its state is a second row with a second entry in each of its indexes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from qo.core.pipeline.event import Event
from qo.core.pipeline.states import EventState
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared

WAITS = "waits to be routed"

_KEY = "events routed here"
_PROMISE = "route the events that it has stored as routed"
_events = schema.events
_POSTPONED = Prepared(
    sa.update(_events)
    .where(_events.c.seq.in_(sa.bindparam("seqs", expanding=True)))
    .values(state=EventState.PENDING, reason=WAITS, fanout=0)
)


@dataclass(frozen=True, slots=True)
class StoredEvent:
    seq: int
    event: Event


@dataclass(slots=True)
class RoutedHere:
    room: int  # So many more may be stored as routed.
    events: list[StoredEvent] = field(default_factory=list[StoredEvent])
    is_more: bool = False  # Others were stored as pending.


def begin(tx: Tx, most: int) -> None:
    """Have up to ``most`` events stored as routed. The caller takes and routes them in this transaction."""
    tx.cache[_KEY] = RoutedHere(most)


def of(tx: Tx) -> RoutedHere | None:
    """Return what the transaction will route itself; None if it leaves all to the router."""
    return tx.cache.get(_KEY)


def keep(tx: Tx, stored: Sequence[StoredEvent]) -> None:
    """Remember events that were stored as routed."""
    own = of(tx)
    assert own is not None or not stored
    if own is not None and stored:
        own.events += stored
        own.room -= len(stored)
        tx.unfinished.add(_PROMISE)


def take(tx: Tx) -> RoutedHere | None:
    """Return the events that are to be routed now. Those that are stored from here on are left to the router."""
    tx.unfinished.discard(_PROMISE)
    return tx.cache.pop(_KEY, None)


def postpone(tx: Tx, events: Sequence[StoredEvent]) -> None:
    """Leave events to the router that were stored as routed."""
    for some in batches([each.seq for each in events]):
        tx.do(_POSTPONED, {"seqs": some})
    changes = Counter[tallies.Counted]()
    for each in events:
        changes[each.event.dataset_id, tallies.EVENTS, EventState.ROUTED] -= 1
        changes[each.event.dataset_id, tallies.EVENTS, EventState.PENDING] += 1
    tallies.add(tx, changes)
