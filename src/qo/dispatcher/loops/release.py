"""Release: tasks that are due get their wake-up, as far as pauses, pressure and limits allow.

New tasks, retries whose rest is over and tasks that something held back all pass here and nowhere else. What may not
pass stays withheld, and ``holds`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import sqlalchemy as sa

from qo.core.flow import pressure
from qo.core.flow.gates import Grants, InFlight, Waiting, concurrency_limits, open_gates
from qo.core.flow.topology import Topology
from qo.dispatcher import outbox, topology
from qo.dispatcher.limits import Limits
from qo.dispatcher.registry import DEFAULT, Registry
from qo.dispatcher.state import scans
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import holds, queues, tasks

_LOCK = 7_161_703  # Any number of our own: who releases holds it until the end of the transaction.


def tick(state: State, limits: Limits, limit: int = 200, registry: Registry = DEFAULT) -> int:
    """Release up to ``limit`` tasks; how many."""
    with state.read() as tx:
        grants = _decide(tx, topology.load(tx), limits, limit, registry)
        if not grants.release and grants.holds == _holds(tx):
            return 0  # Who has nothing to change keeps no writer waiting.
    with state.write() as tx:
        return release(tx, limits, limit, registry)


def release(tx: Tx, limits: Limits, limit: int, registry: Registry = DEFAULT) -> int:
    """As ``tick``, in the caller's transaction."""
    if tx.on_postgres:
        # Of two dispatchers one counts and releases at a time; else both would fill the same last slot.
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    live = topology.load(tx)
    grants = _decide(tx, live, limits, limit, registry)
    effects: list[outbox.Effect] = []
    for edition, most in grants.release.items():
        effects += _released(tx, live, registry, edition, most)
    outbox.add(tx, effects)
    _keep(tx, grants.holds)
    return len(effects)


def _decide(tx: Tx, live: Topology, limits: Limits, limit: int, registry: Registry) -> Grants:
    waiting = _waiting(tx, limit)
    if not waiting:
        return Grants({}, {})
    return open_gates(
        live,
        waiting,
        _in_flight(tx, live, waiting, limits),
        operators=limits.operators,
        held=_held(tx, live, registry),
        room=limit,
    )


def _waiting(tx: Tx, limit: int) -> list[Waiting]:
    """Editions with tasks that are due, the longest due first, so that none is passed over for ever."""
    found: list[tuple[datetime, Waiting]] = []
    earliest = sa.func.min(tasks.c.available_at, type_=tasks.c.available_at.type)
    for edition in scans.distinct(tx, scans.WITHHELD_EDITIONS):
        here = (tasks.c.edition_id == edition, scans.withheld())
        oldest = tx.value(sa.select(earliest).where(*here))
        if oldest is not None and oldest <= tx.now:
            due = scans.counted(tx, *here, tasks.c.available_at <= tx.now, along="available_at", most=limit + 1)
            found.append((oldest, Waiting(edition, due)))
    return [each for _, each in sorted(found, key=lambda pair: (pair[0], pair[1].edition_id))]


def _in_flight(tx: Tx, live: Topology, waiting: list[Waiting], limits: Limits) -> InFlight:
    """Counted for those that have a limit and something to release."""
    jobs = [live.jobs[each.edition_id] for each in waiting if each.edition_id in live.jobs]
    logical = sorted({job.logical_id for job in jobs} & concurrency_limits(live).keys())
    operators = sorted({job.job.operator for job in jobs} & limits.operators.keys())
    return InFlight(scans.in_flight_by(tx, "logical_id", logical), scans.in_flight_by(tx, "operator", operators))


def _held(tx: Tx, live: Topology, registry: Registry) -> dict[str, str]:
    tripped = tx.all(sa.select(queues.c.name, queues.c.reason).where(queues.c.tripped_at.is_not(None)))
    held = pressure.paused_by(live, {row["name"]: row["reason"] or "it is tripped" for row in tripped})
    for edition, job in live.jobs.items():
        if job.job.runtime not in registry.runtimes:
            held[edition] = f"there is no runtime {job.job.runtime!r} in this dispatcher"
    return held


def _released(tx: Tx, live: Topology, registry: Registry, edition: str, most: int) -> list[outbox.Effect]:
    chosen = (
        sa.select(tasks.c.id)
        .where(tasks.c.edition_id == edition, scans.withheld(), tasks.c.available_at <= tx.now)
        .order_by(tasks.c.available_at)
        .limit(most)
    )
    ids = tx.execute(tx.lock(chosen, skip=True)).scalars().all()  # Nobody moves them until we are done.
    moved = tx.execute(
        sa.update(tasks)
        .where(tasks.c.id.in_(ids))
        .values(released_at=tx.now, wakes=tasks.c.wakes + 1)
        .returning(tasks.c.id, tasks.c.attempt, tasks.c.wakes, tasks.c.queue)
    )
    kind = outbox.KIND_OF[registry.get(live.jobs[edition].job.runtime).launcher]
    return [
        outbox.Effect(outbox.wake_id(row.id, row.attempt, row.wakes), kind, row.queue, row.id) for row in moved
    ]


def _holds(tx: Tx) -> dict[str, str]:
    return {row["edition_id"]: row["reason"] for row in tx.all(sa.select(holds))}


def _keep(tx: Tx, wanted: Mapping[str, str]) -> None:
    """Store the reasons as they are now; nothing is written while they stay the same."""
    known = _holds(tx)
    for edition, reason in wanted.items():
        if known.get(edition) != reason:
            tx.upsert(holds, {"edition_id": edition, "reason": reason, "since": tx.now})
    gone = known.keys() - wanted.keys()
    if gone:
        tx.execute(sa.delete(holds).where(holds.c.edition_id.in_(sorted(gone))))
