"""Reconciling: what is committed upstream, compared with what each live job has made of it.

Repairs events that were lost, and lets a staged version catch up on history: its jobs are new editions and have no
tasks yet. Lets a job whose input is another generation again, because another DAG went back to it, or whose version
did not serve while its input was replaced, make anew what it had made of something else. Takes up again what was left
to another version that did not get it done.

Partitions are walked in the order of their commits, and how far is remembered (``progress``), so a pass costs as much
as is new; now and then, and when the input becomes another generation, it begins again at the first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline import routing
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.attempts.pins import first_deployed
from qo.dispatcher.effects import deferred, external_effects
from qo.dispatcher.engine import freshness, marks
from qo.dispatcher.engine.marks import Input, Mark
from qo.dispatcher.events import event_log, tallies
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.columns import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.state.prepared import Prepared, Values
from qo.dispatcher.tasks import creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask

_partitions, _events, _invalidations = schema.partitions, schema.events, schema.invalidations

# Built once: to build a statement takes longer than to carry it out.
_NEXT_PARTITIONS = Prepared(
    sa.select(
        _partitions.c.partition_key,
        _partitions.c.start,
        _partitions.c.end,
        _partitions.c.revision,
        _partitions.c.committed_at,
    )
    .where(
        _partitions.c.generation_id == sa.bindparam("generation"), _partitions.c.revision > sa.bindparam("after")
    )
    .order_by(_partitions.c.revision)
    .limit(sa.bindparam("most", type_=sa.Integer))
)
_UNROUTED_PARTITIONS = Prepared(
    sa.select(_events.c.partition_key).where(
        _events.c.dataset_id == sa.bindparam("dataset"),
        _events.c.generation_id == sa.bindparam("generation"),
        _events.c.partition_key.in_(sa.bindparam("keys", expanding=True)),
        _events.c.state == inline(EventState.PENDING),
    )
)
_UNSPREAD_PARTITIONS = Prepared(
    sa.select(_invalidations.c.partition_key).where(
        _invalidations.c.generation_id == sa.bindparam("generation"),
        _invalidations.c.partition_key.in_(sa.bindparam("keys", expanding=True)),
        _invalidations.c.spread_at.is_(None),
    )
)


def tick(state: State, limit: int = 500) -> int:
    """Look at up to ``limit`` partitions of each input of each live job; how many tasks were made, or steps taken.

    0: there is nothing left to look at for now.
    """
    with state.read() as tx:
        live = topology.load(tx)
        due = _due(tx, live)  # Who has nothing to change keeps no writer waiting.
        undecided = deferred.undecided(tx, live, min(limit, ROWS_MAX))
    did = 0
    if undecided:
        with state.write() as tx:
            did += deferred.take_up(tx, topology.load(tx), undecided)
    for edition in due:
        # A transaction each: nobody waits for longer than one job takes.
        with state.write() as tx:
            live = topology.load(tx)
            job = live.jobs.get(edition)
            if job is not None:
                did += reconcile(tx, live, job, limit)
    return did


def reconcile(tx: Tx, live: Topology, job: LiveJob, limit: int = 500) -> int:
    """One step for one job."""
    if routing.joins(job):
        # As the router does: else neither would see the other's half of a join.
        tx.execute(tx.lock(sa.select(schema.jobs.c.id).where(schema.jobs.c.id == job.id))).all()
    followed = _followed(live, job)
    made, steps = 0, 0
    changes = Counter[tallies.Counted]()
    for each in followed:
        if job.job.execution_strategy is Strategy.PER_PARTITION:
            step = _partition_step(tx, live, each, followed, min(limit, ROWS_MAX))
            made, steps = made + step.made, steps + step.more
            changes.update(step.changes)
        elif (new := _cursor_task(tx, each)) is not None:
            made += sum(one.new for one in creation.create(tx, [new]))
    # Last, and for all inputs at once: the rows are shared by many writers.
    tallies.add(tx, changes)
    return max(made, steps)


def _followed(live: Topology, job: LiveJob) -> list[Input]:
    """The inputs that something new on would start the job."""
    return [
        Input(job, each, generation)
        for each in job.inputs
        if each.trigger and (generation := each.generation_id or live.current.get(each.dataset_id)) is not None
    ]


def _due(tx: Tx, live: Topology) -> list[str]:
    """The editions that there is something to look at for, in order."""
    return sorted(job.edition_id for job in behind(tx, live, live.jobs.values()))


def behind(tx: Tx, live: Topology, jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """Those of the jobs that there is something to look at for, in the order in which they are given."""
    listed = list(jobs)
    inputs = [each for job in listed for each in _followed(live, job)]
    by_partition = [each for each in inputs if each.job.job.execution_strategy is Strategy.PER_PARTITION]
    by_cursor = [each for each in inputs if each.job.job.execution_strategy is Strategy.PER_UPDATE]
    due = {each.job.edition_id for each in marks.behind(tx, by_partition)}
    due |= {each.job.edition_id for each in marks.unread(tx, by_cursor) if _cursor_task(tx, each) is not None}
    return [job for job in listed if job.edition_id in due]


@dataclass(frozen=True, slots=True)
class _Step:
    made: int = 0
    more: bool = False  # The page was full and is done with: there may be another.
    changes: Mapping[tallies.Counted, int] = field(default_factory=dict[tallies.Counted, int])


def _partition_step(tx: Tx, live: Topology, each: Input, followed: Sequence[Input], limit: int) -> _Step:
    stored = marks.mark(tx, each)
    mark = stored or _begin(tx, each)
    asked = {"generation": each.generation_id, "after": mark.revision, "most": limit}
    found = tx.mappings(_NEXT_PARTITIONS, asked)
    if not found:
        mark = mark.restarted(tx.now) if mark.due(tx.now) else mark
        if mark != stored:
            marks.save(tx, each, mark)
        return _Step()
    under_way = _under_way(tx, each, {row["partition_key"] for row in found})
    reached = _settled(found, under_way, mark.revision)
    if stored is None or reached > stored.revision:
        marks.save(tx, each, replace(mark, revision=reached))
    rows = [row for row in found if row["partition_key"] not in under_way]
    made, changes = _make(tx, live, each, followed, rows)
    return _Step(made, len(found) == limit and reached > mark.revision, changes)


def _begin(tx: Tx, each: Input) -> Mark:
    """Before the first partition; of a job without outputs, before the first that is not history to it."""
    first = None
    if each.job.job.outputs == 0:
        query = sa.select(_partitions.c.revision).where(
            _partitions.c.generation_id == each.generation_id,
            _partitions.c.committed_at < first_deployed(tx, each.job.edition_id),
        )
        first = tx.value(query.order_by(_partitions.c.revision.desc()).limit(1))
    return Mark(each.generation_id, first or 0, first or 0, tx.now)


def _make(
    tx: Tx, live: Topology, each: Input, followed: Sequence[Input], rows: Sequence[Values]
) -> tuple[int, Mapping[tallies.Counted, int]]:
    """The tasks that those partitions lack; how many, and how the counts of deliveries change."""
    complete = _complete(tx, each, followed, rows)
    wanted = _wanted(tx, live, each, complete)
    repeated = external_effects.repeated(tx, wanted)
    left_out = [new for new in wanted if new.task_id in repeated]
    wanted = [new for new in wanted if new.task_id not in repeated]
    made = external_effects.create(tx, wanted)
    # What has its task already is compared with what that has made.
    kept = {new.partition_key: new for new, one in zip(wanted, made, strict=True) if not one.new}
    stale = freshness.stale(tx, each, [row for row in complete if row["partition_key"] in kept])
    again = [
        replace(kept[key], dedupe_key=dedupe_keys.for_refresh(standing, each.generation_id, revision))
        for key, standing, revision in stale
    ]
    made += creation.create(tx, again)
    changes = _settle_joins(tx, each.job, wanted, left_out)
    return sum(one.new for one in made), changes


def _settle_joins(
    tx: Tx, job: LiveJob, wanted: Sequence[NewTask], left_out: Sequence[NewTask]
) -> Mapping[tallies.Counted, int]:
    """What becomes of deliveries that waited for these partitions to be complete."""
    if not routing.joins(job):
        return {}
    made = {(job.edition_id, new.partition_key or ""): new.task_id for new in wanted}
    gone = {(job.edition_id, new.partition_key or ""): None for new in left_out}
    changes = Counter(event_log.outcome_changes(DeliveryOutcome.MERGED, event_log.settle_uncounted(tx, made)))
    changes.update(
        event_log.outcome_changes(
            DeliveryOutcome.FILTERED,
            event_log.settle_uncounted(tx, gone, DeliveryOutcome.FILTERED, external_effects.REASON),
        )
    )
    return changes


def _complete(tx: Tx, each: Input, followed: Sequence[Input], rows: Sequence[Values]) -> list[Values]:
    """Of a job that joins, those that all of its inputs have."""
    keys = {row["partition_key"] for row in rows}
    if routing.joins(each.job):
        triggering = sum(of.trigger for of in each.job.inputs)
        if len(followed) < triggering:
            return []
        for other in followed:
            if other.position != each.position and keys:
                keys = _present(tx, other, keys)
    return [row for row in rows if row["partition_key"] in keys]


def _wanted(tx: Tx, live: Topology, each: Input, rows: Sequence[Values]) -> list[NewTask]:
    dataset, generation = each.planned.dataset_id, each.generation_id
    said = event_log.attributes(tx, dataset, generation, [row["partition_key"] for row in rows])
    return [
        NewTask(
            job=each.job,
            dedupe_key=dedupe_keys.for_partition(
                each.job, dataset, generation, row["partition_key"], live.current
            ),
            dataset_id=dataset,
            generation_id=generation,
            partition_key=row["partition_key"],
            start=row["start"],
            end=row["end"],
            attributes=said.get(row["partition_key"]),
        )
        for row in rows
    ]


def _settled(found: Sequence[Values], under_way: set[str], before: int) -> int:
    """How far nothing is left to look at again: up to the first partition that others are still to deal with."""
    for row in found:
        if row["partition_key"] in under_way:
            return before
        before = row["revision"]
    return before


def _under_way(tx: Tx, each: Input, keys: Iterable[str]) -> set[str]:
    """Partitions with an event that is still to be routed, or an invalidation that is still to be spread: those make
    the tasks, and are accounted for."""
    of = {"generation": each.generation_id, "keys": sorted(keys)}
    unrouted = tx.rows(_UNROUTED_PARTITIONS, {**of, "dataset": each.planned.dataset_id})
    return {key for (key,) in (*unrouted, *tx.rows(_UNSPREAD_PARTITIONS, of))}


def _present(tx: Tx, each: Input, keys: Iterable[str]) -> set[str]:
    query = sa.select(_partitions.c.partition_key).where(
        _partitions.c.dataset_id == each.planned.dataset_id,
        _partitions.c.generation_id == each.generation_id,
        _partitions.c.partition_key.in_(sorted(keys)),
    )
    return set(tx.execute(query).scalars())


def _cursor_task(tx: Tx, each: Input) -> NewTask | None:
    """A task up to the furthest cursor, unless the job has read that far or is on its way."""
    job, dataset, generation = each.job, each.planned.dataset_id, each.generation_id
    generations, cursors, tasks = schema.generations, schema.cursors, schema.tasks
    furthest = tx.value(sa.select(generations.c.cursor).where(generations.c.id == generation))
    own = sa.and_(cursors.c.edition_id == job.edition_id, cursors.c.generation_id == generation)
    read = tx.value(sa.select(cursors.c.value).where(own))
    open_ = sa.select(tasks.c.id).where(
        tasks.c.edition_id == job.edition_id, tasks.c.status.in_([Status.PENDING, Status.RUNNING])
    )
    if furthest is None or (read is not None and read >= furthest) or tx.one(open_.limit(1)) is not None:
        return None
    since = first_deployed(tx, job.edition_id) if job.job.outputs == 0 else None
    if not _is_ours(_latest_event(tx, dataset, generation), since):
        return None
    new = NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_cursor(dataset, generation, furthest),
        dataset_id=dataset,
        generation_id=generation,
        cursor=furthest,
    )
    return None if external_effects.repeated(tx, [new]) else new


def _is_ours(latest: sa.RowMapping | None, since: datetime | None) -> bool:
    """Whether the last event is neither the router's to deal with nor, for effects outside, history."""
    if latest is None:
        return since is None
    return latest["state"] != EventState.PENDING and (since is None or latest["received_at"] >= since)


def _latest_event(tx: Tx, dataset_id: str, generation_id: str) -> sa.RowMapping | None:
    table = schema.events
    return tx.one(
        sa.select(table.c.state, table.c.received_at)
        .where(table.c.dataset_id == dataset_id, table.c.generation_id == generation_id)
        .order_by(table.c.seq.desc())
        .limit(1)
    )
