"""Events on their way in, and the settling of those that had to wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.event import Event, event_id, validate
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.columns import inline
from qo.dispatcher.state.database import ROWS_MAX, Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.errors import NotFound, UsageError

_OWNERS = Prepared(
    sa.select(schema.generations.c.id, schema.generations.c.dataset_id).where(
        schema.generations.c.id.in_(sa.bindparam("ids", expanding=True))
    )
)


@dataclass(frozen=True, slots=True)
class Accepted:
    ids: tuple[str, ...]  # In the order of what was sent.
    accepted: int  # New ones.
    repeated: int  # Known already: the same producer had said the same.


@dataclass(frozen=True, slots=True)
class ProducedEvent:
    """An event, and who says it."""

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
    """Keep the events, to be routed soon. Sent again by the same producer, they are kept once.

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
    rows = [_row(tx, id_, each) for id_, each in by_id.items()]
    new = tx.insert_absent(schema.events, rows, returning=schema.events.c.id)
    fresh = [each.event for id_, each in by_id.items() if id_ in new]
    _advance(tx, fresh)
    tallies.add(tx, Counter((each.dataset_id, tallies.EVENTS, EventState.PENDING) for each in fresh))
    return Accepted(tuple(ids), len(fresh), len(events) - len(fresh))


def attributes(tx: Tx, dataset_id: str, generation_id: str, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the last event of each of these partitions said beside, for those of which one did.

    For tasks that no event makes: an operator that needs to know where its file lies needs it then, too.
    """
    table, by_key = schema.events, dict[str, dict[str, Any]]()
    for some in batches(sorted(keys)):
        last = (
            sa.select(sa.func.max(table.c.seq))
            .where(
                table.c.dataset_id == dataset_id,
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
    """Tell deliveries that wait for a join that its task is there now; how many there were.

    ``made``: task by edition and partition. For whoever creates the task of a job with ``join: all``.
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
    """As ``settle``, but leaves the counting to the caller: dataset and edition of each that waited."""
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
    """Pending deliveries at these editions and partitions: (event, dataset, edition, partition)."""
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


def _row(tx: Tx, id_: str, produced: ProducedEvent) -> dict[str, object]:
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
        "state": EventState.PENDING,
        "reason": "waits to be routed",
        "fanout": 0,
    }


def _advance(tx: Tx, events: Iterable[Event]) -> None:
    """Remember the furthest cursor of each generation. Events come in any order, so it only ever grows."""
    furthest: dict[str, int] = {}
    for each in events:
        if each.cursor is not None:
            furthest[each.generation_id] = max(furthest.get(each.generation_id, 0), each.cursor)
    table = schema.generations
    for generation, cursor in sorted(furthest.items()):
        tx.execute(
            sa.update(table)
            .where(table.c.id == generation, sa.or_(table.c.cursor.is_(None), table.c.cursor < cursor))
            .values(cursor=cursor)
        )
