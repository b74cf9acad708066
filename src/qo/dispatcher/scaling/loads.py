"""The load of runtimes: what waits, what runs and where, and how long tasks have run lately.

Each query uses an index and reads a bounded number of rows: a few statements for all runtimes together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa

from qo.api.contract.scaling import RuntimeLoad
from qo.core.task import Status
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import holds, tasks
from qo.pipeline.registry import Registry, Runtime

COUNT_MAX = 10_000  # Waiting tasks of a queue: far more than all its workers can begin with.
RECENT_MAX = 500  # Tasks over which the run time is averaged, of all runtimes together.

_OLDEST = sa.select(sa.func.min(tasks.c.released_at, type_=tasks.c.released_at.type)).where(
    tasks.c.queue == sa.bindparam("queue"), scans.released()
)
_RUNNING = (
    sa.select(tasks.c.queue, tasks.c.worker_id, sa.func.count())
    .where(scans.running())
    .group_by(tasks.c.queue, tasks.c.worker_id)
)
_RECENT = (
    sa.select(tasks.c.queue, tasks.c.started_at, tasks.c.completed_at)
    .where(tasks.c.status == inline(Status.COMPLETED))
    .order_by(tasks.c.created_at.desc())  # As ix_tasks_status has them.
    .limit(RECENT_MAX)
)


def measure_loads(tx: Tx, registry: Registry, runtimes: Iterable[str]) -> list[RuntimeLoad]:
    """Measure these runtimes; one that the registry does not have has no load."""
    running = [(queue, worker, int(count)) for queue, worker, count in tx.execute(_RUNNING)]
    recent = _average_runs(tx)
    held = _count_held(tx)
    return [_measure(tx, registry.runtimes.get(each), each, running, recent, held) for each in runtimes]


def _measure(
    tx: Tx,
    runtime: Runtime | None,
    name: str,
    running: Sequence[tuple[str, str | None, int]],
    recent: Mapping[str, tuple[float, int]],
    held: Mapping[str, int],
) -> RuntimeLoad:
    if runtime is None:
        return RuntimeLoad(runtime=name, waiting=0, running=0, oldest_s=0.0)
    queues = runtime.queues
    own = [(worker, count) for queue, worker, count in running if queue in queues]
    busy: dict[str, int] = {}
    for worker, count in own:
        if worker is not None:
            busy[worker] = busy.get(worker, 0) + count
    total_s = sum(recent[queue][0] for queue in queues if queue in recent)
    runs = sum(recent[queue][1] for queue in queues if queue in recent)
    return RuntimeLoad(
        runtime=name,
        waiting=sum(scans.depth(tx, queue, COUNT_MAX) for queue in queues),
        running=sum(count for _, count in own),
        oldest_s=max(_age_s(tx, queue) for queue in queues),
        task_s=total_s / runs if runs else None,
        in_flight_max=_in_flight_max(runtime),
        held=sum(held.get(queue, 0) for queue in queues),
        busy=busy,
    )


def _age_s(tx: Tx, queue: str) -> float:
    oldest = tx.execute(_OLDEST, {"queue": queue}).scalar()
    return 0.0 if oldest is None else max((tx.now - oldest).total_seconds(), 0.0)


def _average_runs(tx: Tx) -> dict[str, tuple[float, int]]:
    """Return the seconds and the number of the newest tasks that have ended well, by queue."""
    sums: dict[str, tuple[float, int]] = {}
    for queue, began, ended in tx.execute(_RECENT):
        if began is not None and ended is not None:
            seconds, count = sums.get(queue, (0.0, 0))
            sums[queue] = (seconds + max((ended - began).total_seconds(), 0.0), count + 1)
    return sums


def _count_held(tx: Tx) -> dict[str, int]:
    """Count the jobs whose tasks are held back, by queue."""
    live, counts = topology.load(tx), dict[str, int]()
    for edition in tx.execute(sa.select(holds.c.edition_id)).scalars():
        if (job := live.jobs.get(edition)) is not None:
            counts[job.queue] = counts.get(job.queue, 0) + 1
    return counts


def _in_flight_max(runtime: Runtime) -> int | None:
    """Return how many tasks may be in flight: the limit of the runtime, or of its queues if all have one."""
    limits = [runtime.queue_limits.get(queue) for queue in runtime.queues]
    of_queues = None if None in limits else sum(each for each in limits if each is not None)
    limits_set = [each for each in (runtime.max_in_flight, of_queues) if each is not None]
    return min(limits_set, default=None)
