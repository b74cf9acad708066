"""The router loop routes new events: it creates the task of each dependent job.

All results of a batch (tasks, deliveries, the state of the events, the counts) are written in one transaction, so an
event is either pending or fully routed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline import routing
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.event import Event
from qo.core.pipeline.routing import Compose, Create, Piece, Superseded, Unread
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import removing
from qo.dispatcher.effects import external_effects
from qo.dispatcher.engine import composites
from qo.dispatcher.events import event_log, tallies
from qo.dispatcher.events.routed_here import StoredEvent
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks import change_tasks, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

BATCH = 500  # Events of one transaction.

_events, _deliveries = schema.events, schema.deliveries
# Built once: building a statement takes longer than executing it.
_SOME = Prepared(sa.select(_events.c.seq).where(_events.c.state == inline(EventState.PENDING)).limit(1))
_FIRST = Prepared(
    sa.select(
        _events.c.seq,
        _events.c.dataset_id,
        _events.c.generation_id,
        _events.c.cursor,
        _events.c.partition_key,
        _events.c.start,
        _events.c.end,
        _events.c.attributes,
    )
    .where(_events.c.state == inline(EventState.PENDING))
    .order_by(_events.c.seq)
    .limit(sa.bindparam("most"))
    .with_for_update(skip_locked=True)
)
_ROUTED = Prepared(sa.update(_events).where(_events.c.seq.in_(sa.bindparam("seqs", expanding=True))))


def tick(state: State, limit: int = BATCH) -> int:
    """Route up to ``limit`` events. Return how many rows were handled; 0: there is nothing to do."""
    with state.read() as tx:
        if not _has_work(tx, topology.load(tx)):
            return 0  # Without work, no write transaction is opened.
    with state.write() as tx:
        live, changes = topology.load(tx), _Changes()
        routed = _route_next(tx, live, limit, changes)
        closed = _close_forsaken(tx, live, limit, changes)
        tallies.add(tx, changes)
        return routed + closed


def route(tx: Tx, limit: int) -> int:
    """Route up to ``limit`` events in the caller's transaction; return how many. Call it last: see ``tallies.add``."""
    changes = _Changes()
    routed = _route_next(tx, topology.load(tx), limit, changes)
    tallies.add(tx, changes)
    return routed


def route_stored(tx: Tx, events: Sequence[StoredEvent]) -> None:
    """Route events that the caller's transaction has stored as routed. Call it last: see ``tallies.add``."""
    if events:
        changes = _Changes()
        _route(tx, topology.load(tx), events, changes, have_ended=True)
        tallies.add(tx, changes)


class _Changes(Counter[tuple[str, str, str]]):
    """Changes of the counts, by dataset, edition and outcome; written once, at the end."""


@dataclass(slots=True)
class _Batch:
    """The results of a batch of events, collected before anything is written."""

    changes: _Changes

    tasks: list[NewTask] = field(default_factory=list[NewTask])
    causes: list[StoredEvent] = field(default_factory=list[StoredEvent])  # The event of each task.
    deliveries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    dropped: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])  # Of joins.
    # Of jobs whose partitions are made of others, by edition.
    composed: dict[str, list[tuple[StoredEvent, Compose]]] = field(
        default_factory=dict[str, list[tuple[StoredEvent, Compose]]]
    )
    of_changes: dict[tuple[str, str], NewTask] = field(default_factory=dict[tuple[str, str], NewTask])
    ends: dict[tuple[str, str | None, int], list[int]] = field(
        default_factory=dict[tuple[str, str | None, int], list[int]]
    )

    def task_of_changes(self, tx: Tx, job: LiveJob, new: StoredEvent) -> NewTask | None:
        """Return the one task for everything new that a PerChange job reads; None for any other job."""
        if job.job.execution_strategy is not Strategy.PER_CHANGE:
            return None
        place = job.edition_id, new.event.generation_id
        if place not in self.of_changes:
            dataset, generation = new.event.dataset_id, new.event.generation_id
            self.of_changes[place] = change_tasks.task_for(tx, job, dataset, generation, event_seq=new.seq)
        return self.of_changes[place]

    def end(self, new: StoredEvent, state: str, reason: str | None, fanout: int) -> None:
        self.ends.setdefault((state, reason, fanout), []).append(new.seq)
        self.changes[new.event.dataset_id, tallies.EVENTS, EventState.PENDING] -= 1
        self.changes[new.event.dataset_id, tallies.EVENTS, state] += 1

    def deliver(
        self, new: StoredEvent, edition: str, outcome: str, reason: str | None = None, task: str | None = None
    ) -> None:
        self.deliveries.append(
            {
                "event_seq": new.seq,
                "edition_id": edition,
                "dataset_id": new.event.dataset_id,
                "partition_key": new.event.partition_key,
                "outcome": outcome,
                "reason": reason,
                "task_id": task,
            }
        )
        self.changes[new.event.dataset_id, edition, outcome] += 1


def _route_next(tx: Tx, live: Topology, limit: int, changes: _Changes) -> int:
    events = _take_events(tx, limit)
    if events:
        _route(tx, live, events, changes)
    return len(events)


def _has_work(tx: Tx, live: Topology) -> bool:
    return bool(tx.rows(_SOME)) or bool(_forsaken_editions(tx, live))


def _take_events(tx: Tx, limit: int) -> list[StoredEvent]:
    return [
        StoredEvent(
            seq,
            Event(
                dataset_id=dataset,
                generation_id=generation,
                cursor=cursor,
                partition_key=partition,
                start=start,
                end=end,
                attributes=attributes or {},
            ),
        )
        for seq, dataset, generation, cursor, partition, start, end, attributes in tx.rows(_FIRST, {"most": limit})
    ]


def _route(
    tx: Tx, live: Topology, events: Sequence[StoredEvent], changes: _Changes, *, have_ended: bool = False
) -> None:
    """``have_ended``: the events themselves are stored as this leaves them."""
    announced = _announced(tx, live, events)
    batch = _Batch(changes)
    for each in events:
        decisions = routing.route(each.event, live, announced)
        if isinstance(decisions, Superseded):
            batch.end(each, EventState.SUPERSEDED, decisions.reason, 0)
        elif isinstance(decisions, Unread):
            batch.end(each, EventState.FILTERED, decisions.reason, 0)
        else:
            if not have_ended:
                batch.end(each, EventState.ROUTED, None, len(decisions))
            for decision in decisions:
                if isinstance(decision, Compose):
                    batch.composed.setdefault(decision.job.edition_id, []).append((each, decision))
                elif isinstance(decision, Create):
                    batch.tasks.append(
                        batch.task_of_changes(tx, decision.job, each) or _new_task(decision.job, each, live)
                    )
                    batch.causes.append(each)
                else:
                    filtered = isinstance(decision, routing.Filter)
                    outcome = DeliveryOutcome.FILTERED if filtered else DeliveryOutcome.PENDING
                    batch.deliver(each, decision.job.edition_id, outcome, decision.reason)
    _write(tx, live, batch)


def _new_task(job: LiveJob, new: StoredEvent, live: Topology) -> NewTask:
    event = new.event
    if event.partition_key is not None:
        key = dedupe_keys.for_partition(
            job, event.dataset_id, event.generation_id, event.partition_key, live.current
        )
    else:
        key = dedupe_keys.for_cursor(event.dataset_id, event.generation_id, event.cursor or 0)
    return NewTask(
        job=job,
        dedupe_key=key,
        event_seq=new.seq,
        dataset_id=event.dataset_id,
        generation_id=event.generation_id,
        partition_key=event.partition_key,
        start=event.start,
        end=event.end,
        cursor=event.cursor,
        attributes=event.attributes,
    )


def _write(tx: Tx, live: Topology, batch: _Batch) -> None:
    joined: dict[tuple[str, str], str] = {}
    _drop_repeated(tx, batch)
    joined |= _compose(tx, live, batch)
    for new, by, created in zip(batch.tasks, batch.causes, external_effects.create(tx, batch.tasks), strict=True):
        batch.deliver(
            by,
            new.job.edition_id,
            DeliveryOutcome.CONSUMED if created.new else DeliveryOutcome.MERGED,
            None,
            created.task_id,
        )
        if new.partition_key is not None and routing.joins(new.job):
            joined[new.job.edition_id, new.partition_key] = created.task_id
    tx.insert(_deliveries, batch.deliveries)
    for (state, reason, fanout), seqs in batch.ends.items():
        for part in _chunks(seqs):
            tx.do(_ROUTED, {"seqs": part, "state": state, "reason": reason, "fanout": fanout})
    # Last, because a batch may hold both an event that waits and the event it waits for.
    if joined:
        batch.changes.update(
            event_log.outcome_changes(DeliveryOutcome.MERGED, event_log.settle_uncounted(tx, joined))
        )
    if batch.dropped:
        settled = event_log.settle_uncounted(tx, batch.dropped, DeliveryOutcome.FILTERED, external_effects.REASON)
        batch.changes.update(event_log.outcome_changes(DeliveryOutcome.FILTERED, settled))


def _compose(tx: Tx, live: Topology, batch: _Batch) -> Mapping[tuple[str, str], str]:
    """Follow the partitions that are made of announced ones. Return the tasks of deliveries that have waited."""
    settled = composites.Settled()
    jobs = {edition: some[0][1].job for edition, some in batch.composed.items()}
    if jobs:
        composites.lock(tx, jobs.values())
    for edition, some in sorted(batch.composed.items()):
        causes = {key: new.seq for new, decision in some for key in decision.keys}
        followed = composites.follow(tx, live, jobs[edition], sorted(causes), settled, causes=causes)
        for new, decision in some:
            batch.deliver(new, edition, *_composed_outcome(decision, followed, new, causes))
    return settled.tasks


def _composed_outcome(
    decision: Compose, followed: Mapping[str, composites.Followed], new: StoredEvent, causes: Mapping[str, int]
) -> tuple[DeliveryOutcome, str | None, str | None]:
    """Return what became of an event: outcome, reason and task."""
    own = {key: followed[key] for key in decision.keys if key in followed}
    created = [one.task_id for key, one in own.items() if one.new and causes[key] == new.seq]
    if created:
        return DeliveryOutcome.CONSUMED, None, created[0]
    tasks = [one.task_id for one in own.values() if one.task_id is not None]
    if tasks:
        return DeliveryOutcome.MERGED, None, tasks[0]
    waiting = [key for key, one in own.items() if one.reason is None]
    if waiting:
        return DeliveryOutcome.PENDING, f"waits for the rest of what {waiting[0]} is made of", None
    reason = next((one.reason for one in own.values()), "nothing is there of the time of what would be made of it")
    return DeliveryOutcome.FILTERED, reason, None


def _drop_repeated(tx: Tx, batch: _Batch) -> None:
    """Drop tasks that would repeat external effects."""
    repeated = external_effects.repeated(tx, batch.tasks)
    if not repeated:
        return
    both = list(zip(batch.tasks, batch.causes, strict=True))
    for new, by in both:
        if (reason := repeated.get(new.task_id)) is not None:
            batch.deliver(by, new.job.edition_id, DeliveryOutcome.FILTERED, reason)
            if new.partition_key is not None and routing.joins(new.job):
                batch.dropped[new.job.edition_id, new.partition_key] = None
    batch.tasks = [new for new, _ in both if new.task_id not in repeated]
    batch.causes = [by for new, by in both if new.task_id not in repeated]


def _announced(tx: Tx, live: Topology, events: Sequence[StoredEvent]) -> set[Piece]:
    """Return the partitions that joins depend on and that are committed, or at least announced."""
    pieces = {piece for each in events for piece in routing.required_pieces(each.event, live)}
    if not pieces:
        return set()
    _lock_joins(tx, live, events)
    by_generation: dict[tuple[str, str], list[str]] = {}
    for piece in pieces:
        by_generation.setdefault((piece.dataset_id, piece.generation_id), []).append(piece.partition_key)
    announced: set[Piece] = set()
    for (dataset, generation), keys in by_generation.items():
        for part in _chunks(keys):
            existing = [_keys(tx, table, dataset, generation, part) for table in (_events, schema.partitions)]
            uncommitted = existing[0] - existing[1]
            removed = removing.last_removals(tx, generation, uncommitted) if uncommitted else ()
            announced.update(Piece(dataset, generation, key) for key in existing[1] | uncommitted - set(removed))
    return announced


def _keys(tx: Tx, table: sa.Table, dataset: str, generation: str, keys: Sequence[str]) -> set[str]:
    query = sa.select(table.c.partition_key).where(
        table.c.dataset_id == dataset, table.c.generation_id == generation, table.c.partition_key.in_(keys)
    )
    return set(tx.execute(query.distinct()).scalars())


def _lock_joins(tx: Tx, live: Topology, events: Sequence[StoredEvent]) -> None:
    # Without the lock, two dispatchers that route the two sides of a join would not see each other's delivery.
    ids = {
        reader.job.id
        for each in events
        for reader in live.consumers(each.event.dataset_id, each.event.generation_id)
        if routing.joins(reader.job)
    }
    table = schema.jobs
    for part in _chunks(sorted(ids)):
        tx.execute(tx.lock(sa.select(table.c.id).where(table.c.id.in_(part)).order_by(table.c.id))).all()


def _close_forsaken(tx: Tx, live: Topology, limit: int, changes: _Changes) -> int:
    """Close up to ``limit`` deliveries that wait at editions which are no longer live."""
    table, closed = _deliveries, 0
    for edition in _forsaken_editions(tx, live):
        if closed >= limit:
            break
        query = (
            sa.select(table.c.event_seq, table.c.dataset_id)
            .where(table.c.outcome == inline(DeliveryOutcome.PENDING), table.c.edition_id == edition)
            .order_by(table.c.partition_key)
            .limit(limit - closed)
        )
        rows = tx.execute(tx.lock(query, skip=True)).all()
        for part in _chunks([seq for seq, _ in rows]):
            tx.execute(
                sa.update(table)
                .where(table.c.edition_id == edition, table.c.event_seq.in_(part))
                .values(
                    outcome=DeliveryOutcome.SUPERSEDED,
                    reason="no live version has this edition of the job any more",
                )
            )
        changes.update(
            event_log.outcome_changes(DeliveryOutcome.SUPERSEDED, ((dataset, edition) for _, dataset in rows))
        )
        closed += len(rows)
    return closed


def _forsaken_editions(tx: Tx, live: Topology) -> list[str]:
    return sorted(tallies.editions_that_wait(tx) - live.jobs.keys())


def _chunks(items: Iterable[Any]) -> Iterable[list[Any]]:
    all_items = list(items)
    for start in range(0, len(all_items), ROWS_MAX):
        yield all_items[start : start + ROWS_MAX]
