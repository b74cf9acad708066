"""Makes again what is stale because of an input with ``refresh: on_change``.

Of each job with such inputs two things are walked, and how far is remembered (``Mark``), so a step costs as much as is
new:

    its own partitions, in the order of their commits: each is compared once when it was committed
    the partitions of the inputs, in the order of theirs: what was made from one that changed is compared again

What was made from an input as a whole is stale after every change of it. If there is such a partition, the walk over
the job's own partitions begins again once it has come to its end, so changes that keep arriving starve nobody. It also
begins again when an input becomes another generation, and once a day.

A partition for which a task waits gets no other one: that task reads what is newest when it is claimed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.dag import Join, UpdateStrategy
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.engine.marks import FULL_PASS_S
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import ROWS_MAX, State, Tx, batches
from qo.dispatcher.tasks import creation, dedupe_keys
from qo.dispatcher.tasks.creation import NewTask
from qo.dispatcher.views import staleness
from qo.dispatcher.views.staleness import StaleWork

_kept, _partitions = schema.operator_state, schema.partitions
_commits, _pins, _tasks = schema.commits, schema.task_inputs, schema.tasks
_KEY = "refresh"  # Under which the mark of a job is kept.
_Heads = Mapping[str, int]  # The revision of the last commit, by generation.


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the comparison of one job has come."""

    inputs: Mapping[int, str]  # The generation that each input reads, by position.
    changes: Mapping[int, int]  # By position: up to which revision its changes were followed.
    heads: Mapping[int, int]  # By position: its last revision when the walk began at the first partition.
    outputs: Mapping[
        str, tuple[int, int]
    ]  # By generation: compared up to the first revision, next up to the second.
    whole: frozenset[int]  # Positions that something was made from as a whole.
    begun: datetime


def tick(state: State, limit: int = ROWS_MAX) -> int:
    """Compare up to ``limit`` partitions of each output and each input; how many tasks were made, or steps taken.

    0: there is nothing left to compare for now.
    """
    with state.read() as tx:
        due = [job.edition_id for job in due_jobs(tx, topology.load(tx))]
    did = 0
    for edition in due:
        # A transaction each: nobody waits for longer than one job takes.
        with state.write() as tx:
            live = topology.load(tx)
            job = live.jobs.get(edition)
            if job is not None and job.refreshing:
                did += refresh(tx, live, job, min(limit, ROWS_MAX))
    return did


def due_jobs(tx: Tx, live: Topology) -> list[LiveJob]:
    """The jobs that there is something to compare for. Without such jobs, this asks for nothing."""
    if not live.refreshing:
        return []
    jobs = sorted(live.refreshing, key=lambda job: job.edition_id)
    marks, heads = _marks(tx, jobs), _heads(tx, live, jobs)
    return [job for job in jobs if _is_due(tx, live, job, marks.get(job.edition_id), heads)]


def refresh(tx: Tx, live: Topology, job: LiveJob, limit: int) -> int:
    """One step for one job."""
    # Two dispatchers at once would each make a task for the same partition.
    tx.execute(tx.lock(sa.select(schema.jobs.c.id).where(schema.jobs.c.id == job.id))).all()
    heads = _heads(tx, live, [job])
    stored = _marks(tx, [job]).get(job.edition_id)
    mark = _advanced(tx, live, job, stored, heads)
    mark, made = _compare_outputs(tx, live, job, mark, limit)
    mark, more = _follow_changes(tx, live, job, mark, heads, limit)
    made += more
    if mark != stored:
        _save(tx, job, mark)
    return made or int(_is_due(tx, live, job, mark, heads))


def _is_due(tx: Tx, live: Topology, job: LiveJob, mark: Mark | None, heads: _Heads) -> bool:
    if mark is None or mark.inputs != _followed(live, job):
        return True
    behind = any(mark.changes[at] < heads.get(generation, 0) for at, generation in mark.inputs.items())
    open_ = any(after < heads.get(output, 0) for output, (after, _) in mark.outputs.items())
    return behind or open_ or _begins_again(tx, mark, heads)


def _begins_again(tx: Tx, mark: Mark, heads: _Heads) -> bool:
    """Whether partitions that were compared have to be once more."""
    changed = any(mark.heads[at] < heads.get(mark.inputs[at], 0) for at in mark.whole & mark.inputs.keys())
    return changed or tx.now - mark.begun >= timedelta(seconds=FULL_PASS_S)


def _advanced(tx: Tx, live: Topology, job: LiveJob, mark: Mark | None, heads: _Heads) -> Mark:
    """Where the next step begins. A walk is never cut short: it ends where it was to end when it began."""
    inputs = _followed(live, job)
    known = mark is not None and mark.inputs == inputs
    if mark is not None and known:
        if any(after < upto for after, upto in mark.outputs.values()):
            return mark
        if not _begins_again(tx, mark, heads):
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
        begun=tx.now,
    )


def _compare_outputs(tx: Tx, live: Topology, job: LiveJob, mark: Mark, limit: int) -> tuple[Mark, int]:
    """Go on with the job's own partitions; how many tasks were made."""
    made = 0
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
        made += _make_again(tx, live, job, {output: keys})
    return mark, made


def _follow_changes(
    tx: Tx, live: Topology, job: LiveJob, mark: Mark, heads: _Heads, limit: int
) -> tuple[Mark, int]:
    """Compare again what was made from partitions of the inputs that have changed; how many tasks were made."""
    made = 0
    for at, generation in mark.inputs.items():
        after, head = mark.changes[at], heads.get(generation, 0)
        if after >= head:
            continue
        page = tx.all(
            sa.select(_partitions.c.partition_key, _partitions.c.revision)
            .where(_partitions.c.generation_id == generation, _partitions.c.revision > after)
            .order_by(_partitions.c.revision)
            .limit(limit)
        )
        reached = page[-1]["revision"] if len(page) == limit else head
        mark = replace(mark, changes={**mark.changes, at: reached})
        made += _make_again(tx, live, job, _made_from(tx, job, at, generation, page))
    return mark, made


def _made_from(
    tx: Tx, job: LiveJob, position: int, generation_id: str, changed: Sequence[sa.RowMapping]
) -> dict[str, list[str]]:
    """The partitions of the job, by generation, that stand and were made from one of those."""
    found: dict[str, set[str]] = {}
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
            found.setdefault(output, set()).add(key)
    return {output: sorted(keys) for output, keys in sorted(found.items())}


def _make_again(tx: Tx, live: Topology, job: LiveJob, places: Mapping[str, Iterable[str]]) -> int:
    """Make tasks for what is stale in these partitions, by generation; how many."""
    positions = {each.position for each in job.refreshing}
    works: dict[tuple[str, str], StaleWork] = {}  # By what a task is about: dataset and partition.
    for output, keys in places.items():
        for each in staleness.stale_work(tx, live, job, output, keys, positions):
            if each.partition_key is not None and each.generation_id == _triggering(live, job, each.dataset_id):
                works.setdefault((each.dataset_id or "", each.partition_key), each)
    covered = _covered(tx, live, job, works, positions) if works else set[tuple[str, str]]()
    wanted = [_task(job, work) for about, work in sorted(works.items()) if about not in covered]
    return sum(one.new for one in creation.create(tx, wanted)) if wanted else 0


def _covered(
    tx: Tx, live: Topology, job: LiveJob, works: Collection[tuple[str, str]], positions: Collection[int]
) -> set[tuple[str, str]]:
    """What an open task will make, or makes, from the inputs as they are now."""
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
    # These have decided what they read, and may yet commit what they make of it.
    reading = [
        each["id"] for each in open_ if each["status"] == Status.RUNNING or each["late_lease_id"] is not None
    ]
    outdated = staleness.stale_readers(tx, live, job, reading, positions)
    fit = {
        (each["dataset_id"], each["partition_key"])
        for each in open_
        if each["id"] not in outdated and each["generation_id"] == _triggering(live, job, each["dataset_id"])
    }
    if job.job.update_strategy is UpdateStrategy.APPEND and job.job.join is Join.ANY:
        return fit  # What each input has added is replaced by itself.
    keys = {key for _, key in fit}
    return {about for about in works if about[1] in keys}


def _task(job: LiveJob, work: StaleWork) -> NewTask:
    return NewTask(
        job=job,
        dedupe_key=dedupe_keys.for_refresh(work.made, work.changed_generation, work.changed_revision),
        dataset_id=work.dataset_id,
        generation_id=work.generation_id,
        partition_key=work.partition_key,
        start=work.start,
        end=work.end,
        attributes=work.attributes,
    )


def _triggering(live: Topology, job: LiveJob, dataset_id: str | None) -> str | None:
    """The generation of a dataset that triggers the job now. What another one triggered, the reconciler replaces."""
    followed = (
        each.generation_id or live.current.get(each.dataset_id)
        for each in job.inputs
        if each.trigger and each.dataset_id == dataset_id
    )
    return next(followed, None)


def _followed(live: Topology, job: LiveJob) -> dict[int, str]:
    """The generation that each input with ``refresh: on_change`` reads now, by position; without those of none."""
    found = {each.position: each.generation_id or live.current.get(each.dataset_id) for each in job.refreshing}
    return {at: generation for at, generation in found.items() if generation is not None}


def _heads(tx: Tx, live: Topology, jobs: Iterable[LiveJob]) -> dict[str, int]:
    """The revision of the last commit to each generation that the jobs read or make."""
    table = schema.generations
    wanted = {generation for job in jobs for generation in _followed(live, job).values()}
    wanted |= {each.generation_id for job in jobs for each in job.outputs}
    found: dict[str, int] = {}
    for some in batches(sorted(wanted)):
        rows = tx.execute(sa.select(table.c.id, table.c.revision).where(table.c.id.in_(some)))
        found |= {id_: revision for id_, revision in rows if revision is not None}
    return found


def _marks(tx: Tx, jobs: Iterable[LiveJob]) -> dict[str, Mark]:
    """By edition."""
    found: dict[str, Mark] = {}
    for some in batches(job.edition_id for job in jobs):
        query = sa.select(_kept.c.edition_id, _kept.c.value).where(
            _kept.c.edition_id.in_(some), _kept.c.key == _KEY
        )
        found |= {edition: _mark(value) for edition, value in tx.execute(query)}
    return found


def _mark(value: Mapping[str, Any]) -> Mark:
    return Mark(
        inputs={int(at): generation for at, generation in value["inputs"].items()},
        changes={int(at): revision for at, revision in value["changes"].items()},
        heads={int(at): revision for at, revision in value["heads"].items()},
        outputs={output: (after, upto) for output, (after, upto) in value["outputs"].items()},
        whole=frozenset(value["whole"]),
        begun=datetime.fromisoformat(value["begun"]),
    )


def _save(tx: Tx, job: LiveJob, mark: Mark) -> None:
    value = {
        "inputs": {str(at): generation for at, generation in mark.inputs.items()},
        "changes": {str(at): revision for at, revision in mark.changes.items()},
        "heads": {str(at): revision for at, revision in mark.heads.items()},
        "outputs": {output: list(span) for output, span in mark.outputs.items()},
        "whole": sorted(mark.whole),
        "begun": mark.begun.isoformat(),
    }
    tx.upsert(_kept, {"edition_id": job.edition_id, "key": _KEY, "value": value, "updated_at": tx.now})
