"""Whether what a rebuild reads beside has been made: asked before its tasks are released.

``core.flow.beside`` says who waits for whom. A job that waits is released when

    each of the others  has no task that is open, nothing announced that has not become a task, and, unless somebody
                        has called the version ready all the same, none that failed (of jobs that the version which
                        serves has too, failures are known and do not count);
    and it              was compared with its inputs since its version was staged (``loops.comparison``), so that
                        what it had made earlier from less than there is now is made again.

While a version is not compared yet, no more is asked than whether it is. Nothing is asked about versions that serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.rebuilds import Rebuild, find_rebuilds
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.core.task import Status
from qo.dispatcher.events import tallies
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks import failures

MARK = "beside"  # The key of ``operator_state`` under which is kept how far an edition was compared.

_kept, _tasks = schema.operator_state, schema.tasks
_MARK = Prepared(
    sa.select(_kept.c.value).where(_kept.c.edition_id == sa.bindparam("edition"), _kept.c.key == MARK)
)
_FAILED = Prepared(
    sa.select(_tasks.c.id)
    .where(_tasks.c.edition_id == sa.bindparam("edition"), _tasks.c.status == str(Status.FAILED))
    # As the index has them. To find one of them in any order, PostgreSQL would sooner read the whole table.
    .order_by(_tasks.c.created_at)
    .limit(1)
)

_known: WeakKeyDictionary[sa.Pool, tuple[Topology, Mapping[str, Rebuild]]] = WeakKeyDictionary()


class Lack(StrEnum):
    """What a job still lacks before others may read it beside."""

    TASKS = "tasks"  # Some are open.
    SUCCESS = "success"  # Some failed.
    EVENTS = "events"  # Something of what it reads was announced or replaced, and has not become a task.
    COMPARISON = "comparison"  # It reads something beside itself, and was not compared with that.


@dataclass(frozen=True, slots=True)
class Behind:
    job: LiveJob
    lack: Lack


def rebuilds(tx: Tx, live: Topology) -> Mapping[str, Rebuild]:
    """Who waits for whom, worked out once for each topology."""
    pool = tx.connection.engine.pool
    known = _known.get(pool)
    # The very same one, not only of the same epoch: who has just changed the topology may yet undo that.
    if known is None or known[0] is not live:
        known = _known[pool] = live, find_rebuilds(live)
    return known[1]


def holds(tx: Tx, live: Topology, editions: Collection[str]) -> dict[str, str]:
    """Why tasks of these editions may not be released yet, by edition.

    Without numbers: the reason is stored, and must not change with every task that ends.
    """
    waiting = rebuilds(tx, live)
    return {
        edition: f"waits for inputs read beside: {', '.join(_beside_names(waiting[edition]))}"
        for edition in editions
        if edition in waiting and is_held(tx, live, waiting[edition])
    }


def is_held(tx: Tx, live: Topology, rebuild: Rebuild) -> bool:
    if not rebuild.waits_for:
        return False
    return (
        not is_compared(tx, rebuild.job.edition_id) or next(behind(tx, live, rebuild.waits_for), None) is not None
    )


def _beside_names(rebuild: Rebuild) -> list[str]:
    read = {each.generation_id for each in rebuild.compared if not each.trigger}
    return sorted(
        job.job.name for job in rebuild.waits_for if any(made.generation_id in read for made in job.outputs)
    )


def behind(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> Iterator[Behind]:
    """Those of the jobs whose work is not done, each once. Asks no further than the caller reads."""
    announced = _announced(tx, live, jobs)
    known = rebuilds(tx, live)
    for job in jobs:
        if _is_open(tx, job):
            yield Behind(job, Lack.TASKS)
        elif announced & _read_by(live, job):
            yield Behind(job, Lack.EVENTS)
        elif job.status is VersionStatus.STAGED and _has_open_failure(tx, live, job):
            yield Behind(job, Lack.SUCCESS)
        elif job.edition_id in known and not is_compared(tx, job.edition_id):
            yield Behind(job, Lack.COMPARISON)


def _has_open_failure(tx: Tx, live: Topology, job: LiveJob) -> bool:
    """Whether a task of it has failed, and no other has done its work since."""
    if not tx.rows(_FAILED, {"edition": job.edition_id}):
        return False
    return bool(failures.open_page(tx, live, [job.edition_id], None, 1).places)


def _is_open(tx: Tx, job: LiveJob) -> bool:
    always_on = job.job.source is not None and job.job.source.kind is SourceKind.ALWAYS_ON
    return not always_on and (
        scans.has_withheld(tx, job.edition_id) or scans.has_in_flight(tx, job.logical_id, job.edition_id)
    )


def _read_by(live: Topology, job: LiveJob) -> set[str]:
    """The datasets and generations that start the job."""
    starting = [each for each in job.inputs if each.trigger]
    current = (each.generation_id or live.current.get(each.dataset_id, "") for each in starting)
    return {each.dataset_id for each in starting} | set(current)


def _announced(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> set[str]:
    """Of what the jobs read: datasets with events that are not routed, generations of which something was replaced
    that their readers have not been given again."""
    read = {id_ for job in jobs for id_ in _read_by(live, job)}
    return tallies.datasets_with_pending_events(tx, read) | scans.unspread(tx, read)


# What is kept of the comparison


def mark(tx: Tx, edition: str) -> Mapping[str, Any] | None:
    """How far the edition was compared since it was staged. None: not at all."""
    found = tx.rows(_MARK, {"edition": edition})
    return found[0][0] if found else None


def is_compared(tx: Tx, edition: str) -> bool:
    known = mark(tx, edition)
    return known is not None and bool(known.get("done"))


def keep(tx: Tx, edition: str, value: Mapping[str, Any]) -> None:
    tx.upsert(_kept, {"edition_id": edition, "key": MARK, "value": dict(value), "updated_at": tx.now})


def forget(tx: Tx, editions: Collection[str]) -> None:
    """These editions are to be compared again: their version is staged, or has begun to serve."""
    for some in batches(sorted(editions)):
        tx.execute(sa.delete(_kept).where(_kept.c.edition_id.in_(some), _kept.c.key == MARK))
