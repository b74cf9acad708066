"""Accepting events, and settling the deliveries that waited for a join."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from qo.core.pipeline import routing
from qo.core.pipeline.event import Event, event_id, validate
from qo.core.pipeline.routing import Superseded, Unread
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.dispatcher.events import routed_here, tallies
from qo.dispatcher.events.routed_here import StoredEvent
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import ROWS_MAX, Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.errors import NotFound, UsageError

_OWNERS = Prepared(
    sa.select(schema.generations.c.id, schema.generations.c.dataset_id).where(
        schema.generations.c.id.in_(sa.bindparam("ids", expanding=True))
    )
)
_INSERT = {
    name: Prepared(
        insert(schema.events).on_conflict_do_nothing().returning(schema.events.c.id, schema.events.c.seq)
    )
    for name, insert in (("postgresql", postgresql.insert), ("sqlite", sqlite.insert))
}


@dataclass(frozen=True, slots=True)
class Accepted:
    ids: tuple[str, ...]  # In the order of the events.
    accepted: int  # New ones.
    repeated: int  # Sent before by the same producer.


@dataclass(frozen=True, slots=True)
class ProducedEvent:
    """An event and its producer."""

    producer: str
    event: Event
    task_id: str | None = None
    attempt: int | None = None


def accept(
    tx: Tx, producer: str, events: Sequence[Event], task_id: str | None = None, attempt: int | None = None
) -> Accepted:
    """As ``accept_all``, for one producer."""
    return accept_all(tx, [ProducedEvent(producer, each, task_id, attempt) for each in events])


def accept_all(tx: Tx, events: Sequence[ProducedEvent]) -> Accepted:
    """Store events, to be routed soon. An event that its producer sends again is stored once.

    All or none: raises UsageError for one that is malformed, or whose generation belongs to another dataset, and
    NotFound for a dataset or generation that does not exist. Call it once, late in the transaction (see tallies).
    """
    if not events:
        return Accepted((), 0, 0)
    owners = _owners(tx, {each.event.generation_id for each in events})
    for each in events:
        _check(validate(each.event), owners)
    ids = [event_id(each.producer, each.event) for each in events]
    by_id = dict(zip(ids, events, strict=True))
    rows = _rows(tx, by_id)
    seqs = _insert(tx, rows)
    fresh = [row for row in rows if row["id"] in seqs]
    _advance(tx, [by_id[row["id"]].event for row in fresh])
    routed = [row["id"] for row in fresh if row["state"] is EventState.ROUTED]
    routed_here.keep(tx, [StoredEvent(seqs[id_], by_id[id_].event) for id_ in routed])
    tallies.add(tx, Counter((row["dataset_id"], tallies.EVENTS, row["state"]) for row in fresh))
    return Accepted(tuple(ids), len(fresh), len(events) - len(fresh))


def attributes(tx: Tx, generation_id: str, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the attributes of the last event that had any, for each of these partitions.

    For tasks that no event creates: an operator that needs its file's location needs it then, too.
    """
    table, by_key = schema.events, dict[str, dict[str, Any]]()
    for some in batches(sorted(keys)):
        last = (
            sa.select(sa.func.max(table.c.seq))
            .where(
                table.c.generation_id == generation_id,
                table.c.partition_key.in_(some),
                table.c.attributes.is_not(None),
            )
            .group_by(table.c.partition_key)
        )
        rows = tx.execute(sa.select(table.c.partition_key, table.c.attributes).where(table.c.seq.in_(last)))
        by_key.update((key, values) for key, values in rows)
    return by_key


def settle(tx: Tx, tasks: Mapping[tuple[str, str], str]) -> int:
    """Settle the deliveries that wait for a join whose task exists now, and return how many there were.

    ``made``: task by edition and partition. Call it when the task of a job with ``join: all`` is created.
    """
    waiting = settle_uncounted(tx, tasks)
    tallies.add(tx, outcome_changes(DeliveryOutcome.MERGED, waiting))
    return len(waiting)


def settle_uncounted(
    tx: Tx,
    tasks: Mapping[tuple[str, str], str | None],
    outcome: DeliveryOutcome = DeliveryOutcome.MERGED,
    reason: str | None = None,
) -> list[tuple[str, str]]:
    """As ``settle``, but return dataset and edition of each delivery, and leave the counting to the caller."""
    waiting = _waiting_for(tx, tasks.keys())
    table = schema.deliveries
    if waiting:
        tx.execute(
            sa.update(table)
            .where(table.c.event_seq == sa.bindparam("seq_"), table.c.edition_id == sa.bindparam("edition_"))
            .values(outcome=outcome, reason=reason, task_id=sa.bindparam("task")),
            [{"seq_": seq, "edition_": edition, "task": tasks[edition, key]} for seq, _, edition, key in waiting],
        )
    return [(dataset, edition) for _, dataset, edition, _ in waiting]


def _waiting_for(tx: Tx, keys: Iterable[tuple[str, str]]) -> list[tuple[int, str, str, str]]:
    """Return the pending deliveries at these editions and partitions as (event, dataset, edition, partition)."""
    table = schema.deliveries
    by_edition: dict[str, list[str]] = {}
    for edition, partition in keys:
        by_edition.setdefault(edition, []).append(partition)
    deliveries: list[tuple[int, str, str, str]] = []
    for edition, partitions in sorted(by_edition.items()):
        for start in range(0, len(partitions), ROWS_MAX):
            query = sa.select(
                table.c.event_seq, table.c.dataset_id, table.c.edition_id, table.c.partition_key
            ).where(
                table.c.outcome == inline(DeliveryOutcome.PENDING),
                table.c.edition_id == edition,
                table.c.partition_key.in_(partitions[start : start + ROWS_MAX]),
            )
            deliveries += [tuple(row) for row in tx.execute(tx.lock(query.order_by(table.c.event_seq)))]
    return deliveries


def outcome_changes(
    outcome: DeliveryOutcome, deliveries: Iterable[tuple[str, str]]
) -> dict[tuple[str, str, str], int]:
    """Return the changes of counts when pending deliveries, given as (dataset, edition), get this outcome."""
    changes = Counter[tuple[str, str, str]]()
    for dataset, edition in deliveries:
        changes[dataset, edition, DeliveryOutcome.PENDING] -= 1
        changes[dataset, edition, outcome] += 1
    return dict(changes)


def _owners(tx: Tx, generations: set[str]) -> dict[str, str]:
    return {
        id_: dataset_id
        for some in batches(generations)
        for id_, dataset_id in tx.rows(_OWNERS, {"ids": list(some)})
    }


def _check(event: Event, owners: Mapping[str, str]) -> None:
    owner = owners.get(event.generation_id)
    if owner is None:
        raise NotFound(f"there is no generation {event.generation_id}: deploy the DAG that makes it first")
    if owner != event.dataset_id:
        raise UsageError(
            f"generation {event.generation_id} is not one of dataset {event.dataset_id}: it is of {owner}"
        )


def _rows(tx: Tx, events: Mapping[str, ProducedEvent]) -> list[dict[str, Any]]:
    """Return the rows of events, in the state in which they are stored.

    What starts no job is never looked at again. What may start one is routed, if this transaction does that itself, or
    waits for the router.
    """
    live, here = topology.load(tx), routed_here.of(tx)
    room = 0 if here is None else here.room
    rows: list[dict[str, Any]] = []
    for id_, each in events.items():
        match routing.end_of(each.event, live):
            case Superseded(reason):
                row = _row(tx, id_, each, EventState.SUPERSEDED, reason)
            case Unread(reason):
                row = _row(tx, id_, each, EventState.FILTERED, reason)
            case None if room:
                room -= 1
                row = _row(tx, id_, each, EventState.ROUTED, None)
                row["fanout"] = len(routing.triggered_jobs(each.event, live))
            case None:
                row = _row(tx, id_, each, EventState.PENDING, routed_here.WAITS)
                if here is not None:
                    here.is_more = True
        rows.append(row)
    return rows


def _row(tx: Tx, id_: str, produced: ProducedEvent, state: EventState, reason: str | None) -> dict[str, Any]:
    event = produced.event
    return {
        "id": id_,
        "dataset_id": event.dataset_id,
        "generation_id": event.generation_id,
        "cursor": event.cursor,
        "partition_key": event.partition_key,
        "start": event.start,
        "end": event.end,
        "attributes": event.attributes or None,
        "producer_task_id": produced.task_id,
        "producer_attempt": produced.attempt,
        "received_at": tx.now,
        "state": state,
        "reason": reason,
        "fanout": 0,
    }


def _insert(tx: Tx, rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Insert the events that are new, and return the number of each by id."""
    numbers: dict[str, int] = {}
    for some in batches(rows):
        numbers |= {id_: seq for id_, seq in tx.rows(_INSERT["postgresql" if tx.on_postgres else "sqlite"], *some)}
    return numbers


def _advance(tx: Tx, events: Iterable[Event]) -> None:
    """Store the furthest cursor of each generation. Events come in any order, so it only grows."""
    furthest: dict[str, int] = {}
    for each in events:
        if each.cursor is not None:
            furthest[each.generation_id] = max(furthest.get(each.generation_id, 0), each.cursor)
    table = schema.generation_rows
    for generation, cursor in sorted(furthest.items()):
        tx.execute(
            sa.update(table)
            .where(table.c.id == generation, sa.or_(table.c.cursor.is_(None), table.c.cursor < cursor))
            .values(cursor=cursor)
        )
