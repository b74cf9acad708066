"""The sweeper loop sends another wake-up for each released task that nobody has claimed for long.

A queue may lose a wake-up, and a dying worker may drop one. The task is still in the database, so another wake-up is
enough. Wake-ups in a queue that the registry no longer has are withdrawn: the tasks are released again, to the queue
that their job has now, or are held with the reason.
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

PAGES_MAX = 20  # Pages per queue in one tick. Later ones are reached when these tasks have been claimed.
DOUBLINGS_MAX = 4


def tick(state: State, sweep_s: float, limit: int = 500, registry: Registry = DEFAULT) -> int:
    """Send another wake-up for tasks that were released more than ``sweep_s`` ago; return how many."""
    with state.read() as tx:
        before = tx.now - timedelta(seconds=sweep_s)
        waiting = scans.distinct(tx, scans.RELEASED_QUEUES)
        removed = [each for each in waiting if registry.of_queue(each) is None]
        late = [
            each
            for each in waiting
            if each not in removed and scans.counted(tx, *_late(each, before), along="released_at", most=1)
        ]
    withdrawn = sum(_withdraw(state, queue, limit) for queue in removed)
    return withdrawn + sum(_sweep(state, queue, sweep_s, limit, registry) for queue in late)


def _withdraw(state: State, queue: str, limit: int) -> int:
    withdrawn = 0
    for _ in range(PAGES_MAX):
        with state.write() as tx:
            these = sa.select(tasks.c.id).where(tasks.c.queue == queue, scans.released()).limit(limit)
            ids = tx.execute(tx.lock(these, skip=True)).scalars().all()
            if ids:
                tx.execute(sa.update(tasks).where(tasks.c.id.in_(ids)).values(released_at=None))
        withdrawn += len(ids)
        if len(ids) < limit:
            break
    return withdrawn


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
    """Return the tasks whose last wake-up was sent long ago, or never will be.

    The delay doubles with each wake-up: if tasks only wait for a free worker, more messages do not help.
    """
    last = {outbox.wake_id(row["id"], row["attempt"], row["wakes"]): row for row in rows}
    query = sa.select(effects.c.id, effects.c.state, effects.c.done_at).where(effects.c.id.in_(sorted(last)))
    effects_by_id = {row["id"]: row for row in tx.all(query)}
    lost: list[sa.RowMapping] = []
    for id, row in last.items():
        effect = effects_by_id.get(id)
        if effect is not None and effect["state"] == OutboxState.PENDING:
            continue  # The publisher has not sent it yet.
        patience_s = sweep_s * 2 ** min(max(row["wakes"] - 1, 0), DOUBLINGS_MAX)
        sent_at = None if effect is None else effect["done_at"]
        if sent_at is None or sent_at <= tx.now - timedelta(seconds=patience_s):
            lost.append(row)
    return lost


def _wake(tx: Tx, live: Topology, rows: Sequence[sa.RowMapping], registry: Registry) -> int:
    if not rows:
        return 0
    added: list[outbox.Effect] = []
    for row in rows:
        job = live.jobs.get(row["edition_id"])
        # A task that was released before its version ended may still run; by default, from a queue.
        runtime = registry.of_queue(row["queue"]) if job is None else registry.runtimes.get(job.job.runtime)
        if runtime is None:
            continue
        kind = outbox.KIND_OF[runtime.launcher]
        id = outbox.wake_id(row["id"], row["attempt"], row["wakes"] + 1)
        added.append(outbox.Effect(id, kind, row["queue"], row["id"]))
    ids = [each.task_id for each in added]
    tx.execute(sa.update(tasks).where(tasks.c.id.in_(ids)).values(wakes=tasks.c.wakes + 1))
    return outbox.add(tx, added)
