"""Tasks that cannot end before somebody mends what has failed: who waits for all to be done need not wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.rows import rescheduled

STUCK_MAX = 100  # While more tasks are open, none is looked at for whether it can end.

_tasks, _generations = schema.tasks, schema.generations


@dataclass(frozen=True, slots=True)
class Stuck:
    """A task that asks to come back later and has seen all that there is of what it reads; some of that has failed."""

    dag: str
    task_id: str
    job: str
    about: str
    times: int  # So often it was rescheduled.
    reason: str | None
    failed: tuple[str, ...]  # The jobs upstream of which tasks have failed.


def find_stuck(
    tx: Tx, live: Topology, jobs: Sequence[LiveJob], failed: Mapping[str, int], opened: int
) -> tuple[Stuck, ...]:
    """``jobs``: in the order of the data. ``failed``: open failures by edition. ``opened``: how many tasks are open."""
    broken = {edition for edition, n in failed.items() if n}
    if not broken or opened > STUCK_MAX:
        return ()  # Nothing has failed; or there is a lot to do first.
    above = _upstream(live, jobs)
    blocked = {job.edition_id: above[job.edition_id] & broken for job in jobs if above[job.edition_id] & broken}
    query = sa.select(_tasks).where(_tasks.c.edition_id.in_(list(blocked)), _tasks.c.status == Status.PENDING)
    found: list[Stuck] = []
    for row in tx.all(query.order_by(_tasks.c.created_at).limit(STUCK_MAX)):
        again = rescheduled(tx, row)
        if again is None or not _has_seen_all(tx, row["id"]):
            continue
        about = str(row["partition_key"] or row["cursor"])
        names = tuple(sorted({live.jobs[edition].job.name for edition in blocked[row["edition_id"]]}))
        found.append(Stuck(row["dag"], row["id"], row["job"], about, again.times, again.reason, names))
    return tuple(found)


def _upstream(live: Topology, jobs: Sequence[LiveJob]) -> dict[str, frozenset[str]]:
    """By edition, all those that it reads, directly or not, whether they trigger it or not."""
    makers = {output.generation_id: job.edition_id for job in jobs for output in job.outputs}
    above: dict[str, frozenset[str]] = {}
    for job in jobs:
        generations = (each.generation_id or live.current.get(each.dataset_id) or "" for each in job.inputs)
        read = {makers[each] for each in generations if each in makers}
        above[job.edition_id] = frozenset(read).union(*(above.get(each, frozenset()) for each in read))
    return above


def _has_seen_all(tx: Tx, task_id: str) -> bool:
    """Whether nothing was committed to what a task reads since its last attempt began."""
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
