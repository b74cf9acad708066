"""The refresh loop remakes output that is stale because of an input with ``refresh: on_change``.

For each job with such inputs it makes two passes, and stores how far each has come (``Mark``), so a step costs as much
as there is new:

    over the job's own partitions, in the order of their commits: each is compared once after its commit
    over the partitions of the inputs, in the same order: output made from a changed one is compared again

Output made from an input as a whole is stale after every change of it. If there is such a partition, the pass over the
job's own partitions starts again once it has reached its end, so a stream of changes starves nothing. It also starts
again when an input becomes another generation, and once a day.

A partition with a pending task gets no other one: that task reads the newest state when it is claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import Join, UpdateStrategy
from qo.core.pipeline.part_maps import PartMap, concerned
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import ROWS_MAX, State, Tx, batches
from qo.dispatcher.tasks import creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.versions.marks import FULL_PASS_S
from qo.dispatcher.views import staleness
from qo.dispatcher.views.staleness import StaleWork
from qo.errors import UsageError

_state, _partitions = schema.operator_state, schema.partitions
_commits, _pins, _tasks = schema.commits, schema.task_inputs, schema.tasks
_KEY = "refresh"  # The key in ``operator_state`` of the mark of a job.
_Heads = Mapping[str, int]  # The revision of the last commit, by generation.


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the comparison of one job has come."""

    inputs: Mapping[int, str]  # The generation that each input reads, by position.
    changes: Mapping[int, int]  # By position: the revision up to which its changes were followed.
    heads: Mapping[int, int]  # By position: its last revision when the pass over the outputs started.
    outputs: Mapping[
        str, tuple[int, int]
    ]  # By generation: compared up to the first revision, to do up to the second.
    whole: frozenset[int]  # Positions of inputs that some output was made from as a whole.
    started_at: datetime  # When the pass over the outputs started.


def tick(state: State, limit: int = ROWS_MAX) -> int:
    """Compare up to ``limit`` partitions of each output and each input. Return how many tasks were created or steps
    taken; 0: there is nothing left to compare for now.
    """
    with state.read() as tx:
        due = [job.edition_id for job in due_jobs(tx, topology.load(tx))]
    did = 0
    for edition in due:
        # One transaction each, so that other writers wait for one job at most.
        with state.write() as tx:
            live = topology.load(tx)
            job = live.jobs.get(edition)
            if job is not None and job.refreshing:
                did += refresh(tx, live, job, min(limit, ROWS_MAX))
    return did


def due_jobs(tx: Tx, live: Topology) -> list[LiveJob]:
    """Return the jobs that have something to compare. Without inputs to refresh, there is no query."""
    if not live.refreshing:
        return []
    jobs = sorted(live.refreshing, key=lambda job: job.edition_id)
    marks, heads = _marks(tx, jobs), _heads(tx, live, jobs)
    return [job for job in jobs if _is_due(tx, live, job, marks.get(job.edition_id), heads)]


def refresh(tx: Tx, live: Topology, job: LiveJob, limit: int) -> int:
    """Take one step for one job. Return how many tasks were created, or 1 if there is more to compare."""
    # Two dispatchers at once would each create a task for the same partition.
    tx.execute(tx.lock(sa.select(schema.jobs.c.id).where(schema.jobs.c.id == job.id))).all()
    heads = _heads(tx, live, [job])
    commit_locks.await_commits(
        tx, heads
    )  # So that nothing appears below the heads, where nobody would look again.
    stored = _marks(tx, [job]).get(job.edition_id)
    mark = _next_mark(tx, live, job, stored, heads)
    mark, created = _compare_outputs(tx, live, job, mark, limit)
    mark, more = _follow_changes(tx, live, job, mark, heads, limit)
    created += more
    if mark != stored:
        _save(tx, job, mark)
    return created or int(_is_due(tx, live, job, mark, heads))


def _is_due(tx: Tx, live: Topology, job: LiveJob, mark: Mark | None, heads: _Heads) -> bool:
    if mark is None or mark.inputs != _followed_generations(live, job):
        return True
    behind = any(mark.changes[at] < heads.get(generation, 0) for at, generation in mark.inputs.items())
    open_ = any(after < heads.get(output, 0) for output, (after, _) in mark.outputs.items())
    return behind or open_ or _starts_again(tx, mark, heads)


def _starts_again(tx: Tx, mark: Mark, heads: _Heads) -> bool:
    """Tell whether partitions have to be compared again."""
    changed = any(mark.heads[at] < heads.get(mark.inputs[at], 0) for at in mark.whole & mark.inputs.keys())
    return changed or tx.now - mark.started_at >= timedelta(seconds=FULL_PASS_S)


def _next_mark(tx: Tx, live: Topology, job: LiveJob, mark: Mark | None, heads: _Heads) -> Mark:
    """Return the mark from which the next step starts. A pass is never cut short: its end is fixed when it starts."""
    inputs = _followed_generations(live, job)
    is_current = mark is not None and mark.inputs == inputs
    if mark is not None and is_current:
        if any(after < upto for after, upto in mark.outputs.values()):
            return mark
        if not _starts_again(tx, mark, heads):
            outputs = {output: (upto, heads.get(output, 0)) for output, (_, upto) in mark.outputs.items()}
            return replace(mark, outputs=outputs)
    now = {at: heads.get(generation, 0) for at, generation in inputs.items()}
    return Mark(
        inputs=inputs,
        # All partitions are compared from here on, so changes up to now need not be followed.
        changes=now,
        heads=now,
        outputs={each.generation_id: (0, heads.get(each.generation_id, 0)) for each in job.outputs},
        whole=frozenset(),
        started_at=tx.now,
    )


def _compare_outputs(tx: Tx, live: Topology, job: LiveJob, mark: Mark, limit: int) -> tuple[Mark, int]:
    """Continue with the job's own partitions. Return the new mark and how many tasks were created."""
    created = 0
    for output, (after, upto) in mark.outputs.items():
        if after >= upto:
            continue
        page = tx.all(
            sa.select(_partitions.c.partition_key, _partitions.c.revision)
            .where(
                _partitions.c.generation_id == output,
                _partitions.c.revision > after,
                _partitions.c.revision <= upto,
            )
            .order_by(_partitions.c.revision)
            .limit(limit)
        )
        keys = [row["partition_key"] for row in page]
        whole = mark.whole | staleness.reads_whole(tx, output, keys, mark.inputs)
        reached = page[-1]["revision"] if len(page) == limit else upto
        mark = replace(mark, whole=whole, outputs={**mark.outputs, output: (reached, upto)})
        created += _create_refreshes(tx, live, job, {output: keys})
    return mark, created


def _follow_changes(
    tx: Tx, live: Topology, job: LiveJob, mark: Mark, heads: _Heads, limit: int
) -> tuple[Mark, int]:
    """Compare output made from changed partitions of inputs. Return the new mark and how many tasks were created."""
    created = 0
    for at, generation in mark.inputs.items():
        after, head = mark.changes[at], heads.get(generation, 0)
        if after >= head:
            continue
        page = tx.all(
            sa.select(_partitions.c.partition_key, _partitions.c.revision)
            .where(
                _partitions.c.generation_id == generation,
                _partitions.c.revision > after,
                _partitions.c.revision <= head,
            )
            .order_by(_partitions.c.revision)
            .limit(limit)
        )
        reached = page[-1]["revision"] if len(page) == limit else head
        mark = replace(mark, changes={**mark.changes, at: reached})
        created += _create_refreshes(tx, live, job, _partitions_made_from(tx, job, at, generation, page))
    return mark, created


def _partitions_made_from(
    tx: Tx, job: LiveJob, position: int, generation_id: str, changed: Sequence[sa.RowMapping]
) -> dict[str, list[str]]:
    """Return the job's current partitions, by generation, that were made from one of the changed ones."""
    partitions: dict[str, set[str]] = {}
    for some in batches(row["partition_key"] for row in changed):
        query = (
            sa.select(_commits.c.generation_id, _commits.c.partition_key)
            .select_from(_pins)
            .join(_tasks, _tasks.c.id == _pins.c.task_id)
            .join(_commits, _commits.c.task_id == _pins.c.task_id)
            .where(
                _pins.c.generation_id == generation_id,
                _pins.c.partition_key.in_(some),
                _pins.c.position == position,
                _tasks.c.edition_id == job.edition_id,
                _commits.c.partition_key.is_not(None),
                _commits.c.replaced_by.is_(None),
            )
        )
        for output, key in tx.execute(query.distinct()):
            partitions.setdefault(output, set()).add(key)
    map_ = job.maps.get(position)
    if map_ is not None:
        # Also those that would read it now, and have not: it is new.
        concerned_keys = {key for row in changed for key in _concerned(map_, row["partition_key"])}
        for output in job.outputs:
            partitions.setdefault(output.generation_id, set()).update(concerned_keys)
    return {output: sorted(keys) for output, keys in sorted(partitions.items())}


def _concerned(map_: PartMap, key: str) -> Sequence[str]:
    try:
        return concerned(map_, key)
    except UsageError:
        return ()  # It was committed before its keys were declared.


def _create_refreshes(tx: Tx, live: Topology, job: LiveJob, places: Mapping[str, Iterable[str]]) -> int:
    """Create tasks for the stale ones of these partitions (by generation). Return how many."""
    positions = {each.position for each in job.refreshing}
    works: dict[tuple[str, str], StaleWork] = {}  # By dataset and partition of the task.
    for output, keys in places.items():
        for each in staleness.stale_work(tx, live, job, output, keys, positions):
            if each.partition_key is not None and each.generation_id == _triggering_generation(
                live, job, each.dataset_id
            ):
                works.setdefault((each.dataset_id or "", each.partition_key), each)
    covered = _find_covered(tx, live, job, works, positions) if works else set[tuple[str, str]]()
    new_tasks = [_task(job, work) for about, work in sorted(works.items()) if about not in covered]
    return sum(one.new for one in creation.create(tx, new_tasks)) if new_tasks else 0


def _find_covered(
    tx: Tx, live: Topology, job: LiveJob, works: Collection[tuple[str, str]], positions: Collection[int]
) -> set[tuple[str, str]]:
    """Return the work that an open task does, or will do, with the current inputs."""
    open_: list[sa.RowMapping] = []
    for some in batches(sorted({key for _, key in works})):
        open_ += tx.all(
            sa.select(
                _tasks.c.id,
                _tasks.c.dataset_id,
                _tasks.c.generation_id,
                _tasks.c.partition_key,
                _tasks.c.status,
                _tasks.c.late_lease_id,
            ).where(
                _tasks.c.edition_id == job.edition_id,
                _tasks.c.partition_key.in_(some),
                _tasks.c.status.in_([Status.PENDING, Status.RUNNING]),
            )
        )
    # The inputs of these tasks are fixed, and they may still commit.
    reading = [
        each["id"] for each in open_ if each["status"] == Status.RUNNING or each["late_lease_id"] is not None
    ]
    outdated = staleness.stale_readers(tx, live, job, reading, positions)
    covered = {
        (each["dataset_id"], each["partition_key"])
        for each in open_
        if each["id"] not in outdated
        and each["generation_id"] == _triggering_generation(live, job, each["dataset_id"])
    }
    if job.job.update_strategy is UpdateStrategy.APPEND and job.job.join is Join.ANY:
        return covered  # The part that each input has appended is replaced separately.
    keys = {key for _, key in covered}
    return {about for about in works if about[1] in keys}


def _task(job: LiveJob, work: StaleWork) -> NewTask:
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_refresh(work.output_revision, work.changed_generation, work.changed_revision),
        dataset_id=work.dataset_id,
        generation_id=work.generation_id,
        partition_key=work.partition_key,
        start=work.start,
        end=work.end,
        attributes=work.attributes,
    )


def _triggering_generation(live: Topology, job: LiveJob, dataset_id: str | None) -> str | None:
    """Return the generation of a dataset that triggers the job now. The reconciler replaces output of other ones."""
    followed = (
        each.generation_id or live.current.get(each.dataset_id)
        for each in job.inputs
        if each.trigger and each.dataset_id == dataset_id
    )
    return next(followed, None)


def _followed_generations(live: Topology, job: LiveJob) -> dict[int, str]:
    """Return the generation that each input with ``refresh: on_change`` reads now, by position."""
    generations = {
        each.position: each.generation_id or live.current.get(each.dataset_id) for each in job.refreshing
    }
    return {at: generation for at, generation in generations.items() if generation is not None}


def _heads(tx: Tx, live: Topology, jobs: Iterable[LiveJob]) -> dict[str, int]:
    """Return the revision of the last commit to each generation that the jobs read or write."""
    table = schema.generations
    generations = {generation for job in jobs for generation in _followed_generations(live, job).values()}
    generations |= {each.generation_id for job in jobs for each in job.outputs}
    heads: dict[str, int] = {}
    for some in batches(sorted(generations)):
        rows = tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(some)))
        heads |= {id_: revision for id_, revision in rows if revision is not None}
    return heads


def _marks(tx: Tx, jobs: Iterable[LiveJob]) -> dict[str, Mark]:
    """Return the stored marks by edition."""
    marks: dict[str, Mark] = {}
    for some in batches(job.edition_id for job in jobs):
        query = sa.select(_state.c.edition_id, _state.c.value).where(
            _state.c.edition_id.in_(some), _state.c.key == _KEY
        )
        marks |= {edition: _mark(value) for edition, value in tx.execute(query)}
    return marks


def _mark(value: Mapping[str, Any]) -> Mark:
    return Mark(
        inputs={int(at): generation for at, generation in value["inputs"].items()},
        changes={int(at): revision for at, revision in value["changes"].items()},
        heads={int(at): revision for at, revision in value["heads"].items()},
        outputs={output: (after, upto) for output, (after, upto) in value["outputs"].items()},
        whole=frozenset(value["whole"]),
        started_at=datetime.fromisoformat(value["begun"]),
    )


def _save(tx: Tx, job: LiveJob, mark: Mark) -> None:
    value = {
        "inputs": {str(at): generation for at, generation in mark.inputs.items()},
        "changes": {str(at): revision for at, revision in mark.changes.items()},
        "heads": {str(at): revision for at, revision in mark.heads.items()},
        "outputs": {output: list(span) for output, span in mark.outputs.items()},
        "whole": sorted(mark.whole),
        "begun": mark.started_at.isoformat(),
    }
    tx.upsert(_state, {"edition_id": job.edition_id, "key": _KEY, "value": value, "updated_at": tx.now})
