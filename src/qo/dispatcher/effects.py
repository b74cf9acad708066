"""Effects outside: what a job without outputs has done once, none of its editions does again.

An alert that was sent stays sent when the data behind it are made anew, by another version of its DAG or of one that
it reads. So before such a job gets a task, its other tasks are asked, those of its earlier editions too. What replaces
a partition in the generation that serves is another matter: that is an invalidation, and may well be worth an alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.flow import routing
from qo.core.flow.plan import derived
from qo.core.flow.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher import backlog
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks.creation import NewTask

REASON = "its effects were made by an earlier edition"
HISTORY = "it was there before the job was, and effects are not made for history"

_tasks, _cursors, _jobs, _versions = schema.tasks, schema.cursors, schema.jobs, schema.dag_versions


def repeated(tx: Tx, wanted: Sequence[NewTask]) -> dict[str, str]:
    """Those that are not to be done, by id, and why. What has a task already is not among them."""
    by_input: dict[tuple[str, str, str], list[NewTask]] = {}
    for each in wanted:
        if each.job.job.outputs == 0 and each.dataset_id is not None and each.generation_id is not None:
            place = (each.job.edition_id, each.dataset_id, each.generation_id)
            by_input.setdefault(place, []).append(each)
    found: dict[str, str] = {}
    for (_, dataset_id, generation_id), some in by_input.items():
        job = some[0].job
        by_key = {each.partition_key: each.task_id for each in some if each.partition_key is not None}
        if by_key:
            found |= {by_key[key]: HISTORY for key in _history(tx, job, dataset_id, generation_id, by_key)}
            found |= {by_key[key]: REASON for key in made(tx, job, dataset_id, by_key)}
        followed = [each for each in some if each.partition_key is None and each.cursor is not None]
        upto = read_upto(tx, job, dataset_id, generation_id) if followed else None
        if upto is not None:
            found |= {each.task_id: REASON for each in followed if (each.cursor or 0) <= upto}
    known = _known(tx, found)
    return {id_: reason for id_, reason in found.items() if id_ not in known}


def made(tx: Tx, job: LiveJob, dataset_id: str, keys: Iterable[str]) -> set[str]:
    """Partitions of a dataset, in whatever generation, about which the job has done what it does.

    While a version is staged only what has ended counts: whether the rest ever will is asked again at the cutover.
    """
    ended = [Status.COMPLETED, Status.RUNNING] if job.status is VersionStatus.ACTIVE else [Status.COMPLETED]
    open_ = sa.and_(_tasks.c.edition_id == job.edition_id, _tasks.c.status.in_([Status.PENDING, Status.RUNNING]))
    query = sa.select(_tasks.c.partition_key).where(sa.or_(_tasks.c.status.in_(ended), open_))
    if not routing.joins(job):
        query = query.where(_tasks.c.dataset_id == dataset_id)
    editions, found = _editions(tx, job), set[str]()
    for some in batches(sorted(set(keys))):
        of_these = query.where(_tasks.c.edition_id.in_(editions), _tasks.c.partition_key.in_(some))
        found.update(tx.execute(of_these.distinct()).scalars())
    return found


def read_upto(tx: Tx, job: LiveJob, dataset_id: str, but: str | None = None) -> int | None:
    """The furthest cursor that any edition of the job has read of the dataset.

    ``but``: without what this edition has read of that generation.
    """
    of_it = sa.and_(_cursors.c.edition_id.in_(_editions(tx, job)), _cursors.c.dataset_id == dataset_id)
    if but is not None:
        own = sa.and_(_cursors.c.edition_id == job.edition_id, _cursors.c.generation_id == but)
        of_it = sa.and_(of_it, sa.not_(own))
    return tx.value(sa.select(sa.func.max(_cursors.c.value)).where(of_it))


def take_over(tx: Tx, live: Topology, dag: str, by: str) -> int:
    """Cancel what jobs of a version that begins to serve would repeat; how many tasks that were.

    While it was staged its tasks waited, and the version that served went on.
    """
    cancelled = 0
    for job in live.jobs.values():
        if job.dag != dag or job.status is not VersionStatus.ACTIVE or job.job.outputs or not job.inputs:
            continue
        others = [each for each in _editions(tx, job) if each != job.edition_id]
        if not others:
            continue
        upto = {each.dataset_id: read_upto(tx, job, each.dataset_id) for each in job.inputs}
        done = [_done_by(others, routing.joins(job))]
        done += [
            sa.and_(_tasks.c.partition_key.is_(None), _tasks.c.dataset_id == dataset, _tasks.c.cursor <= value)
            for dataset, value in upto.items()
            if value is not None
        ]
        again = sa.and_(_tasks.c.invalidation_id.is_(None), sa.or_(*done))
        token = derived("taken over", job.edition_id, live.epoch)
        cancelled += backlog.drop(tx, job.edition_id, again, token=token, by=by, reason=REASON)
    return cancelled


def _done_by(editions: Sequence[str], joins: bool) -> sa.ColumnElement[bool]:
    other = _tasks.alias("other")
    same = [
        other.c.edition_id.in_(editions),
        other.c.partition_key == _tasks.c.partition_key,
        other.c.status.in_([Status.COMPLETED, Status.RUNNING]),
    ]
    if not joins:
        same.append(other.c.dataset_id == _tasks.c.dataset_id)
    return sa.exists(sa.select(other.c.id).where(*same).correlate(_tasks))


def _editions(tx: Tx, job: LiveJob) -> list[str]:
    """All that the job ever had, in any version of its DAG."""
    return sorted(tx.execute(_ever(job, _jobs.c.edition_id).distinct()).scalars())


def _history(tx: Tx, job: LiveJob, dataset_id: str, generation_id: str, keys: Iterable[str]) -> set[str]:
    """Partitions that another generation had before there was such a job: this one has only made them anew."""
    first = tx.value(_ever(job, sa.func.min(_versions.c.created_at)))
    generations, partitions = schema.generations, schema.partitions
    others = sa.select(generations.c.id).where(
        generations.c.dataset_id == dataset_id, generations.c.id != generation_id
    )
    found = set[str]()
    for some in batches(sorted(keys)):
        query = sa.select(partitions.c.partition_key).where(
            partitions.c.dataset_id == dataset_id,
            partitions.c.generation_id.in_(others),
            partitions.c.partition_key.in_(some),
            partitions.c.committed_at < first,
        )
        found.update(tx.execute(query.distinct()).scalars())
    return found


def _ever(job: LiveJob, what: sa.ColumnElement[Any]) -> sa.Select[*tuple[Any, ...]]:
    """Of the job, over all versions of its DAG."""
    query = sa.select(what).join_from(_jobs, _versions, _versions.c.id == _jobs.c.version_id)
    return query.where(_versions.c.dag == job.dag, _jobs.c.name == job.job.name)


def _known(tx: Tx, ids: Iterable[str]) -> set[str]:
    found = set[str]()
    for some in batches(sorted(ids)):
        found.update(tx.execute(sa.select(_tasks.c.id).where(_tasks.c.id.in_(some))).scalars())
    return found
