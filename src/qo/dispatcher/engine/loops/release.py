"""The release loop sends wake-ups for tasks that are due, as far as pauses, pressure and limits allow.

All tasks pass here and nowhere else: new ones, retries after their delay, and tasks that were held back. A task that
may not pass stays withheld, and ``holds`` has the reason.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.gates import Cap, Grants, InFlight, Waiting, closed_reason, open_gates
from qo.core.pipeline.states import EffectKind
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.state import advisory_locks, scans, topology
from qo.dispatcher.state.database import State, Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.schema import holds, tasks
from qo.dispatcher.tasks import backpressure
from qo.dispatcher.versions import side_inputs
from qo.pipeline.registry import DEFAULT, Registry

# Built once: building a statement takes longer than executing it.
_FIRST = Prepared(
    sa.select(tasks.c.id)
    .where(
        tasks.c.edition_id == sa.bindparam("edition"),
        scans.withheld(),
        tasks.c.available_at <= sa.bindparam("now"),
    )
    .order_by(tasks.c.available_at)
    .limit(sa.bindparam("most"))
    .with_for_update(skip_locked=True)  # Nobody else changes them until the commit.
)
_RELEASED = Prepared(
    sa.update(tasks)
    .where(tasks.c.id.in_(sa.bindparam("ids", expanding=True)))
    .values(released_at=sa.bindparam("now"), wakes=tasks.c.wakes + 1)
    .returning(tasks.c.id, tasks.c.edition_id, tasks.c.attempt, tasks.c.wakes, tasks.c.queue)
)
# Limits share locks beyond that: PostgreSQL has room for a few thousand locks of all transactions together.
LOCKS_MAX = 256
# A task that was created before the registry, or the queue of its job, changed.
_MOVED = sa.update(tasks).where(tasks.c.id.in_(sa.bindparam("ids", expanding=True)))
_HOLDS = Prepared(sa.select(holds.c.edition_id, holds.c.reason))
_FREED = sa.delete(holds).where(holds.c.edition_id.in_(sa.bindparam("editions", expanding=True)))

BATCH = 200  # Tasks of one transaction.


def tick(
    state: State,
    limits: Limits,
    limit: int = BATCH,
    registry: Registry = DEFAULT,
    on_release: Callable[[Sequence[Effect]], None] | None = None,
) -> int:
    """Release up to ``limit`` tasks; return how many. ``on_release`` gets the effects, so that nobody has to search the
    outbox for them."""
    with state.read() as tx:
        grants = _decide(tx, topology.load(tx), limits, limit, registry)
        if not grants.release and grants.holds == _holds(tx):
            return 0  # Without work, no write transaction is opened.
    with state.write() as tx:
        effects = release(tx, limits, limit, registry, passed_on=on_release is not None)
    if on_release is not None:
        on_release(effects)
    return len(effects)


def release(
    tx: Tx, limits: Limits, limit: int, registry: Registry = DEFAULT, *, passed_on: bool = False
) -> list[Effect]:
    """Release tasks in the caller's transaction; return their effects. ``passed_on``: the caller passes the wake-ups to
    the publisher after the commit."""
    live = topology.load(tx)
    locked = _lock_limits(tx, live, limits)
    # The longest due first, so that no job starves.
    all_due = _due_editions(tx)
    due = [each for each in all_due if locked is None or each in locked]
    return _release_due(tx, live, limits, limit, registry, all_due, due, passed_on=passed_on)


@dataclass(frozen=True, slots=True)
class Released:
    effects: list[Effect]
    is_more: bool  # Others are at it, or the batch was full: the loop has something to do.


def release_free(tx: Tx, limits: Limits, limit: int, registry: Registry = DEFAULT) -> Released:
    """As ``release``, without waiting: what somebody else is releasing is left to the loop. The caller passes the
    wake-ups on. Holds that have ended without a task in sight are left to the loop, too."""
    live, all_due = topology.load(tx), _due_editions(tx)
    if not all_due:
        return Released([], is_more=False)
    due = all_due
    if tx.on_postgres:
        free = lock_names(tx, _names_of(live, limits, all_due), wait=False)
        # Who had the locks a moment ago may have released some of them: count on what is there now.
        all_due = _due_editions(tx)
        due = [each for each in all_due if each in free]
    effects = _release_due(tx, live, limits, limit, registry, all_due, due, passed_on=True)
    return Released(effects, is_more=len(effects) == limit or len(due) < len(all_due))


def _release_due(
    tx: Tx,
    live: Topology,
    limits: Limits,
    limit: int,
    registry: Registry,
    all_due: Sequence[str],
    due: Sequence[str],
    *,
    passed_on: bool,
) -> list[Effect]:
    """Release tasks of the editions ``due``, whose limits are locked."""
    grants = _grant(tx, live, limits, limit, registry, due)
    effects = _release_tasks(tx, live, registry, grants.release)
    outbox.add(tx, effects, {EffectKind.WAKE} if passed_on else ())
    _store_holds(tx, grants.holds, undecided=set(all_due) - set(due))
    return effects


def _due_editions(tx: Tx) -> list[str]:
    """Return the editions with tasks to release, the longest due first."""
    due = sorted((at, edition) for edition, at in scans.earliest_withheld(tx).items() if at <= tx.now)
    return [edition for _, edition in due]


def _lock_limits(tx: Tx, live: Topology, limits: Limits) -> set[str] | None:
    """Lock every limit that counts for what is due, and return the editions that may be released now.

    Whoever counts and releases under a limit does so alone; otherwise two would fill the same last slot. What another
    dispatcher is releasing is left to it, if there is something else. None on SQLite, where a writer is alone.
    """
    if not tx.on_postgres:
        return None
    return lock_names(tx, _names_of(live, limits, _due_editions(tx)))


def _names_of(live: Topology, limits: Limits, editions: Iterable[str]) -> dict[str, set[str]]:
    return {each: _limit_names(live, limits, each) for each in editions}


def lock_names(tx: Tx, names: Mapping[str, Collection[str]], *, wait: bool = True) -> set[str]:
    """Lock the limits with these names, by edition, and return the editions of which all were obtained.

    ``wait``: for others, if none is free.
    """
    locks = {edition: set(map(_lock_of, of_edition)) for edition, of_edition in names.items()}
    all_locks = set[str]().union(*locks.values())
    obtained = advisory_locks.try_names(tx, "release", all_locks)
    if not obtained and wait:
        advisory_locks.lock_names(tx, "release", all_locks)  # Somebody is at it: go on when they are done.
        obtained = all_locks
    return {edition for edition, of_edition in locks.items() if of_edition <= obtained}


def _lock_of(name: str) -> str:
    return str(zlib.crc32(name.encode()) % LOCKS_MAX)


def _limit_names(live: Topology, limits: Limits, edition: str) -> set[str]:
    """Return the names of the limits that count for an edition."""
    job = live.jobs.get(edition)
    if job is None:
        return set()
    names = {f"queue:{job.queue}"}
    if job.job.operator in limits.operators:
        names.add(f"operator:{job.job.operator}")
    if job.logical_id in live.concurrency:
        names.add(f"job:{job.logical_id}")
    # Limits of a runtime count over its queues.
    return names | {f"cap:{cap.what}" for cap in limits.caps if cap.covers(job.queue, job.job.operator)}


def _decide(tx: Tx, live: Topology, limits: Limits, limit: int, registry: Registry) -> Grants:
    return _grant(tx, live, limits, limit, registry, _due_editions(tx))


def _grant(tx: Tx, live: Topology, limits: Limits, limit: int, registry: Registry, due: Sequence[str]) -> Grants:
    """Decide how many tasks of each of these editions may be released."""
    if not due:
        return Grants({}, {})
    held = _held_editions(tx, live, registry, due)
    held |= side_inputs.holds(tx, live, [edition for edition in due if closed_reason(live, edition, held) is None])
    open_ = [edition for edition in due if closed_reason(live, edition, held) is None]
    # Only open jobs are counted, so the backlog of a paused DAG costs nothing.
    counts = scans.due(tx, open_, limit + 1)
    return open_gates(
        live,
        [Waiting(edition, counts.get(edition, 0)) for edition in due],
        _in_flight(tx, live, open_, limits),
        operators=limits.operators,
        queue_depth=limits.queue_depth,
        caps=limits.caps,
        held=held,
        room=limit,
    )


def _in_flight(tx: Tx, live: Topology, editions: Iterable[str], limits: Limits) -> InFlight:
    """Count tasks in flight, for jobs that have a limit and something to release."""
    jobs = [live.jobs[each] for each in editions]
    logical = sorted({job.logical_id for job in jobs} & live.concurrency.keys())
    operators = sorted({job.job.operator for job in jobs} & limits.operators.keys())
    queues = {job.queue for job in jobs} if limits.queue_depth is not None else set[str]()
    return InFlight(
        scans.in_flight_by(tx, "logical_id", logical),
        scans.in_flight_by(tx, "operator", operators),
        {queue: _depth(tx, queue, limits.queue_depth or 0) for queue in queues},
        _count_caps(tx, limits.caps, jobs),
    )


def _count_caps(tx: Tx, caps: Sequence[Cap], jobs: Sequence[LiveJob]) -> dict[Cap, int]:
    """Count the tasks in flight that each cap covers, for caps that cover one of the jobs."""
    relevant = [cap for cap in caps if any(cap.covers(job.queue, job.job.operator) for job in jobs)]
    if not relevant:
        return {}
    counts = scans.in_flight_of_queues(tx, sorted(set[str]().union(*(cap.queues for cap in relevant))))
    return {
        cap: sum(n for (queue, operator), n in counts.items() if cap.covers(queue, operator)) for cap in relevant
    }


def _depth(tx: Tx, queue: str, most: int) -> int:
    return scans.depth(tx, queue, most)


def _held_editions(tx: Tx, live: Topology, registry: Registry, editions: Iterable[str]) -> dict[str, str]:
    """Return why something other than a limit holds these editions back, and others that backpressure pauses."""
    held = dict(backpressure.paused(tx, live))
    for edition in editions:
        job = live.jobs.get(edition)
        if job is not None and (reason := job.missing or registry.missing_reason(job.job)) is not None:
            held[edition] = reason
    return held


def _release_tasks(tx: Tx, live: Topology, registry: Registry, release: Mapping[str, int]) -> list[Effect]:
    ids: list[str] = []
    for edition, most in release.items():
        ids += [id_ for (id_,) in tx.rows(_FIRST, {"edition": edition, "now": tx.now, "most": most})]
    effects: list[Effect] = []
    moved: dict[str, list[str]] = {}
    for some in batches(ids):
        for task, edition, attempt, wakes, queue in tx.rows(_RELEASED, {"ids": some, "now": tx.now}):
            job = live.jobs[edition]
            if queue != job.queue:
                moved.setdefault(job.queue, []).append(task)
            kind = outbox.KIND_OF[registry.get(job.job.runtime).launcher]
            id_ = outbox.wake_id(task, attempt, wakes)
            effects.append(Effect(id_, kind, job.queue, task, live.depth[edition]))
    for queue, tasks_ in moved.items():
        for some in batches(tasks_):
            tx.execute(_MOVED.values(queue=queue), {"ids": some})
    return effects


def _holds(tx: Tx) -> dict[str, str]:
    return {edition: reason for edition, reason in tx.rows(_HOLDS)}


def _store_holds(tx: Tx, reasons: Mapping[str, str], undecided: Collection[str]) -> None:
    """Store the current reasons; write only what has changed. ``undecided``: editions that keep theirs."""
    stored = _holds(tx)
    changed = {edition: reason for edition, reason in reasons.items() if stored.get(edition) != reason}
    tx.upsert(
        holds,
        *(
            {"edition_id": edition, "reason": reason, "since": tx.now}
            for edition, reason in sorted(changed.items())
        ),
    )
    for ended in batches(sorted(stored.keys() - reasons.keys() - set(undecided))):
        tx.execute(_FREED, {"editions": ended})
