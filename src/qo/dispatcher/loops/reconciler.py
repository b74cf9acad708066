"""Reconciling: what is committed upstream, compared with what each live job has a task for.

Repairs events that were lost, and lets a staged version catch up on history: its jobs are new editions and have no
tasks yet. Partitions are walked in the order of their commits, and how far is remembered, so a pass costs as much as
is new; now and then it begins again at the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.flow import routing
from qo.core.flow.dag import Strategy
from qo.core.flow.plan import PlannedInput, derived
from qo.core.flow.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher import backlog, events, topology
from qo.dispatcher.events import PENDING
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.tasks import creation
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.tasks.pins import first_deployed

FULL_PASS_S = 86_400.0  # How often everything is compared once more.

_partitions, _kept = schema.partitions, schema.operator_state


def tick(state: State, limit: int = 500) -> int:
    """Look at up to ``limit`` partitions of each input of each live job; how many tasks were made or taken up."""
    made = 0
    with state.read() as tx:
        editions = sorted(topology.load(tx).jobs)
    for edition in editions:
        # A transaction each: nobody waits for longer than one job takes.
        with state.write() as tx:
            live = topology.load(tx)
            job = live.jobs.get(edition)
            if job is not None:
                made += reconcile(tx, live, job, limit)
    return made


def reconcile(tx: Tx, live: Topology, job: LiveJob, limit: int = 500) -> int:
    """One step for one job."""
    token = derived("reconcile", job.edition_id, tx.ambient.token())
    made = backlog.revive(tx, [job.edition_id], token=token, dag=job.dag)
    followed = {
        each.position: generation
        for each in job.inputs
        if each.trigger and (generation := each.generation_id or live.current.get(each.dataset_id)) is not None
    }
    if routing.joins(job):
        # As the router does: else neither would see the other's half of a join.
        tx.execute(tx.lock(sa.select(schema.jobs.c.id).where(schema.jobs.c.id == job.id))).all()
    since = first_deployed(tx, job.edition_id) if job.job.outputs == 0 else None
    for each in job.inputs:
        generation = followed.get(each.position)
        if generation is None:
            continue
        if job.job.execution_strategy is Strategy.PER_PARTITION:
            made += _partition_tasks(tx, job, each, followed, since, min(limit, ROWS_MAX))
        elif job.job.execution_strategy is Strategy.PER_UPDATE:
            made += _cursor_task(tx, job, each, generation, since)
    return made


def _partition_tasks(
    tx: Tx, job: LiveJob, each: PlannedInput, followed: Mapping[int, str], since: datetime | None, limit: int
) -> int:
    generation = followed[each.position]
    mark = _Mark.load(tx, job.edition_id, generation)
    query = sa.select(
        _partitions.c.partition_key, _partitions.c.start, _partitions.c.end, _partitions.c.revision
    ).where(_partitions.c.generation_id == generation, _partitions.c.revision > mark.revision)
    if since is not None:
        query = query.where(_partitions.c.committed_at >= since)  # Effects outside are not made for history.
    found = tx.all(query.order_by(_partitions.c.revision).limit(limit))
    if not found:
        if mark.due:
            mark.restart(tx)
        return 0
    announced = _announced(tx, each.dataset_id, generation, {row["partition_key"] for row in found})
    mark.save(tx, _settled(found, announced, mark.revision))
    wanted = _missing(tx, job, each, followed, [row for row in found if row["partition_key"] not in announced])
    made = creation.create(tx, wanted)
    if routing.joins(job):
        events.settle(tx, {(job.edition_id, new.partition_key or ""): new.task_id for new in wanted})
    return sum(one.new for one in made)


def _missing(
    tx: Tx, job: LiveJob, each: PlannedInput, followed: Mapping[int, str], found: Sequence[sa.RowMapping]
) -> list[NewTask]:
    """Tasks for those partitions; of a job that joins, for those that all of its inputs have."""
    generation = followed[each.position]
    keys = {row["partition_key"] for row in found}
    if routing.joins(job):
        for position, other in followed.items():
            if position != each.position and keys:
                keys = _present(tx, other, keys)
    said = events.attributes(tx, each.dataset_id, generation, keys)
    return [
        NewTask(
            job=job,
            dedupe_key=creation.partition_dedupe_key(job, each.dataset_id, generation, row["partition_key"]),
            dataset_id=each.dataset_id,
            generation_id=generation,
            partition_key=row["partition_key"],
            start=row["start"],
            end=row["end"],
            attributes=said.get(row["partition_key"]),
        )
        for row in found
        if row["partition_key"] in keys
    ]


def _settled(found: Sequence[sa.RowMapping], announced: set[str], before: int) -> int:
    """How far nothing is left to look at again: up to the first partition whose event is still on its way."""
    for row in found:
        if row["partition_key"] in announced:
            return before
        before = row["revision"]
    return before


def _announced(tx: Tx, dataset_id: str, generation_id: str, keys: Iterable[str]) -> set[str]:
    """Partitions with an event that is still to be routed: that makes the task, and is accounted for."""
    table = schema.events
    query = sa.select(table.c.partition_key).where(
        table.c.dataset_id == dataset_id,
        table.c.generation_id == generation_id,
        table.c.partition_key.in_(sorted(keys)),
        table.c.state == PENDING,
    )
    return set(tx.execute(query).scalars())


def _present(tx: Tx, generation_id: str, keys: Iterable[str]) -> set[str]:
    dataset = sa.select(schema.generations.c.dataset_id).where(schema.generations.c.id == generation_id)
    query = sa.select(_partitions.c.partition_key).where(
        _partitions.c.dataset_id == dataset.scalar_subquery(),
        _partitions.c.generation_id == generation_id,
        _partitions.c.partition_key.in_(sorted(keys)),
    )
    return set(tx.execute(query).scalars())


def _cursor_task(tx: Tx, job: LiveJob, each: PlannedInput, generation_id: str, since: datetime | None) -> int:
    """A task up to the furthest cursor, unless the job has read that far or is on its way."""
    generations, cursors, tasks = schema.generations, schema.cursors, schema.tasks
    furthest = tx.value(sa.select(generations.c.cursor).where(generations.c.id == generation_id))
    if furthest is None:
        return 0
    read = tx.value(
        sa.select(cursors.c.value).where(
            cursors.c.edition_id == job.edition_id, cursors.c.generation_id == generation_id
        )
    )
    open_ = sa.select(tasks.c.id).where(
        tasks.c.edition_id == job.edition_id, tasks.c.status.in_([Status.PENDING, Status.RUNNING])
    )
    if (read is not None and read >= furthest) or tx.one(open_.limit(1)) is not None:
        return 0
    latest = _latest_event(tx, each.dataset_id, generation_id)
    if latest is not None and (
        latest["state"] == "pending" or (since is not None and latest["received_at"] < since)
    ):
        return 0
    if latest is None and since is not None:
        return 0
    new = NewTask(
        job=job,
        dedupe_key=creation.cursor_dedupe_key(each.dataset_id, generation_id, furthest),
        dataset_id=each.dataset_id,
        generation_id=generation_id,
        cursor=furthest,
    )
    return sum(one.new for one in creation.create(tx, [new]))


def _latest_event(tx: Tx, dataset_id: str, generation_id: str) -> sa.RowMapping | None:
    table = schema.events
    return tx.one(
        sa.select(table.c.state, table.c.received_at)
        .where(table.c.dataset_id == dataset_id, table.c.generation_id == generation_id)
        .order_by(table.c.seq.desc())
        .limit(1)
    )


class _Mark:
    """How far an edition's input has been compared, and since when."""

    def __init__(self, edition_id: str, generation_id: str, revision: int, begun: datetime, now: datetime) -> None:
        self._key = {"edition_id": edition_id, "key": f"reconcile:{generation_id}"}
        self.revision = revision
        self._begun = begun
        self.due = revision > 0 and now - begun >= timedelta(seconds=FULL_PASS_S)

    @classmethod
    def load(cls, tx: Tx, edition_id: str, generation_id: str) -> _Mark:
        query = sa.select(_kept.c.value).where(
            _kept.c.edition_id == edition_id, _kept.c.key == f"reconcile:{generation_id}"
        )
        value: dict[str, Any] | None = tx.value(query)
        if value is None:
            return cls(edition_id, generation_id, 0, tx.now, tx.now)
        return cls(edition_id, generation_id, value["revision"], datetime.fromisoformat(value["begun"]), tx.now)

    def save(self, tx: Tx, revision: int) -> None:
        if revision == self.revision and revision > 0:
            return
        value = {"revision": revision, "begun": self._begun.isoformat()}
        tx.upsert(_kept, {**self._key, "value": value, "updated_at": tx.now})

    def restart(self, tx: Tx) -> None:
        self._begun = tx.now
        self.save(tx, 0)
