"""Which queues no worker takes from.

The database does not know which workers run. But a worker that serves a queue and has nothing to do claims a wake-up at
once: a queue from which nothing runs, and in which a wake-up has waited for long, has no worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from qo.dispatcher.state import scans
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import tasks
from qo.pipeline.registry import Launcher, Registry

UNSERVED_S = 60.0


def find_unserved(tx: Tx, registry: Registry, queues: Sequence[str]) -> dict[str, str]:
    """Return, for each of the queues that no worker takes from, what can be done about it."""
    late = [queue for queue in queues if _waits_for_long(tx, queue)]
    if not late:
        return {}
    busy = set(
        tx.execute(sa.select(tasks.c.queue).where(scans.running(), tasks.c.queue.in_(late)).distinct()).scalars()
    )
    advice = {queue: _advice(registry, queue) for queue in late if queue not in busy}
    return {queue: text for queue, text in advice.items() if text is not None}


def _waits_for_long(tx: Tx, queue: str) -> bool:
    before = tx.now - timedelta(seconds=UNSERVED_S)
    return (
        scans.counted(
            tx, tasks.c.queue == queue, scans.released(), tasks.c.released_at < before, along="released_at", most=1
        )
        > 0
    )


def _advice(registry: Registry, queue: str) -> str | None:
    runtime = registry.of_queue(queue)
    if runtime is None:
        return f"no runtime has the queue {queue} any more: its tasks are released again"
    if runtime.launcher is not Launcher.QUEUE:
        return None  # The dispatcher itself: it is there, since it answers.
    only = "" if len(runtime.queues) == 1 else f" --queue {queue}"
    return f"no worker takes from the queue {queue}: start one with qo worker run --runtime {runtime.name}{only}"
