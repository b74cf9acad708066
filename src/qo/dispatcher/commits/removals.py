"""Removing partitions: a decision of a person, and what it comes to downstream.

A partition is removed from every generation of its dataset that a live version has. What readers had made of it alone
is removed as well, step by step (``engine.loops.invalidation``): afterwards the datasets are what they would be if the
partition had never come, which is also what a later version makes of what is left. A reader that has the partition from
another of its inputs, too, reads again instead.

Each removal is a task that is over at once: it says who removed what, when and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.removal import REASON_MAX, RemovedAnswer
from qo.core.lifecycle import Cancel, Claim, Command, Complete, Rejected, Replay
from qo.core.pipeline import routing
from qo.core.pipeline.dag import Strategy, UpdateStrategy, input_name
from qo.core.pipeline.event import PARTITION_KEY
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import InvalidationReason
from qo.core.pipeline.topology import LiveJob, Reader, Topology
from qo.core.task import Status
from qo.dispatcher.commits import removing
from qo.dispatcher.commits.removing import Removal
from qo.dispatcher.state import commit_locks, datasets, schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.datasets import DatasetRef
from qo.dispatcher.tasks import creation, dedupe_keys, rows
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.tasks.rows import Row
from qo.errors import NotFound, Refused, UsageError

_tasks, _commits, _partitions = schema.tasks, schema.commits, schema.partitions
_OPEN = (Status.PENDING, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class _LiveOutput:
    """A generation of the dataset, and the live job that makes it."""

    job: LiveJob
    generation_id: str


def remove(
    tx: Tx, ref: DatasetRef, keys: Sequence[str], *, by: str, reason: str | None = None, key: str
) -> RemovedAnswer:
    """Remove partitions of a dataset from all its live generations. A call with the same ``key`` again does nothing.

    Raises NotFound for a dataset that no live version makes and for a partition that never was there, UsageError for
    what is no partition key, Refused while a task is at work on one of them: it would bring it back.
    """
    _check(keys, reason)
    live = topology.load(tx)
    outputs = [
        _LiveOutput(job, output.generation_id)
        for job in sorted(live.makers.get(ref.id, ()), key=lambda job: job.edition_id)
        for output in job.outputs
        if output.dataset_id == ref.id
    ]
    if not outputs:
        raise NotFound(f"no live version makes {ref.label}: there is nothing to remove it from")
    targets = [(each, partition) for each in outputs for partition in _present(tx, ref.id, each, keys)]
    _require_known(tx, ref, outputs, keys, {partition for _, partition in targets})
    _require_independent(ref, outputs)
    for each, partition in targets:
        _require_idle(tx, ref, each.job, partition)
    result = {"by": by, "removed": True} | ({"reason": reason} if reason else {})
    tasks = _over_at_once(tx, [(_task(each, partition, key), result) for each, partition in targets], by)
    commit_locks.acquire(tx, alone={each.generation_id for each, _ in targets})
    removals = [
        Removal(row, ref.id, each.generation_id, partition, by)
        for each, partition in targets
        if (row := tasks.get(creation.task_id(each.job.edition_id, _dedupe_key(partition, key)))) is not None
    ]
    removed = {each.partition_key for each in removing.commit_removals(tx, removals)}
    return RemovedAnswer(
        dataset_id=ref.id,
        removed=sorted(removed),
        already=sorted(set(keys) - removed),
        task_ids=sorted(each.row["id"] for each in removals),
    )


def is_orphaned(tx: Tx, live: Topology, job: LiveJob, row: sa.RowMapping) -> bool:
    """Whether removals leave nothing for a reader to work on under the key of an invalidation."""
    key, dataset, generation = row["partition_key"], row["dataset_id"], row["generation_id"]
    removed = row["reason"] == InvalidationReason.REMOVED and not _is_present(tx, dataset, generation, key)
    if not removed and not routing.joins(job):
        return False
    others = [
        (each.dataset_id, followed)
        for each in job.inputs
        if each.trigger
        and each.dataset_id != dataset
        and (followed := routing.generation_read(Reader(job, each), live)) is not None
    ]
    if routing.joins(job):  # It needs every side.
        return removed or any(_is_removed(tx, *other, key) for other in others)
    if job.job.update_strategy is UpdateStrategy.APPEND:
        return True  # Each input has added a part of its own.
    return not any(_is_present(tx, *other, key) for other in others)


def withdraw(tx: Tx, job: LiveJob, row: sa.RowMapping, key: str | None = None) -> None:
    """Undo what a reader made, or was about to make, from a removed partition. ``row``: the invalidation.

    ``key``: of what was made, if it is another than that of what was removed.
    """
    appends = job.job.update_strategy is UpdateStrategy.APPEND
    about = sa.select(_tasks).where(
        _tasks.c.edition_id == job.edition_id, _tasks.c.partition_key == (key or row["partition_key"])
    )
    if appends:
        about = about.where(_tasks.c.dataset_id == row["dataset_id"])
    label = datasets.by_id(tx, [row["dataset_id"]])[row["dataset_id"]].label
    by, reason = row["created_by"] or "nobody named", f"partition {row['partition_key']} of {label} was removed"
    tasks = tx.all(about)
    _end_open(tx, tasks, by, reason)
    targets = _standing_revisions(tx, job, [each["id"] for each in tasks])
    if not targets:
        return
    new = NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_removal(row["id"]) + (f":{key}" if key is not None else ""),
        dataset_id=row["dataset_id"],
        generation_id=row["generation_id"],
        partition_key=key or row["partition_key"],
        start=row["start"],
        end=row["end"],
        invalidation_id=row["id"],
    )
    ended = _over_at_once(tx, [(new, {"by": by, "removed": True, "reason": reason})], by)
    commit_locks.acquire(tx, alone={generation for _, generation, _ in targets})
    # Again, now that nobody else can commit to them.
    targets = _standing_revisions(tx, job, [each["id"] for each in tasks])
    removing.commit_removals(
        tx,
        [
            Removal(task, dataset, generation, key, by, frozenset(revisions))
            for task in ended.values()
            for (dataset, generation, key), revisions in targets.items()
        ],
    )


def _check(keys: Sequence[str], reason: str | None) -> None:
    for each in keys:
        if not PARTITION_KEY.match(each):
            raise UsageError(f"{each[:80]!r} is not a partition key")
    if len(set(keys)) < len(keys):
        raise UsageError("a partition is named twice: name each once")
    if reason is not None and len(reason) > REASON_MAX:
        raise UsageError(f"a reason has at most {REASON_MAX} characters, not {len(reason)}")


def _present(tx: Tx, dataset_id: str, output: _LiveOutput, keys: Sequence[str]) -> list[str]:
    present: list[str] = []
    for some in batches(sorted(keys)):
        query = sa.select(_partitions.c.partition_key).where(
            _partitions.c.dataset_id == dataset_id,
            _partitions.c.generation_id == output.generation_id,
            _partitions.c.partition_key.in_(some),
        )
        present += tx.execute(query).scalars()
    return present


def _is_present(tx: Tx, dataset_id: str, generation_id: str, key: str) -> bool:
    query = sa.select(_partitions.c.revision).where(
        _partitions.c.dataset_id == dataset_id,
        _partitions.c.generation_id == generation_id,
        _partitions.c.partition_key == key,
    )
    return tx.one(query) is not None


def _is_removed(tx: Tx, dataset_id: str, generation_id: str, key: str) -> bool:
    absent = not _is_present(tx, dataset_id, generation_id, key)
    return absent and bool(removing.last_removals(tx, generation_id, [key]))


def _require_known(
    tx: Tx, ref: DatasetRef, outputs: Sequence[_LiveOutput], keys: Sequence[str], present: set[str]
) -> None:
    missing = set(keys) - present
    for each in outputs:
        missing -= removing.last_removals(tx, each.generation_id, missing).keys() if missing else set()
    if missing:
        raise NotFound(
            f"{ref.label} has no partition {', '.join(sorted(missing)[:5])}: see which there are with "
            f"qo dataset partitions {ref.label}"
        )


def _require_independent(ref: DatasetRef, outputs: Sequence[_LiveOutput]) -> None:
    """Raise Refused for buckets: the rows of one come from all partitions that the job has read."""
    for each in outputs:
        if each.job.job.execution_strategy is Strategy.PER_CHANGE:
            read = ", ".join(input_name(one) for one in each.job.job.inputs)
            raise Refused(
                f"{ref.label} is one table, and its partitions are buckets of keys: without one of them, keys would be "
                f"missing; remove what it should not contain from {read}, and {each.job.name} follows"
            )


def _require_idle(tx: Tx, ref: DatasetRef, job: LiveJob, key: str) -> None:
    query = sa.select(_tasks.c.id).where(
        _tasks.c.edition_id == job.edition_id,
        _tasks.c.partition_key == key,
        sa.or_(_tasks.c.status.in_(_OPEN), _tasks.c.late_lease_id.is_not(None)),
    )
    if (task := tx.one(query.limit(1))) is not None:
        raise Refused(
            f"task {task['id']} of {job.name} is to make {ref.label}@{key} anew and would bring it back: wait until "
            f"it has ended, or cancel it with qo run cancel {task['id']}, then remove the partition"
        )


def _dedupe_key(partition: str, key: str) -> str:
    return dedupe_keys.for_removal(derive_id("removal", key, partition))


def _task(output: _LiveOutput, partition: str, key: str) -> NewTask:
    return NewTask(job=output.job, dedupe_key=_dedupe_key(partition, key), partition_key=partition)


def _over_at_once(tx: Tx, new_tasks: Sequence[tuple[NewTask, dict[str, Any]]], by: str) -> dict[str, Row]:
    """Create, claim and complete tasks at once, and return their rows by id, without those that existed before."""
    output = {new.task_id: result for new, result in new_tasks}
    created = [each.task_id for each in creation.create(tx, [new for new, _ in new_tasks]) if each.new]
    ended: dict[str, Row] = {}
    for id_, row in rows.load_all(tx, sorted(created)).items():
        lease = derive_id("lease", id_, 1)
        running = _apply(tx, row, Claim(tx.ambient.token(), lease_id=lease, worker_id=by[:200]))
        ended[id_] = _apply(tx, running, Complete(tx.ambient.token(), lease_id=lease, output=output[id_]))
    return ended


def _apply(tx: Tx, row: Row, command: Command) -> Row:
    moved = rows.move(tx, row, command)
    if isinstance(moved, Rejected):
        raise AssertionError(moved.detail)
    return moved.row


def _end_open(tx: Tx, tasks: Sequence[sa.RowMapping], by: str, reason: str) -> None:
    """Cancel pending, running and failed tasks: their input is gone.

    A running one can commit nothing from here on, whenever its worker learns of it.
    """
    unfinished = [each["id"] for each in tasks if each["status"] in (*_OPEN, Status.FAILED)]
    for _, row in sorted(rows.load_all(tx, unfinished).items()):
        if row["status"] == Status.FAILED:
            row = _apply(tx, row, Replay(token=tx.ambient.token()))
        if row["status"] in _OPEN:
            _apply(tx, row, Cancel(token=tx.ambient.token(), by=by[:200], reason=reason))


def _standing_revisions(tx: Tx, job: LiveJob, task_ids: Sequence[str]) -> dict[tuple[str, str, str], set[int]]:
    """Return the current revisions that these tasks committed, by dataset, generation and partition."""
    revisions: dict[tuple[str, str, str], set[int]] = {}
    dataset_of = {output.generation_id: output.dataset_id for output in job.outputs}
    for some in batches(sorted(task_ids)):
        query = sa.select(_commits.c.generation_id, _commits.c.partition_key, _commits.c.revision).where(
            _commits.c.task_id.in_(some), _commits.c.replaced_by.is_(None), _commits.c.partition_key.is_not(None)
        )
        for generation, key, revision in tx.execute(query):
            if generation in dataset_of:
                revisions.setdefault((dataset_of[generation], generation, key), set()).add(revision)
    return revisions
