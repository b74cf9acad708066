"""Release: tasks that are due get their wake-up, as far as pauses, pressure and limits allow.

New tasks, retries whose rest is over and tasks that something held back all pass here and nowhere else. What may not
pass stays withheld, and ``holds`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import sqlalchemy as sa

from qo.core.pipeline.gates import Grants, InFlight, Waiting, closed_reason, concurrency_limits, open_gates
from qo.core.pipeline.states import EffectKind
from qo.core.pipeline.topology import Topology
from qo.dispatcher.engine.limits import Limits
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.database import State, Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import holds, tasks
from qo.dispatcher.tasks import backpressure
from qo.dispatcher.versions import side_inputs
from qo.pipeline.registry import DEFAULT, Registry

_LOCK = 7_161_703  # Any number of our own: who releases holds it until the end of the transaction.

# Built once: to build a statement takes longer than to carry it out.
_FIRST = Prepared(
    sa.select(tasks.c.id)
    .where(
        tasks.c.edition_id == sa.bindparam("edition"),
        scans.withheld(),
        tasks.c.available_at <= sa.bindparam("now"),
    )
    .order_by(tasks.c.available_at)
    .limit(sa.bindparam("most"))
    .with_for_update(skip_locked=True)  # Nobody moves them until we are done.
)
_RELEASED = Prepared(
    sa.update(tasks)
    .where(tasks.c.id.in_(sa.bindparam("ids", expanding=True)))
    .values(released_at=sa.bindparam("now"), wakes=tasks.c.wakes + 1)
    .returning(tasks.c.id, tasks.c.edition_id, tasks.c.attempt, tasks.c.wakes, tasks.c.queue)
)
_HOLDS = Prepared(sa.select(holds.c.edition_id, holds.c.reason))
_FREED = sa.delete(holds).where(holds.c.edition_id.in_(sa.bindparam("editions", expanding=True)))

BATCH = 200  # Tasks of one transaction.


def tick(
    state: State,
    limits: Limits,
    limit: int = BATCH,
    registry: Registry = DEFAULT,
    hand: Callable[[Sequence[Effect]], None] | None = None,
) -> int:
    """Release up to ``limit`` tasks; how many. ``hand``: gets the wake-ups, so that nobody has to look for them."""
    with state.read() as tx:
        grants = _decide(tx, topology.load(tx), limits, limit, registry)
        if not grants.release and grants.holds == _holds(tx):
            return 0  # Who has nothing to change keeps no writer waiting.
    with state.write() as tx:
        effects = release(tx, limits, limit, registry, handed=hand is not None)
    if hand is not None:
        hand(effects)
    return len(effects)


def release(
    tx: Tx, limits: Limits, limit: int, registry: Registry = DEFAULT, *, handed: bool = False
) -> list[Effect]:
    """As ``tick``, in the caller's transaction: what is to be done about those that were released. ``handed``: the
    caller hands wake-ups over after it."""
    if tx.on_postgres:
        # Of two dispatchers one counts and releases at a time; else both would fill the same last slot.
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    live = topology.load(tx)
    grants = _decide(tx, live, limits, limit, registry)
    effects = _released(tx, live, registry, grants.release)
    outbox.add(tx, effects, {EffectKind.WAKE} if handed else ())
    _keep(tx, grants.holds)
    return effects


def _decide(tx: Tx, live: Topology, limits: Limits, limit: int, registry: Registry) -> Grants:
    # The longest due first, so that none is passed over for ever.
    due = sorted((at, edition) for edition, at in scans.earliest_withheld(tx).items() if at <= tx.now)
    if not due:
        return Grants({}, {})
    held = _held(tx, live, registry)
    held |= side_inputs.holds(
        tx, live, [edition for _, edition in due if closed_reason(live, edition, held) is None]
    )
    open_ = [edition for _, edition in due if closed_reason(live, edition, held) is None]
    # Nothing is counted of the others: a DAG that is paused costs no more the more it has to do.
    counts = scans.due(tx, open_, limit + 1)
    return open_gates(
        live,
        [Waiting(edition, counts.get(edition, 0)) for _, edition in due],
        _in_flight(tx, live, open_, limits),
        operators=limits.operators,
        queue_depth=limits.queue_depth,
        held=held,
        room=limit,
    )


def _in_flight(tx: Tx, live: Topology, editions: Iterable[str], limits: Limits) -> InFlight:
    """Counted for those that have a limit and something to release."""
    jobs = [live.jobs[each] for each in editions]
    logical = sorted({job.logical_id for job in jobs} & concurrency_limits(live).keys())
    operators = sorted({job.job.operator for job in jobs} & limits.operators.keys())
    queues = {job.queue for job in jobs} if limits.queue_depth is not None else set[str]()
    return InFlight(
        scans.in_flight_by(tx, "logical_id", logical),
        scans.in_flight_by(tx, "operator", operators),
        {queue: _depth(tx, queue, limits.queue_depth or 0) for queue in queues},
    )


def _depth(tx: Tx, queue: str, most: int) -> int:
    return scans.depth(tx, queue, most)


def _held(tx: Tx, live: Topology, registry: Registry) -> dict[str, str]:
    held = dict(backpressure.paused(tx, live))
    for edition, job in live.jobs.items():
        if job.job.runtime not in registry.runtimes:
            held[edition] = f"there is no runtime {job.job.runtime!r} in this dispatcher"
    return held


def _released(tx: Tx, live: Topology, registry: Registry, release: Mapping[str, int]) -> list[Effect]:
    ids: list[str] = []
    for edition, most in release.items():
        ids += [id_ for (id_,) in tx.rows(_FIRST, {"edition": edition, "now": tx.now, "most": most})]
    effects: list[Effect] = []
    for some in batches(ids):
        for task, edition, attempt, wakes, queue in tx.rows(_RELEASED, {"ids": some, "now": tx.now}):
            kind = outbox.KIND_OF[registry.get(live.jobs[edition].job.runtime).launcher]
            effects.append(Effect(outbox.wake_id(task, attempt, wakes), kind, queue, task, live.depth[edition]))
    return effects


def _holds(tx: Tx) -> dict[str, str]:
    return {edition: reason for edition, reason in tx.rows(_HOLDS)}


def _keep(tx: Tx, wanted: Mapping[str, str]) -> None:
    """Store the reasons as they are now; nothing is written while they stay the same."""
    known = _holds(tx)
    changed = {edition: reason for edition, reason in wanted.items() if known.get(edition) != reason}
    tx.upsert(
        holds,
        *({"edition_id": edition, "reason": reason, "since": tx.now} for edition, reason in changed.items()),
    )
    for gone in batches(sorted(known.keys() - wanted.keys())):
        tx.execute(_FREED, {"editions": gone})
