"""The comparison loop compares the output of a staged version with its side inputs, once each time it is staged.

A version can be staged with partitions from an earlier time: it was abandoned, or it was activated by force while its
inputs were incomplete and was rolled back. A changed side input triggers no task. So once the side inputs are complete,
output made from an earlier state of them is remade, and only then are further tasks of the job released
(``versions.side_inputs``). This happens once: later changes are treated as for a job of the active version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import UpdateStrategy
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.rebuilds import Rebuild
from qo.core.pipeline.states import InvalidationReason
from qo.core.pipeline.topology import Topology
from qo.core.task import Status
from qo.dispatcher.engine.loops import reconciler
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.database import ROWS_MAX, State, Tx
from qo.dispatcher.tasks import creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions import side_inputs

_tasks, _commits, _pins = schema.tasks, schema.commits, schema.task_inputs
BATCH = ROWS_MAX  # Tasks of one transaction.

_Rows = Sequence[sa.RowMapping]


def tick(state: State, limit: int = BATCH) -> int:
    """Compare each due job by one step. Return how many tasks were created or steps taken."""
    with state.read() as tx:
        live = topology.load(tx)
        due = [
            edition for edition, rebuild in side_inputs.rebuilds(tx, live).items() if _is_due(tx, live, rebuild)
        ]
    did = 0
    for edition in due:
        # One transaction each, so that other writers wait for one job at most.
        with state.write() as tx:
            live = topology.load(tx)
            rebuild = side_inputs.rebuilds(tx, live).get(edition)
            if rebuild is not None and _is_due(tx, live, rebuild):
                did += _step(tx, live, rebuild, min(limit, ROWS_MAX))
    return did


def _is_due(tx: Tx, live: Topology, rebuild: Rebuild) -> bool:
    """Tell whether the job is not compared yet and its side inputs are complete.

    A running attempt of the job has fixed its inputs earlier and may still commit, so there must be none.
    """
    job = rebuild.job
    return (
        not side_inputs.is_compared(tx, job.edition_id)
        and not scans.has_in_flight(tx, job.logical_id, job.edition_id)
        and next(side_inputs.behind(tx, live, rebuild.makers), None) is None
    )


def _step(tx: Tx, live: Topology, rebuild: Rebuild, limit: int) -> int:
    if behind := reconciler.behind(tx, live, rebuild.makers):
        # That they have no open tasks proves nothing while tasks are missing.
        created = sum(reconciler.reconcile(tx, live, job, limit) for job in behind)
        return created + len(behind) - len(reconciler.behind(tx, live, behind))
    edition = rebuild.job.edition_id
    mark = side_inputs.mark(tx, edition) or {}
    page = _page(tx, edition, mark.get("after", ""), limit)
    tasks = _tasks_for_stale(tx, rebuild, _stale(tx, rebuild, _with_current_output(tx, page)))
    created = sum(one.new for one in creation.create(tx, tasks))
    if len(page) == limit:
        side_inputs.keep(tx, edition, {"after": page[-1]["dedupe_key"]})
    else:
        _refuse_late_replies(tx, edition)
        side_inputs.keep(tx, edition, {"done": True})
    return max(created, 1)


def _page(tx: Tx, edition: str, after: str, limit: int) -> _Rows:
    """Return the next completed tasks of the edition, in the order of their keys."""
    completed = _tasks.c.status + "" == str(Status.COMPLETED)  # Keeps the database from the index of the status.
    query = sa.select(_tasks).where(_tasks.c.edition_id == edition, _tasks.c.dedupe_key > after, completed)
    return tx.all(query.order_by(_tasks.c.dedupe_key).limit(limit))


def _with_current_output(tx: Tx, tasks: _Rows) -> _Rows:
    """Return the tasks that have a commit which was not replaced."""
    query = sa.select(_commits.c.task_id).where(
        _commits.c.task_id.in_([task["id"] for task in tasks]), _commits.c.replaced_by.is_(None)
    )
    current = set(tx.execute(query.distinct()).scalars())
    return [task for task in tasks if task["id"] in current]


def _stale(tx: Tx, rebuild: Rebuild, tasks: _Rows) -> list[tuple[sa.RowMapping, str, int]]:
    """Return the tasks that have read an earlier state of an input, with its generation and current revision."""
    inputs = {each.position: each for each in rebuild.compared}
    query = sa.select(_pins).where(
        _pins.c.task_id.in_([task["id"] for task in tasks]), _pins.c.position.in_(list(inputs))
    )
    pins = [pin for pin in tx.all(query) if _is_side_read(pin, triggers=inputs[pin["position"]].trigger)]
    whole = _revisions(tx, {pin["generation_id"] for pin in pins})
    by_partition = _partition_revisions(tx, [pin for pin in pins if pin["partition_key"]])
    changed: dict[str, tuple[str, int]] = {}
    for pin in pins:
        generation, key = pin["generation_id"], pin["partition_key"]
        now = by_partition.get((generation, key), 0) if key else whole.get(generation, 0)
        if (pin["revision"] or 0) < now:
            changed[pin["task_id"]] = generation, now
    return [(task, *changed[task["id"]]) for task in tasks if task["id"] in changed]


def _is_side_read(pin: sa.RowMapping, *, triggers: bool) -> bool:
    """Tell whether a task reads the input on the side. A task that the input has triggered does not: it is invalidated
    when the input is replaced."""
    return not triggers or (pin["partition_key"] == "" and pin["cursor_upto"] is None)


def _revisions(tx: Tx, generations: Collection[str]) -> dict[str, int]:
    """Return the last revision of each generation."""
    table = schema.generations
    rows = tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(sorted(generations))))
    return {id_: revision for id_, revision in rows if revision is not None}


def _partition_revisions(tx: Tx, pins: _Rows) -> dict[tuple[str, str], int]:
    """Return the revision of each pinned partition, by generation and key."""
    table = schema.partitions
    revisions: dict[tuple[str, str], int] = {}
    for dataset, generation in {(pin["dataset_id"], pin["generation_id"]) for pin in pins}:
        keys = {pin["partition_key"] for pin in pins if pin["generation_id"] == generation}
        query = sa.select(table.c.partition_key, table.c.revision).where(
            table.c.dataset_id == dataset, table.c.generation_id == generation, table.c.partition_key.in_(keys)
        )
        revisions |= {(generation, key): revision for key, revision in tx.execute(query)}
    return revisions


def _tasks_for_stale(tx: Tx, rebuild: Rebuild, stale: Sequence[tuple[sa.RowMapping, str, int]]) -> list[NewTask]:
    by_partition = [each for each in stale if each[0]["partition_key"] is not None]
    by_cursor = [each[0] for each in stale if each[0]["cursor"] is not None]
    waiting = _pending_work(tx, rebuild, {task["partition_key"] for task, _, _ in by_partition})
    return [
        NewTask(
            job=rebuild.job,
            dedupe_key=dedupe_keys.for_side_input(task["id"], generation, revision),
            dataset_id=task["dataset_id"],
            generation_id=task["generation_id"],
            partition_key=task["partition_key"],
            start=task["start"],
            end=task["end"],
            attributes=task["attributes"],
        )
        for task, generation, revision in by_partition
        if _work_key(rebuild, task) not in waiting
    ] + _range_tasks(tx, rebuild, by_cursor)


def _pending_work(tx: Tx, rebuild: Rebuild, keys: Collection[str]) -> set[tuple[str, str]]:
    """Return the work of pending tasks, by ``_work_key``: they will read current inputs and replace stale output."""
    query = sa.select(_tasks.c.dataset_id, _tasks.c.partition_key).where(
        _tasks.c.edition_id == rebuild.job.edition_id,
        _tasks.c.partition_key.in_(sorted(keys)),
        _tasks.c.status == str(Status.PENDING),
    )
    return {_work_key(rebuild, row) for row in tx.all(query)}


def _work_key(rebuild: Rebuild, task: sa.RowMapping) -> tuple[str, str]:
    """Identify what a task writes: the partition or, for a job that appends, the part of one input in it."""
    appends = rebuild.job.job.update_strategy is UpdateStrategy.APPEND
    return task["dataset_id"] if appends else "", task["partition_key"]


def _range_tasks(tx: Tx, rebuild: Rebuild, tasks: _Rows) -> list[NewTask]:
    """Return the tasks for a job that reads by cursor: one for all that the given tasks have read of a generation."""
    query = sa.select(_pins).where(
        _pins.c.task_id.in_([task["id"] for task in tasks]), _pins.c.cursor_upto.is_not(None)
    )
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pin in tx.all(query):
        first = 0 if pin["cursor_after"] is None else pin["cursor_after"] + 1
        ranges.setdefault((pin["dataset_id"], pin["generation_id"]), []).append((first, pin["cursor_upto"]))
    new_tasks: list[NewTask] = []
    for (dataset, generation), read in sorted(ranges.items()):
        first, last = min(start for start, _ in read), max(upto for _, upto in read)
        # Only the task of an invalidation reads a range again and replaces the output made from it.
        invalidation_id = derive_id("invalidation", "beside", rebuild.job.edition_id, tx.ambient.token())
        new = NewTask(
            job=rebuild.job,
            dedupe_key=dedupe_keys.for_invalidation(invalidation_id),
            dataset_id=dataset,
            generation_id=generation,
            start=first,
            end=last + 1,
            cursor=last,
            invalidation_id=invalidation_id,
        )
        _invalidate(tx, new)
        new_tasks.append(new)
    return new_tasks


def _invalidate(tx: Tx, new: NewTask) -> None:
    """Insert an invalidation for one reader only: it counts as spread from the start."""
    row: Mapping[str, Any] = {
        "id": new.invalidation_id,
        "dataset_id": new.dataset_id,
        "generation_id": new.generation_id,
        "start": new.start,
        "end": new.end,
        "reason": InvalidationReason.REPLACED,
        "created_at": tx.now,
        "spread_at": tx.now,
    }
    tx.insert(schema.invalidations, [row])
    reader = {"invalidation_id": new.invalidation_id, "edition_id": new.job.edition_id, "task_id": new.task_id}
    tx.insert(schema.invalidation_readers, [reader])


def _refuse_late_replies(tx: Tx, edition: str) -> None:
    """Refuse late replies of attempts that timed out: they have read an earlier state, and their tasks are retried."""
    late = sa.and_(_tasks.c.edition_id == edition, _tasks.c.late_lease_id.is_not(None))
    tx.execute(sa.update(_tasks).where(late, _tasks.c.status == str(Status.PENDING)).values(late_lease_id=None))
