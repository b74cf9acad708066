"""Side inputs of a rebuild: whether they are complete. This is checked before the tasks of the rebuild are released.

``core.pipeline.beside`` decides which job waits for which others. A waiting job is released when

    each of the others  has no open task, no announced input without a task, and no failed task. Failures do not count
                        once somebody has marked the version ready, nor for jobs that the active version has as well;
    the job itself      has been compared with its inputs since its version was staged (``engine.loops.comparison``),
                        so that output made from less input is remade.

Until a version is compared, nothing else is checked. Active versions are not checked at all.
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
from qo.dispatcher.events import tallies
from qo.dispatcher.state import scans, schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks import bulk_changes, failures

MARK = "beside"  # The key in ``operator_state`` of how far an edition was compared.

_state, _tasks = schema.operator_state, schema.tasks
_MARK = Prepared(
    sa.select(_state.c.value).where(_state.c.edition_id == sa.bindparam("edition"), _state.c.key == MARK)
)
_FAILED = Prepared(
    sa.select(_tasks.c.id)
    .where(_tasks.c.edition_id == sa.bindparam("edition"), scans.failed())
    # The order of the index. Without it, PostgreSQL might read the whole table.
    .order_by(_tasks.c.created_at)
    .limit(1)
)

_rebuilds_by_pool: WeakKeyDictionary[sa.Pool, tuple[Topology, Mapping[str, Rebuild]]] = WeakKeyDictionary()


class Lack(StrEnum):
    """What a job lacks before others may read it as a side input."""

    TASKS = "tasks"  # Some are open.
    SUCCESS = "success"  # Some failed.
    EVENTS = "events"  # Some of its input was announced or replaced, and has no task yet.
    COMPARISON = "comparison"  # It has side inputs itself, and was not compared with them.


@dataclass(frozen=True, slots=True)
class Behind:
    job: LiveJob
    lack: Lack


def rebuilds(tx: Tx, live: Topology) -> Mapping[str, Rebuild]:
    """Return which jobs wait for which others, by edition; computed once per topology."""
    pool = tx.pool
    entry = _rebuilds_by_pool.get(pool)
    # Compare by identity, not by epoch: a transaction that has changed the topology may still be rolled back.
    if entry is None or entry[0] is not live:
        entry = _rebuilds_by_pool[pool] = live, find_rebuilds(live)
    return entry[1]


def holds(tx: Tx, live: Topology, editions: Collection[str]) -> dict[str, str]:
    """Return why tasks of these editions may not be released yet, by edition.

    The reason has no numbers: it is stored, and must not change with every task that ends.
    """
    waiting = rebuilds(tx, live)
    return {
        edition: _hold_reason(waiting[edition])
        for edition in editions
        if edition in waiting and is_held(tx, live, waiting[edition])
    }


def is_held(tx: Tx, live: Topology, rebuild: Rebuild) -> bool:
    if not rebuild.waits_for:
        return False
    return (
        not is_compared(tx, rebuild.job.edition_id) or next(behind(tx, live, rebuild.waits_for), None) is not None
    )


def _hold_reason(rebuild: Rebuild) -> str:
    job = rebuild.job
    beside = {each.generation_id for each in rebuild.compared if not each.trigger}
    if beside:
        return f"waits for side inputs: {', '.join(_makers(rebuild, beside))}"
    made_of = {each.generation_id for each in job.composed}
    return f"waits until what it is made of is there: {', '.join(_makers(rebuild, made_of))}"


def _makers(rebuild: Rebuild, read: Collection[str | None]) -> list[str]:
    return sorted(
        job.job.name for job in rebuild.waits_for if any(output.generation_id in read for output in job.outputs)
    )


def behind(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> Iterator[Behind]:
    """Yield each of the jobs whose work is not done. Queries only as far as the caller reads."""
    announced = _announced(tx, live, jobs)
    waiting = rebuilds(tx, live)
    for job in jobs:
        if _is_open(tx, job):
            yield Behind(job, Lack.TASKS)
        elif announced & _read_by(live, job):
            yield Behind(job, Lack.EVENTS)
        elif job.status is VersionStatus.STAGED and _has_open_failure(tx, live, job):
            yield Behind(job, Lack.SUCCESS)
        elif job.edition_id in waiting and not is_compared(tx, job.edition_id):
            yield Behind(job, Lack.COMPARISON)


def _has_open_failure(tx: Tx, live: Topology, job: LiveJob) -> bool:
    """Tell whether a task of the job has failed and was not superseded."""
    if not tx.rows(_FAILED, {"edition": job.edition_id}):
        return False
    return bool(failures.open_page(tx, live, [job.edition_id], None, 1).places)


def _is_open(tx: Tx, job: LiveJob) -> bool:
    always_on = job.job.source is not None and job.job.source.kind is SourceKind.ALWAYS_ON
    return not always_on and (
        scans.has_withheld(tx, job.edition_id)
        or scans.has_in_flight(tx, job.logical_id, job.edition_id)
        or bool(bulk_changes.reviving(tx, [job.edition_id]))
    )


def _read_by(live: Topology, job: LiveJob) -> set[str]:
    """Return the datasets and generations that trigger the job."""
    triggers = [each for each in job.inputs if each.trigger]
    current = (each.generation_id or live.current.get(each.dataset_id, "") for each in triggers)
    return {each.dataset_id for each in triggers} | set(current)


def _announced(tx: Tx, live: Topology, jobs: Sequence[LiveJob]) -> set[str]:
    """Return the inputs of the jobs that have unrouted events (datasets) or open invalidations (generations)."""
    read = {id_ for job in jobs for id_ in _read_by(live, job)}
    return tallies.datasets_with_pending_events(tx, read) | scans.unspread(tx, read)


def mark(tx: Tx, edition: str) -> Mapping[str, Any] | None:
    """Return how far the edition was compared since it was staged; None if not at all."""
    rows = tx.rows(_MARK, {"edition": edition})
    return rows[0][0] if rows else None


def is_compared(tx: Tx, edition: str) -> bool:
    value = mark(tx, edition)
    return value is not None and bool(value.get("done"))


def keep(tx: Tx, edition: str, value: Mapping[str, Any]) -> None:
    tx.upsert(_state, {"edition_id": edition, "key": MARK, "value": dict(value), "updated_at": tx.now})


def forget(tx: Tx, editions: Collection[str]) -> None:
    """Have these editions compared again: their version is staged, or has become active."""
    for some in batches(sorted(editions)):
        tx.execute(sa.delete(_state).where(_state.c.edition_id.in_(some), _state.c.key == MARK))
