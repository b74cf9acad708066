"""The reconciler loop compares what is committed upstream with what each live job has made of it.

It repairs lost events, and lets a staged version catch up on history: its jobs are new editions without tasks. A job
remakes output if its input is an earlier generation again, because another DAG was rolled back, or if its input was
replaced while its version was not active. It also takes up work that was deferred to another version and not done.

Partitions are compared in the order of their commits. How far is stored (``versions.marks``), so a pass costs as much
as there is new. Once a day, and when the input becomes another generation, the comparison starts again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import sqlalchemy as sa

from qo.core.pipeline import routing
from qo.core.pipeline.dag import Strategy
from qo.core.pipeline.event import NUMBER_MAX
from qo.core.pipeline.states import DeliveryOutcome, EventState
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.attempts.cursor_ranges import first_deployed
from qo.dispatcher.effects import deferred, external_effects
from qo.dispatcher.engine import composites, freshness
from qo.dispatcher.events import event_log, tallies
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.state.prepared import Prepared, Values
from qo.dispatcher.tasks import change_tasks, creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions import marks
from qo.dispatcher.versions.marks import Input, Mark

COMPOSED_MAX = 100  # Partitions of one step that others are made of: each may concern many.

_partitions, _events, _invalidations = schema.partitions, schema.events, schema.invalidations

# Built once: building a statement takes longer than executing it.
_NEXT_PARTITIONS = Prepared(
    sa.select(
        _partitions.c.partition_key,
        _partitions.c.start,
        _partitions.c.end,
        _partitions.c.revision,
        _partitions.c.committed_at,
    )
    .where(
        _partitions.c.generation_id == sa.bindparam("generation"),
        _partitions.c.revision > sa.bindparam("after"),
        _partitions.c.revision <= sa.bindparam("upto", type_=sa.BigInteger),
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
    """Compare up to ``limit`` partitions of each input of each live job. Return how many tasks were created or steps
    taken; 0: there is nothing left to compare for now.
    """
    with state.read() as tx:
        live = topology.load(tx)
        due = _due_editions(tx, live)  # Without work, no write transaction is opened.
        overdue = composites.due_editions(tx, live)
        undecided = deferred.undecided(tx, live, min(limit, ROWS_MAX))
    did = 0
    if undecided:
        with state.write() as tx:
            did += deferred.take_up(tx, topology.load(tx), undecided)
    for edition in due:
        # One transaction each, so that other writers wait for one job at most.
        with state.write() as tx:
            live = topology.load(tx)
            job = live.jobs.get(edition)
            if job is not None:
                did += reconcile(tx, live, job, limit)
    return did + sum(_make_overdue(state, edition, min(limit, ROWS_MAX)) for edition in overdue)


def _make_overdue(state: State, edition: str, limit: int) -> int:
    """Create the tasks of partitions whose deadline has passed; they read what is there. Return how many."""
    with state.write() as tx:
        live = topology.load(tx)
        job = live.jobs.get(edition)
        if job is None or not job.is_composite:
            return 0
        composites.lock(tx, [job])
        created, changes = _follow(tx, live, job, composites.due_keys(tx, edition, limit))
        tallies.add(tx, changes)
        return created


def reconcile(tx: Tx, live: Topology, job: LiveJob, limit: int = 500) -> int:
    """Take one step for one job. Return how many tasks were created or steps taken."""
    if job.is_composite:
        composites.lock(tx, [job])
    elif routing.joins(job):
        # The router takes the same lock; otherwise neither would see the other's half of a join.
        tx.execute(tx.lock(sa.select(schema.jobs.c.id).where(schema.jobs.c.id == job.id))).all()
    inputs = _triggering_inputs(live, job)
    created, steps = 0, 0
    changes = Counter[tallies.Counted]()
    for each in inputs:
        if job.job.execution_strategy is Strategy.PER_PARTITION:
            most = min(limit, COMPOSED_MAX if job.is_composite else ROWS_MAX)
            step = _partition_step(tx, live, each, inputs, most)
            created, steps = created + step.created, steps + step.more
            changes.update(step.changes)
        elif job.job.execution_strategy is Strategy.PER_CHANGE:
            missing = change_tasks.missing_task(tx, job, each.planned.dataset_id, each.generation_id)
            created += sum(one.new for one in creation.create(tx, [missing] if missing is not None else []))
        elif (new := _cursor_task(tx, each)) is not None:
            created += sum(one.new for one in creation.create(tx, [new]))
    # Last, and for all inputs at once: the rows are shared by many writers.
    tallies.add(tx, changes)
    return max(created, steps)


def _triggering_inputs(live: Topology, job: LiveJob) -> list[Input]:
    """Return the inputs that trigger the job."""
    return [
        Input(job, each, generation)
        for each in job.inputs
        if each.trigger and (generation := each.generation_id or live.current.get(each.dataset_id)) is not None
    ]


def _due_editions(tx: Tx, live: Topology) -> list[str]:
    """Return the editions that have something to compare, in order."""
    return sorted(job.edition_id for job in behind(tx, live, live.jobs.values()))


def behind(tx: Tx, live: Topology, jobs: Iterable[LiveJob]) -> list[LiveJob]:
    """Return those of the jobs that have something to compare, in the given order."""
    all_jobs = list(jobs)
    inputs = [each for job in all_jobs for each in _triggering_inputs(live, job)]
    by_partition = [each for each in inputs if each.job.job.execution_strategy is Strategy.PER_PARTITION]
    by_cursor = [each for each in inputs if each.job.job.execution_strategy is Strategy.PER_UPDATE]
    due = {each.job.edition_id for each in marks.behind(tx, by_partition)}
    by_change = [each for each in inputs if each.job.job.execution_strategy is Strategy.PER_CHANGE]
    due |= {
        each.job.edition_id
        for each in by_change
        if change_tasks.missing_task(tx, each.job, each.planned.dataset_id, each.generation_id) is not None
    }
    due |= {each.job.edition_id for each in marks.unread(tx, by_cursor) if _cursor_task(tx, each) is not None}
    return [job for job in all_jobs if job.edition_id in due]


@dataclass(frozen=True, slots=True)
class _Step:
    created: int = 0
    more: bool = False  # The page was full and all of it is settled: there may be another.
    changes: Mapping[tallies.Counted, int] = field(default_factory=dict[tallies.Counted, int])


def _partition_step(tx: Tx, live: Topology, each: Input, inputs: Sequence[Input], limit: int) -> _Step:
    # Up to there nothing can appear any more, so what was passed need not be looked at again.
    upto = commit_locks.await_commits(tx, [each.generation_id])
    stored = marks.load(tx, each)
    mark = stored or _first_mark(tx, each)
    parameters = {
        "generation": each.generation_id,
        "after": mark.revision,
        "upto": NUMBER_MAX if upto is None else upto,
        "most": limit,
    }
    page = tx.mappings(_NEXT_PARTITIONS, parameters)
    if not page:
        mark = mark.restart(tx.now) if mark.is_due(tx.now) else mark
        if mark != stored:
            marks.save(tx, each, mark)
        return _Step()
    in_progress = _keys_in_progress(tx, each, {row["partition_key"] for row in page})
    reached = _settled_revision(page, in_progress, mark.revision)
    if stored is None or reached > stored.revision:
        # Those beyond are compared once more: counted now, they would be missing from what remains.
        marks.save(tx, each, mark.advance(reached, sum(row["revision"] <= reached for row in page)))
    rows = [row for row in page if row["partition_key"] not in in_progress]
    created, changes = _create_missing(tx, live, each, inputs, rows)
    return _Step(created, len(page) == limit and reached > mark.revision, changes)


def _first_mark(tx: Tx, each: Input) -> Mark:
    """Return a mark before the first partition; for a job without outputs, before the first after its deploy."""
    first = None
    if each.job.job.outputs == 0:
        query = sa.select(_partitions.c.revision).where(
            _partitions.c.generation_id == each.generation_id,
            _partitions.c.committed_at < first_deployed(tx, each.job.edition_id),
        )
        first = tx.value(query.order_by(_partitions.c.revision.desc()).limit(1))
    return Mark(each.generation_id, first or 0, first or 0, tx.now, settled=first or 0)


def _create_missing(
    tx: Tx, live: Topology, each: Input, inputs: Sequence[Input], rows: Sequence[Values]
) -> tuple[int, Mapping[tallies.Counted, int]]:
    """Create the tasks that these partitions lack. Return how many, and how the counts of deliveries change."""
    if each.job.is_composite:
        dataset, generation = each.planned.dataset_id, each.generation_id
        keys = {
            key: None
            for row in rows
            for key in composites.concerned_keys(each.job, live, dataset, generation, row["partition_key"])
        }
        return _follow(tx, live, each.job, list(keys))
    complete = _complete_partitions(tx, each, inputs, rows)
    new_tasks = _new_tasks(tx, live, each, complete)
    repeated = external_effects.repeated(tx, new_tasks)
    repeats = [new for new in new_tasks if new.task_id in repeated]
    new_tasks = [new for new in new_tasks if new.task_id not in repeated]
    created = external_effects.create(tx, new_tasks)
    # Where the task existed already, its output is compared with the input.
    existing = {new.partition_key: new for new, one in zip(new_tasks, created, strict=True) if not one.new}
    stale = freshness.stale_partitions(tx, each, [row for row in complete if row["partition_key"] in existing])
    again = [
        replace(existing[key], dedupe_key=dedupe_keys.for_refresh(output_revision, each.generation_id, revision))
        for key, output_revision, revision in stale
    ]
    created += creation.create(tx, again)
    changes = _settle_joins(tx, each.job, new_tasks, repeats)
    return sum(one.new for one in created), changes


def _follow(
    tx: Tx, live: Topology, job: LiveJob, keys: Sequence[str]
) -> tuple[int, Mapping[tallies.Counted, int]]:
    settled = composites.Settled()
    followed = composites.follow(tx, live, job, keys, settled) if keys else {}
    waited = event_log.settle_uncounted(tx, settled.tasks)
    return sum(one.new for one in followed.values()), event_log.outcome_changes(DeliveryOutcome.MERGED, waited)


def _settle_joins(
    tx: Tx, job: LiveJob, new_tasks: Sequence[NewTask], repeats: Sequence[NewTask]
) -> Mapping[tallies.Counted, int]:
    """Settle deliveries that waited for these partitions to be complete. Return how the counts change."""
    if not routing.joins(job):
        return {}
    merged = {(job.edition_id, new.partition_key or ""): new.task_id for new in new_tasks}
    filtered = {(job.edition_id, new.partition_key or ""): None for new in repeats}
    changes = Counter(event_log.outcome_changes(DeliveryOutcome.MERGED, event_log.settle_uncounted(tx, merged)))
    changes.update(
        event_log.outcome_changes(
            DeliveryOutcome.FILTERED,
            event_log.settle_uncounted(tx, filtered, DeliveryOutcome.FILTERED, external_effects.REASON),
        )
    )
    return changes


def _complete_partitions(tx: Tx, each: Input, inputs: Sequence[Input], rows: Sequence[Values]) -> list[Values]:
    """Return the partitions; for a job that joins, those that all of its inputs have."""
    keys = {row["partition_key"] for row in rows}
    if routing.joins(each.job):
        triggering = sum(other_input.trigger for other_input in each.job.inputs)
        if len(inputs) < triggering:
            return []
        for other in inputs:
            if other.position != each.position and keys:
                keys = _existing_keys(tx, other, keys)
    return [row for row in rows if row["partition_key"] in keys]


def _new_tasks(tx: Tx, live: Topology, each: Input, rows: Sequence[Values]) -> list[NewTask]:
    dataset, generation = each.planned.dataset_id, each.generation_id
    attributes = event_log.attributes(tx, generation, [row["partition_key"] for row in rows])
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
            attributes=attributes.get(row["partition_key"]),
        )
        for row in rows
    ]


def _settled_revision(page: Sequence[Values], in_progress: set[str], before: int) -> int:
    """Return the revision up to which no partition is still in progress elsewhere."""
    for row in page:
        if row["partition_key"] in in_progress:
            return before
        before = row["revision"]
    return before


def _keys_in_progress(tx: Tx, each: Input, keys: Iterable[str]) -> set[str]:
    """Return partitions with an unrouted event or an unspread invalidation: other loops create their tasks."""
    parameters = {"generation": each.generation_id, "keys": sorted(keys)}
    unrouted = tx.rows(_UNROUTED_PARTITIONS, {**parameters, "dataset": each.planned.dataset_id})
    return {key for (key,) in (*unrouted, *tx.rows(_UNSPREAD_PARTITIONS, parameters))}


def _existing_keys(tx: Tx, each: Input, keys: Iterable[str]) -> set[str]:
    query = sa.select(_partitions.c.partition_key).where(
        _partitions.c.dataset_id == each.planned.dataset_id,
        _partitions.c.generation_id == each.generation_id,
        _partitions.c.partition_key.in_(sorted(keys)),
    )
    return set(tx.execute(query).scalars())


def _cursor_task(tx: Tx, each: Input) -> NewTask | None:
    """Return a task up to the furthest cursor, unless the job has read that far or has an open task."""
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
    if not _is_settled(_latest_event(tx, dataset, generation), since):
        return None
    new = NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_cursor(dataset, generation, furthest),
        dataset_id=dataset,
        generation_id=generation,
        cursor=furthest,
    )
    return None if external_effects.repeated(tx, [new]) else new


def _is_settled(latest: sa.RowMapping | None, since: datetime | None) -> bool:
    """Tell whether the last event is routed and, for external effects, newer than the first deploy."""
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
