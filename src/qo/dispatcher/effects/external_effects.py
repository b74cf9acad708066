"""Effects outside qo: what a job without outputs did once, no other edition of it does again.

An alert that was sent stays sent when the data behind it are rebuilt, by another version of its DAG or of one that it
reads. So before such a job gets a task, the tasks of all its editions are checked. Replacing a partition in the
serving generation is different: that is an invalidation, and may well be worth another alert.

A task is deferred while another edition is at work on the same: it is cancelled, and ``deferred`` decides about it when
the other task has ended. A task that follows a cursor is deferred to any that reads the same dataset, and begins where
that one ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline import routing
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import CancelCode
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog, creation
from qo.dispatcher.tasks.backlog import Cancellation
from qo.dispatcher.tasks.creation import Created, NewTask

REASON = "its effects were made by an earlier edition"
HISTORY = "it was there before the job was, and effects are not made for history"

_tasks, _cursors, _jobs, _versions = schema.tasks, schema.cursors, schema.jobs, schema.dag_versions

OPEN = (scans.running(), _tasks.c.late_lease_id.is_not(None))  # Queried one by one: each has its own index.


def repeated(tx: Tx, new_tasks: Sequence[NewTask]) -> dict[str, str]:
    """Return the tasks that must not be created, by id, and why. Tasks that exist already are left out."""
    by_input: dict[tuple[str, str, str], list[NewTask]] = {}
    for each in new_tasks:
        if each.job.job.outputs == 0 and each.dataset_id is not None and each.generation_id is not None:
            place = (each.job.edition_id, each.dataset_id, each.generation_id)
            by_input.setdefault(place, []).append(each)
    reasons: dict[str, str] = {}
    for (_, dataset_id, generation_id), some in by_input.items():
        job = some[0].job
        by_key = {each.partition_key: each.task_id for each in some if each.partition_key is not None}
        if by_key:
            reasons |= {by_key[key]: HISTORY for key in _history(tx, job, dataset_id, generation_id, by_key)}
            reasons |= {by_key[key]: REASON for key in _about(tx, job, dataset_id, by_key, _is_done(_tasks))}
        followed = [each for each in some if each.partition_key is None and each.cursor is not None]
        upto = read_upto(tx, job, dataset_id, generation_id) if followed else None
        if upto is not None:
            reasons |= {each.task_id: REASON for each in followed if (each.cursor or 0) <= upto}
    existing = _existing(tx, reasons)
    return {id_: reason for id_, reason in reasons.items() if id_ not in existing}


def create(tx: Tx, new_tasks: Sequence[NewTask]) -> list[Created]:
    """As ``creation.create``, and defer the tasks whose effects another edition is at work on."""
    created = creation.create(tx, new_tasks)
    new: dict[str, list[NewTask]] = {}
    for each, one in zip(new_tasks, created, strict=True):
        about = each.partition_key is not None or each.cursor is not None
        if one.new and about and has_effects(each.job) and each.invalidation_id is None:
            new.setdefault(each.job.edition_id, []).append(each)
    for some in new.values():
        others = _others(tx, some[0].job)
        for part in batches(each.task_id for each in some) if others else ():
            _defer(tx, some[0].job, others, _tasks.c.id.in_(part), by="dispatcher")
    return created


def partitions_done(tx: Tx, job: LiveJob, dataset_id: str, keys: Iterable[str]) -> set[str]:
    """Return the partitions of a dataset, in any generation, for which the job had its effects or is at work."""
    return _about(tx, job, dataset_id, keys, sa.or_(_is_done(_tasks), _tasks.c.status == Status.RUNNING))


def read_upto(tx: Tx, job: LiveJob, dataset_id: str, but: str | None = None) -> int | None:
    """Return the furthest cursor of the dataset that any edition of the job has read.

    ``but``: ignore what this edition has read of that generation.
    """
    of_it = sa.and_(_cursors.c.edition_id.in_(editions(tx, job)), _cursors.c.dataset_id == dataset_id)
    if but is not None:
        own = sa.and_(_cursors.c.edition_id == job.edition_id, _cursors.c.generation_id == but)
        of_it = sa.and_(of_it, sa.not_(own))
    return tx.value(sa.select(sa.func.max(_cursors.c.value)).where(of_it))


def take_over(tx: Tx, live: Topology, dag: str, by: str) -> int:
    """Cancel the tasks of a version that begins to serve whose effects were had before; return how many.

    While the version was staged its tasks waited, and the version that served went on.
    """
    cancelled = 0
    for job in live.of_dag(dag):
        if not has_effects(job) or not job.inputs:
            continue
        others = _others(tx, job)
        if not others:
            continue
        upto = {each.dataset_id: read_upto(tx, job, each.dataset_id) for each in job.inputs}
        done_conditions = [_exists(job, others, _is_done)]
        done_conditions += [
            sa.and_(_tasks.c.partition_key.is_(None), _tasks.c.dataset_id == dataset, _tasks.c.cursor <= value)
            for dataset, value in upto.items()
            if value is not None
        ]
        again = sa.and_(_tasks.c.invalidation_id.is_(None), sa.or_(*done_conditions))
        token = derive_id("taken over", job.edition_id, live.epoch)
        effects_made = Cancellation(by, REASON, CancelCode.EFFECTS_MADE)
        cancelled += backlog.cancel_some(tx, job.edition_id, again, effects_made, token=token)
        cancelled += _defer(tx, job, others, _tasks.c.invalidation_id.is_(None), by=by)
    return cancelled


def has_effects(job: LiveJob) -> bool:
    """Whether the job may have effects outside now: it has no outputs, and its version serves."""
    return job.job.outputs == 0 and job.status is VersionStatus.ACTIVE


def editions(tx: Tx, job: LiveJob) -> list[str]:
    """Return all editions that the job ever had, in any version of its DAG."""
    return sorted(tx.execute(_ever(job, _jobs.c.edition_id).distinct()).scalars())


def _is_done(table: Any) -> sa.ColumnElement[bool]:
    """The task is completed, or it succeeded before it saw the request to stop.

    Of all cancelled tasks only the latter keep the name of their worker.
    """
    too_quick = sa.and_(table.c.status == Status.CANCELLED, table.c.worker_id.is_not(None))
    return sa.or_(table.c.status == Status.COMPLETED, too_quick)


def _at_work(table: Any) -> sa.ColumnElement[bool]:
    """The task runs, has a late attempt, or is done, since it may have been running a statement ago."""
    return sa.or_(_is_done(table), table.c.status == Status.RUNNING, table.c.late_lease_id.is_not(None))


def _defer(tx: Tx, job: LiveJob, others: Sequence[str], which: sa.ColumnElement[bool], by: str) -> int:
    busy = _exists(job, others, _at_work)
    if followed := sorted({each["dataset_id"] for each in followers(tx, others, OPEN)}):
        by_cursor = sa.and_(_tasks.c.partition_key.is_(None), _tasks.c.cursor.is_not(None))
        busy = sa.or_(busy, sa.and_(by_cursor, _tasks.c.dataset_id.in_(followed)))
    deferred = Cancellation(by, "another edition is at work on its effects", CancelCode.EFFECTS_DEFERRED)
    return backlog.cancel_some(tx, job.edition_id, sa.and_(which, busy), deferred, token=tx.ambient.token())


def followers(tx: Tx, editions: Sequence[str], which: Sequence[sa.ColumnElement[bool]]) -> Sequence[sa.RowMapping]:
    """Return the tasks of these editions that follow a cursor and meet one of the conditions.

    Tasks that read a range again move no cursor, and are left out.
    """
    by_cursor = [
        _tasks.c.partition_key.is_(None),
        _tasks.c.cursor.is_not(None),
        _tasks.c.invalidation_id.is_(None),
    ]
    query = sa.select(_tasks).where(_tasks.c.edition_id.in_(editions), *by_cursor)
    by_id = {row["id"]: row for each in which for row in tx.all(query.where(each))}
    return list(by_id.values())


def _exists(job: LiveJob, of: Sequence[str], which: Callable[[Any], sa.ColumnElement[bool]]) -> Any:
    """A condition: one of those editions has such a task about the same partition."""
    other = _tasks.alias("other")
    same = [other.c.edition_id.in_(of), other.c.partition_key == _tasks.c.partition_key, which(other)]
    if not routing.joins(job):
        same.append(other.c.dataset_id == _tasks.c.dataset_id)
    return sa.exists(sa.select(other.c.id).where(*same).correlate(_tasks))


def _about(tx: Tx, job: LiveJob, dataset_id: str, keys: Iterable[str], which: sa.ColumnElement[bool]) -> set[str]:
    """Return the partitions for which the job has such a task in any edition, or an open one in its own."""
    open_ = sa.and_(_tasks.c.edition_id == job.edition_id, _tasks.c.status.in_([Status.PENDING, Status.RUNNING]))
    query = sa.select(_tasks.c.partition_key).where(sa.or_(which, open_))
    if not routing.joins(job):
        query = query.where(_tasks.c.dataset_id == dataset_id)
    query, busy_keys = query.where(_tasks.c.edition_id.in_(editions(tx, job))), set[str]()
    for some in batches(sorted(set(keys))):
        of_these = query.where(_tasks.c.partition_key.in_(some))
        busy_keys.update(tx.execute(of_these.distinct()).scalars())
    return busy_keys


def _others(tx: Tx, job: LiveJob) -> list[str]:
    return [each for each in editions(tx, job) if each != job.edition_id]


def _history(tx: Tx, job: LiveJob, dataset_id: str, generation_id: str, keys: Iterable[str]) -> set[str]:
    """Return the partitions that another generation had before the job existed: this generation only rebuilt them."""
    first = tx.value(_ever(job, sa.func.min(_versions.c.created_at)))
    generations, partitions = schema.generations, schema.partitions
    others = sa.select(generations.c.id).where(
        generations.c.dataset_id == dataset_id, generations.c.id != generation_id
    )
    partition_keys = set[str]()
    for some in batches(sorted(keys)):
        query = sa.select(partitions.c.partition_key).where(
            partitions.c.dataset_id == dataset_id,
            partitions.c.generation_id.in_(others),
            partitions.c.partition_key.in_(some),
            partitions.c.committed_at < first,
        )
        partition_keys.update(tx.execute(query.distinct()).scalars())
    return partition_keys


def _ever(job: LiveJob, what: sa.ColumnElement[Any]) -> sa.Select[*tuple[Any, ...]]:
    """Select columns of the job's rows in all versions of its DAG."""
    query = sa.select(what).join_from(_jobs, _versions, _versions.c.id == _jobs.c.version_id)
    return query.where(_versions.c.dag == job.dag, _jobs.c.name == job.job.name)


def _existing(tx: Tx, ids: Iterable[str]) -> set[str]:
    existing = set[str]()
    for some in batches(sorted(ids)):
        existing.update(tx.execute(sa.select(_tasks.c.id).where(_tasks.c.id.in_(some))).scalars())
    return existing
