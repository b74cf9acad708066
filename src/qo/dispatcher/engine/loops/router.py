"""Routing: takes events that nobody has looked at, and gives each dependent job its task.

Everything that one batch causes (tasks, deliveries, the state of the events, the counts) is written in one
transaction: an event is either still pending or fully accounted for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline import routing
from qo.core.pipeline.event import Event
from qo.core.pipeline.routing import Create, Piece, Superseded, Unread
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import removing
from qo.dispatcher.effects import external_effects
from qo.dispatcher.events import event_log, tallies
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.columns import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks import dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

BATCH = 500  # Events of one transaction.

_events, _deliveries = schema.events, schema.deliveries
# Built once: to build a statement takes longer than to carry it out.
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
    """Route at most so many events; how many rows were dealt with. 0: there is nothing to do."""
    with state.read() as tx:
        if not _anything(tx, topology.load(tx)):
            return 0  # Who has nothing to change keeps no writer waiting.
    with state.write() as tx:
        live, changes = topology.load(tx), _Changes()
        routed = _next(tx, live, limit, changes)
        forsaken = _forsake(tx, live, limit, changes)
        tallies.add(tx, changes)
        return routed + forsaken


def route(tx: Tx, limit: int) -> int:
    """Route at most so many events in the caller's transaction; how many. Near its end: see ``tallies.add``."""
    changes = _Changes()
    routed = _next(tx, topology.load(tx), limit, changes)
    tallies.add(tx, changes)
    return routed


@dataclass(frozen=True, slots=True)
class _Taken:
    seq: int
    event: Event


class _Changes(Counter[tuple[str, str, str]]):
    """Of the counts, by dataset, edition and outcome; written once, at the end."""


@dataclass(slots=True)
class _Batch:
    """What a batch of events comes to, gathered before anything is written."""

    changes: _Changes

    wanted: list[NewTask] = field(default_factory=list[NewTask])
    wanted_by: list[_Taken] = field(default_factory=list[_Taken])  # The event of each wanted task.
    deliveries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left_out: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])  # Of joins.
    ends: dict[tuple[str, str | None, int], list[int]] = field(
        default_factory=dict[tuple[str, str | None, int], list[int]]
    )

    def end(self, taken: _Taken, state: str, reason: str | None, fanout: int) -> None:
        self.ends.setdefault((state, reason, fanout), []).append(taken.seq)
        self.changes[taken.event.dataset_id, tallies.EVENTS, EventState.PENDING] -= 1
        self.changes[taken.event.dataset_id, tallies.EVENTS, state] += 1

    def deliver(
        self, taken: _Taken, edition: str, outcome: str, reason: str | None = None, task: str | None = None
    ) -> None:
        self.deliveries.append(
            {
                "event_seq": taken.seq,
                "edition_id": edition,
                "dataset_id": taken.event.dataset_id,
                "partition_key": taken.event.partition_key,
                "outcome": outcome,
                "reason": reason,
                "task_id": task,
            }
        )
        self.changes[taken.event.dataset_id, edition, outcome] += 1


def _next(tx: Tx, live: Topology, limit: int, changes: _Changes) -> int:
    taken = _take(tx, limit)
    if taken:
        _route(tx, live, taken, changes)
    return len(taken)


def _anything(tx: Tx, live: Topology) -> bool:
    return bool(tx.rows(_SOME)) or bool(_forsaken(tx, live))


def _take(tx: Tx, limit: int) -> list[_Taken]:
    return [
        _Taken(
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


def _route(tx: Tx, live: Topology, taken: Sequence[_Taken], changes: _Changes) -> None:
    announced = _announced(tx, live, taken)
    batch = _Batch(changes)
    for each in taken:
        decisions = routing.route(each.event, live, announced)
        if isinstance(decisions, Superseded):
            batch.end(each, EventState.SUPERSEDED, decisions.reason, 0)
        elif isinstance(decisions, Unread):
            batch.end(each, EventState.FILTERED, decisions.reason, 0)
        else:
            batch.end(each, EventState.ROUTED, None, len(decisions))
            for decision in decisions:
                if isinstance(decision, Create):
                    batch.wanted.append(_new_task(decision.job, each, live))
                    batch.wanted_by.append(each)
                else:
                    filtered = isinstance(decision, routing.Filter)
                    outcome = DeliveryOutcome.FILTERED if filtered else DeliveryOutcome.PENDING
                    batch.deliver(each, decision.job.edition_id, outcome, decision.reason)
    _write(tx, batch)


def _new_task(job: LiveJob, taken: _Taken, live: Topology) -> NewTask:
    event = taken.event
    if event.partition_key is not None:
        key = dedupe_keys.for_partition(
            job, event.dataset_id, event.generation_id, event.partition_key, live.current
        )
    else:
        key = dedupe_keys.for_cursor(event.dataset_id, event.generation_id, event.cursor or 0)
    return NewTask(
        job=job,
        dedupe_key=key,
        event_seq=taken.seq,
        dataset_id=event.dataset_id,
        generation_id=event.generation_id,
        partition_key=event.partition_key,
        start=event.start,
        end=event.end,
        cursor=event.cursor,
        attributes=event.attributes,
    )


def _write(tx: Tx, batch: _Batch) -> None:
    joined: dict[tuple[str, str], str] = {}
    _leave_out(tx, batch)
    for new, by, made in zip(
        batch.wanted, batch.wanted_by, external_effects.create(tx, batch.wanted), strict=True
    ):
        batch.deliver(
            by,
            new.job.edition_id,
            DeliveryOutcome.CONSUMED if made.new else DeliveryOutcome.MERGED,
            None,
            made.task_id,
        )
        if new.partition_key is not None and routing.joins(new.job):
            joined[new.job.edition_id, new.partition_key] = made.task_id
    tx.insert(_deliveries, batch.deliveries)
    for (state, reason, fanout), seqs in batch.ends.items():
        for part in _parts(seqs):
            tx.do(_ROUTED, {"seqs": part, "state": state, "reason": reason, "fanout": fanout})
    # One batch may hold the event that waits and the one it waits for, so this comes after both are written.
    if joined:
        batch.changes.update(
            event_log.outcome_changes(DeliveryOutcome.MERGED, event_log.settle_uncounted(tx, joined))
        )
    if batch.left_out:
        waited = event_log.settle_uncounted(tx, batch.left_out, DeliveryOutcome.FILTERED, external_effects.REASON)
        batch.changes.update(event_log.outcome_changes(DeliveryOutcome.FILTERED, waited))


def _leave_out(tx: Tx, batch: _Batch) -> None:
    """What would repeat effects outside is not wanted after all."""
    repeated = external_effects.repeated(tx, batch.wanted)
    if not repeated:
        return
    both = list(zip(batch.wanted, batch.wanted_by, strict=True))
    for new, by in both:
        if (reason := repeated.get(new.task_id)) is not None:
            batch.deliver(by, new.job.edition_id, DeliveryOutcome.FILTERED, reason)
            if new.partition_key is not None and routing.joins(new.job):
                batch.left_out[new.job.edition_id, new.partition_key] = None
    batch.wanted = [new for new, _ in both if new.task_id not in repeated]
    batch.wanted_by = [by for new, by in both if new.task_id not in repeated]


def _announced(tx: Tx, live: Topology, taken: Sequence[_Taken]) -> set[Piece]:
    """Which of the partitions that joins depend on are there: committed, or at least announced."""
    pieces = {piece for each in taken for piece in routing.required_pieces(each.event, live)}
    if not pieces:
        return set()
    _one_at_a_time(tx, live, taken)
    by_generation: dict[tuple[str, str], list[str]] = {}
    for piece in pieces:
        by_generation.setdefault((piece.dataset_id, piece.generation_id), []).append(piece.partition_key)
    found: set[Piece] = set()
    for (dataset, generation), keys in by_generation.items():
        for part in _parts(keys):
            there = [_keys(tx, table, dataset, generation, part) for table in (_events, schema.partitions)]
            uncommitted = there[0] - there[1]
            removed = removing.last_removals(tx, generation, uncommitted) if uncommitted else ()
            found.update(Piece(dataset, generation, key) for key in there[1] | uncommitted - set(removed))
    return found


def _keys(tx: Tx, table: sa.Table, dataset: str, generation: str, keys: Sequence[str]) -> set[str]:
    query = sa.select(table.c.partition_key).where(
        table.c.dataset_id == dataset, table.c.generation_id == generation, table.c.partition_key.in_(keys)
    )
    return set(tx.execute(query.distinct()).scalars())


def _one_at_a_time(tx: Tx, live: Topology, taken: Sequence[_Taken]) -> None:
    # Two dispatchers that route the two sides of a join at once would not see each other's wait.
    ids = {
        reader.job.id
        for each in taken
        for reader in live.consumers(each.event.dataset_id, each.event.generation_id)
        if routing.joins(reader.job)
    }
    table = schema.jobs
    for part in _parts(sorted(ids)):
        tx.execute(tx.lock(sa.select(table.c.id).where(table.c.id.in_(part)).order_by(table.c.id))).all()


def _forsake(tx: Tx, live: Topology, limit: int, changes: _Changes) -> int:
    """Nobody waits any more at an edition that is no longer live: close a bounded number of its waits."""
    table, closed = _deliveries, 0
    for edition in _forsaken(tx, live):
        if closed >= limit:
            break
        query = (
            sa.select(table.c.event_seq, table.c.dataset_id)
            .where(table.c.outcome == inline(DeliveryOutcome.PENDING), table.c.edition_id == edition)
            .order_by(table.c.partition_key)
            .limit(limit - closed)
        )
        rows = tx.execute(tx.lock(query, skip=True)).all()
        for part in _parts([seq for seq, _ in rows]):
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


def _forsaken(tx: Tx, live: Topology) -> list[str]:
    return sorted(tallies.editions_that_wait(tx) - live.jobs.keys())


def _parts(items: Iterable[Any]) -> Iterable[list[Any]]:
    listed = list(items)
    for start in range(0, len(listed), ROWS_MAX):
        yield listed[start : start + ROWS_MAX]
