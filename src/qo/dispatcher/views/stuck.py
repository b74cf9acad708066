"""Stuck tasks: open tasks that cannot end before a failed task upstream is repaired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import rescheduled

STUCK_MAX = 100  # While more tasks than this are open, none is examined.

_tasks, _generations = schema.tasks, schema.generations


@dataclass(frozen=True, slots=True)
class StuckTask:
    """A task that reschedules itself although it has read all there is, because tasks upstream of it have failed."""

    dag: str
    task_id: str
    job: str
    about: str
    times: int  # How often it was rescheduled.
    reason: str | None
    failed: tuple[str, ...]  # The upstream jobs that have failed tasks.


def find_stuck(
    tx: Tx, live: Topology, jobs: Sequence[LiveJob], failed: Mapping[str, int], open_tasks: int
) -> tuple[StuckTask, ...]:
    """Return the stuck tasks of all pipelines.

    ``jobs``: each after those that it reads. ``failed``: open failures by edition. ``open_tasks``: how many tasks are
    open.
    """
    editions_failed = {edition for edition, n in failed.items() if n}
    if not editions_failed or open_tasks > STUCK_MAX:
        return ()  # Nothing has failed; or there is a lot to do first.
    upstream = _upstream(live, jobs)
    blockers = {job.edition_id: causes for job in jobs if (causes := upstream[job.edition_id] & editions_failed)}
    query = sa.select(_tasks).where(_tasks.c.edition_id.in_(list(blockers)), _tasks.c.status == Status.PENDING)
    stuck: list[StuckTask] = []
    for row in tx.all(query.order_by(_tasks.c.created_at).limit(STUCK_MAX)):
        again = rescheduled(tx, row)
        if again is None or not _has_read_all(tx, row["id"]):
            continue
        about = str(row["partition_key"] or row["cursor"])
        names = tuple(sorted({live.jobs[edition].job.name for edition in blockers[row["edition_id"]]}))
        stuck.append(StuckTask(row["dag"], row["id"], row["job"], about, again.times, again.reason, names))
    return tuple(stuck)


def _upstream(live: Topology, jobs: Sequence[LiveJob]) -> dict[str, frozenset[str]]:
    """Return, by edition, all editions that it reads, directly or indirectly, through triggers or side inputs."""
    writers = {output.generation_id: job.edition_id for job in jobs for output in job.outputs}
    upstream: dict[str, frozenset[str]] = {}
    for job in jobs:
        generations = (each.generation_id or live.current.get(each.dataset_id) or "" for each in job.inputs)
        read = {writers[each] for each in generations if each in writers}
        upstream[job.edition_id] = frozenset(read).union(*(upstream.get(each, frozenset()) for each in read))
    return upstream


def _has_read_all(tx: Tx, task_id: str) -> bool:
    """Tell whether nothing was committed to a task's inputs since its last attempt began."""
    pins, partitions = schema.task_inputs, schema.partitions
    same_partition = sa.and_(
        partitions.c.dataset_id == pins.c.dataset_id,
        partitions.c.generation_id == pins.c.generation_id,
        partitions.c.partition_key == pins.c.partition_key,
    )
    query = (
        sa.select(pins, _generations.c.revision.label("latest"), partitions.c.revision.label("of_partition"))
        .join(_generations, _generations.c.id == pins.c.generation_id)
        .outerjoin(partitions, same_partition)
        .where(pins.c.task_id == task_id)
    )
    return all(
        pin["of_partition"] == pin["revision"]
        if pin["partition_key"]
        else (pin["latest"] or 0) <= (pin["revision"] or 0)
        for pin in tx.all(query)
    )
