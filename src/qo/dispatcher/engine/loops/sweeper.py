"""The sweeper: a released task that nobody claimed for long is woken again.

Queues may lose a wake-up, and a worker may drop one as it dies. The task is still in state, so it only needs another.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import sqlalchemy as sa

from qo.core.pipeline.states import OutboxState
from qo.core.pipeline.topology import Topology
from qo.dispatcher.outbox import outbox
from qo.dispatcher.state import scans, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.schema import outbox as effects
from qo.dispatcher.state.schema import tasks
from qo.pipeline.registry import DEFAULT, Registry

PAGES_MAX = 20  # Of one queue, in one tick. What lies behind them is reached when these have been claimed.
DOUBLINGS_MAX = 4


def tick(state: State, sweep_s: float, limit: int = 500, registry: Registry = DEFAULT) -> int:
    """Wake tasks again that were woken more than ``sweep_s`` ago; how many."""
    with state.read() as tx:
        before = tx.now - timedelta(seconds=sweep_s)
        waiting = scans.distinct(tx, scans.RELEASED_QUEUES)
        late = [each for each in waiting if scans.counted(tx, *_late(each, before), along="released_at", most=1)]
    return sum(_sweep(state, queue, sweep_s, limit, registry) for queue in late)


def _sweep(state: State, queue: str, sweep_s: float, limit: int, registry: Registry) -> int:
    woken, after = 0, None
    for _ in range(PAGES_MAX):
        with state.write() as tx:
            live = topology.load(tx)
            rows = _page(tx, queue, tx.now - timedelta(seconds=sweep_s), after, limit)
            woken += _wake(tx, live, _lost(tx, rows, sweep_s), registry)
        if len(rows) < limit:
            break
        after = (rows[-1]["released_at"], rows[-1]["id"])
    return woken


def _late(queue: str, before: datetime) -> tuple[sa.ColumnElement[bool], ...]:
    return (tasks.c.queue == queue, scans.released(), tasks.c.released_at < before)


def _page(
    tx: Tx, queue: str, before: datetime, after: tuple[datetime, str] | None, limit: int
) -> Sequence[sa.RowMapping]:
    columns = (tasks.c.id, tasks.c.edition_id, tasks.c.attempt, tasks.c.wakes, tasks.c.queue, tasks.c.released_at)
    query = sa.select(*columns).where(*_late(queue, before))
    if after is not None:
        query = query.where(sa.tuple_(tasks.c.released_at, tasks.c.id) > after)
    return tx.all(tx.lock(query.order_by(tasks.c.released_at, tasks.c.id).limit(limit), skip=True))


def _lost(tx: Tx, rows: Sequence[sa.RowMapping], sweep_s: float) -> list[sa.RowMapping]:
    """Those whose last wake-up left long ago, or never will.

    Each further one waits twice as long: where tasks only wait their turn, more messages would not help.
    """
    last = {outbox.wake_id(row["id"], row["attempt"], row["wakes"]): row for row in rows}
    query = sa.select(effects.c.id, effects.c.state, effects.c.done_at).where(effects.c.id.in_(sorted(last)))
    known = {row["id"]: row for row in tx.all(query)}
    found: list[sa.RowMapping] = []
    for id, row in last.items():
        effect = known.get(id)
        if effect is not None and effect["state"] == OutboxState.PENDING:
            continue  # The publisher is still at it.
        patience_s = sweep_s * 2 ** min(max(row["wakes"] - 1, 0), DOUBLINGS_MAX)
        left_at = None if effect is None else effect["done_at"]
        if left_at is None or left_at <= tx.now - timedelta(seconds=patience_s):
            found.append(row)
    return found


def _wake(tx: Tx, live: Topology, rows: Sequence[sa.RowMapping], registry: Registry) -> int:
    if not rows:
        return 0
    added: list[outbox.Effect] = []
    for row in rows:
        job = live.jobs.get(row["edition_id"])
        # What was released before its version went away may still run; by default, from a queue.
        runtime = row["queue"] if job is None else job.job.runtime
        if runtime not in registry.runtimes:
            continue
        kind = outbox.KIND_OF[registry.get(runtime).launcher]
        id = outbox.wake_id(row["id"], row["attempt"], row["wakes"] + 1)
        added.append(outbox.Effect(id, kind, row["queue"], row["id"]))
    ids = [each.task_id for each in added]
    tx.execute(sa.update(tasks).where(tasks.c.id.in_(ids)).values(wakes=tasks.c.wakes + 1))
    return outbox.add(tx, added)
