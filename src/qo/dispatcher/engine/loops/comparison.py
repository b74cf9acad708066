"""Compares what a staged version has made with what it reads beside, once each time that it is staged.

A version can be staged with partitions of an earlier time: it was abandoned, or it served by force while its inputs
were incomplete and was rolled back. Nothing starts a task again because of an input that it reads beside. So once
everything is made that these inputs are made from, whatever was made from an earlier state of them is made again, and
only then is more of the job released (``dispatcher.beside``). That happens once: inputs that change later are for the
job as they are for one that serves.
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
    """Take each job that is to be compared one step on; how many tasks were made, or steps taken."""
    with state.read() as tx:
        live = topology.load(tx)
        due = [
            edition for edition, rebuild in side_inputs.rebuilds(tx, live).items() if _is_due(tx, live, rebuild)
        ]
    did = 0
    for edition in due:
        # A transaction each: nobody waits for longer than one job takes.
        with state.write() as tx:
            live = topology.load(tx)
            rebuild = side_inputs.rebuilds(tx, live).get(edition)
            if rebuild is not None and _is_due(tx, live, rebuild):
                did += _step(tx, live, rebuild, min(limit, ROWS_MAX))
    return did


def _is_due(tx: Tx, live: Topology, rebuild: Rebuild) -> bool:
    """Whether the job is still to be compared, and all that it is compared with is there.

    An attempt of it that is under way has decided what it reads before this, and may yet commit what it makes of it.
    """
    job = rebuild.job
    return (
        not side_inputs.is_compared(tx, job.edition_id)
        and not scans.has_in_flight(tx, job.logical_id, job.edition_id)
        and next(side_inputs.behind(tx, live, rebuild.makers), None) is None
    )


def _step(tx: Tx, live: Topology, rebuild: Rebuild, limit: int) -> int:
    if behind := reconciler.behind(tx, live, rebuild.makers):
        # That none of their tasks is open means something only when none is missing.
        made = sum(reconciler.reconcile(tx, live, job, limit) for job in behind)
        return made + len(behind) - len(reconciler.behind(tx, live, behind))
    edition = rebuild.job.edition_id
    known = side_inputs.mark(tx, edition) or {}
    page = _page(tx, edition, known.get("after", ""), limit)
    wanted = _again(tx, rebuild, _stale(tx, rebuild, _standing(tx, page)))
    made = sum(one.new for one in creation.create(tx, wanted))
    if len(page) == limit:
        side_inputs.keep(tx, edition, {"after": page[-1]["dedupe_key"]})
    else:
        _shut_out_late_replies(tx, edition)
        side_inputs.keep(tx, edition, {"done": True})
    return max(made, 1)


def _page(tx: Tx, edition: str, after: str, limit: int) -> _Rows:
    """The next tasks of the edition that are completed, in the order of their keys."""
    completed = _tasks.c.status + "" == str(Status.COMPLETED)  # No index of the status: it has another order.
    query = sa.select(_tasks).where(_tasks.c.edition_id == edition, _tasks.c.dedupe_key > after, completed)
    return tx.all(query.order_by(_tasks.c.dedupe_key).limit(limit))


def _standing(tx: Tx, tasks: _Rows) -> _Rows:
    """Those of which something is committed that was not replaced."""
    query = sa.select(_commits.c.task_id).where(
        _commits.c.task_id.in_([task["id"] for task in tasks]), _commits.c.replaced_by.is_(None)
    )
    standing = set(tx.execute(query.distinct()).scalars())
    return [task for task in tasks if task["id"] in standing]


def _stale(tx: Tx, rebuild: Rebuild, tasks: _Rows) -> list[tuple[sa.RowMapping, str, int]]:
    """Those that have read an earlier state of an input, with the generation of it and the revision that it has now."""
    inputs = {each.position: each for each in rebuild.compared}
    query = sa.select(_pins).where(
        _pins.c.task_id.in_([task["id"] for task in tasks]), _pins.c.position.in_(list(inputs))
    )
    pins = [pin for pin in tx.all(query) if _is_read_beside(pin, starts=inputs[pin["position"]].trigger)]
    whole = _revisions(tx, {pin["generation_id"] for pin in pins})
    by_partition = _partition_revisions(tx, [pin for pin in pins if pin["partition_key"]])
    found: dict[str, tuple[str, int]] = {}
    for pin in pins:
        generation, key = pin["generation_id"], pin["partition_key"]
        now = by_partition.get((generation, key), 0) if key else whole.get(generation, 0)
        if (pin["revision"] or 0) < now:
            found[pin["task_id"]] = generation, now
    return [(task, *found[task["id"]]) for task in tasks if task["id"] in found]


def _is_read_beside(pin: sa.RowMapping, *, starts: bool) -> bool:
    """Of an input that starts tasks: not by one that it has started, which is told when its input is replaced."""
    return not starts or (pin["partition_key"] == "" and pin["cursor_upto"] is None)


def _revisions(tx: Tx, generations: Collection[str]) -> dict[str, int]:
    """The last revision of each."""
    table = schema.generations
    rows = tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(sorted(generations))))
    return {id_: revision for id_, revision in rows if revision is not None}


def _partition_revisions(tx: Tx, pins: _Rows) -> dict[tuple[str, str], int]:
    """By generation and key."""
    table = schema.partitions
    found: dict[tuple[str, str], int] = {}
    for dataset, generation in {(pin["dataset_id"], pin["generation_id"]) for pin in pins}:
        keys = {pin["partition_key"] for pin in pins if pin["generation_id"] == generation}
        query = sa.select(table.c.partition_key, table.c.revision).where(
            table.c.dataset_id == dataset, table.c.generation_id == generation, table.c.partition_key.in_(keys)
        )
        found |= {(generation, key): revision for key, revision in tx.execute(query)}
    return found


def _again(tx: Tx, rebuild: Rebuild, stale: Sequence[tuple[sa.RowMapping, str, int]]) -> list[NewTask]:
    by_partition = [each for each in stale if each[0]["partition_key"] is not None]
    by_cursor = [each[0] for each in stale if each[0]["cursor"] is not None]
    waiting = _waiting(tx, rebuild, {task["partition_key"] for task, _, _ in by_partition})
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
        if _work(rebuild, task) not in waiting
    ] + _ranges_again(tx, rebuild, by_cursor)


def _waiting(tx: Tx, rebuild: Rebuild, keys: Collection[str]) -> set[tuple[str, str]]:
    """The work of tasks that wait, as ``_work`` has it: they will read what there is now, and replace what is stale."""
    query = sa.select(_tasks.c.dataset_id, _tasks.c.partition_key).where(
        _tasks.c.edition_id == rebuild.job.edition_id,
        _tasks.c.partition_key.in_(sorted(keys)),
        _tasks.c.status == str(Status.PENDING),
    )
    return {_work(rebuild, row) for row in tx.all(query)}


def _work(rebuild: Rebuild, task: sa.RowMapping) -> tuple[str, str]:
    """What a task makes: the partition or, of a job that appends, what one of its inputs adds to it."""
    appends = rebuild.job.job.update_strategy is UpdateStrategy.APPEND
    return task["dataset_id"] if appends else "", task["partition_key"]


def _ranges_again(tx: Tx, rebuild: Rebuild, tasks: _Rows) -> list[NewTask]:
    """Of a job that follows cursors: one task for all that these have read of each generation."""
    query = sa.select(_pins).where(
        _pins.c.task_id.in_([task["id"] for task in tasks]), _pins.c.cursor_upto.is_not(None)
    )
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pin in tx.all(query):
        first = 0 if pin["cursor_after"] is None else pin["cursor_after"] + 1
        ranges.setdefault((pin["dataset_id"], pin["generation_id"]), []).append((first, pin["cursor_upto"]))
    found: list[NewTask] = []
    for (dataset, generation), read in sorted(ranges.items()):
        first, last = min(start for start, _ in read), max(upto for _, upto in read)
        # Only what an invalidation asks for reads a range once more, and takes the place of what was made of it.
        why = derive_id("invalidation", "beside", rebuild.job.edition_id, tx.ambient.token())
        new = NewTask(
            job=rebuild.job,
            dedupe_key=dedupe_keys.for_invalidation(why),
            dataset_id=dataset,
            generation_id=generation,
            start=first,
            end=last + 1,
            cursor=last,
            invalidation_id=why,
        )
        _invalidate(tx, new)
        found.append(new)
    return found


def _invalidate(tx: Tx, new: NewTask) -> None:
    """Write down the invalidation that one job alone is to read again for: it is spread from the start."""
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


def _shut_out_late_replies(tx: Tx, edition: str) -> None:
    """Of attempts that timed out, and have read what was there before: their tasks are tried again."""
    late = sa.and_(_tasks.c.edition_id == edition, _tasks.c.late_lease_id.is_not(None))
    tx.execute(sa.update(_tasks).where(late, _tasks.c.status == str(Status.PENDING)).values(late_lease_id=None))
