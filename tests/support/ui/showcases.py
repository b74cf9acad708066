"""A queue with a task in every state, workers alive and dead, and a schedule: something for each page to show."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from qo.core.task import Task
from qo.queue import roster
from qo.queue.options import Options
from qo.queue.queue import Claim, Queue
from qo.queue.roster import WorkerInfo
from qo.queue.schedules import Schedules
from qo.store import queue_manifest
from qo.store.port import ObjectStore

WORKER, DEAD = "worker-one", "worker-dead"
ERROR = "ValueError: the invoice has no date"
TRACEBACK = f'Traceback (most recent call last):\n  File "bill.py", line 7, in bill\n{ERROR}'


@dataclass(frozen=True)
class Showcase:
    pending: str
    later: str
    running: str
    completed: str
    failed: str
    cancelled: str
    archived: str


async def queue_on(store: ObjectStore) -> Queue:
    await queue_manifest.create_or_get(store)
    return Queue(store)


async def fill(queue: Queue) -> Showcase:
    pending = await queue.submit("greet", {"name": "ada", "tags": ["first", {"deep": [1, 2]}]})
    later = await queue.submit("greet", {"name": "bob"}, Options(delay_s=3600))
    running = await claimed(queue, await queue.submit("train", {"epochs": 10}), lease_s=900)
    await queue.renew(running, 900, progress={"done": 3, "total": 10})
    completed = await claimed(queue, await queue.submit("greet", {"name": "eve"}))
    await queue.complete(completed, {"said": "hello eve"})
    cancelled = await queue.submit("greet", {"name": "mallory"})
    await queue.cancel(cancelled.id, by="tests", reason="not wanted any more")
    archived = await claimed(queue, await queue.submit("greet", {"name": "old"}))
    await queue.complete(archived, None)
    await queue.archive(archived.task.id)
    failed = await fail(queue, await queue.submit("bill", {"invoice": 41}))
    await hire(queue, WORKER, current=[running.task.id])
    await hire(queue, DEAD, heard_s=600)
    await Schedules(queue).create("nightly-report", task_type="greet", cron="0 3 * * *")
    await queue.hints.flush()
    return Showcase(
        pending=pending.id,
        later=later.id,
        running=running.task.id,
        completed=completed.task.id,
        failed=failed.id,
        cancelled=cancelled.id,
        archived=archived.task.id,
    )


async def claimed(queue: Queue, task: Task, *, lease_s: float = 60.0) -> Claim:
    claim = await queue.claim(task.id, worker_id=WORKER, lease_s=lease_s)
    assert isinstance(claim, Claim)
    return claim


async def fail(queue: Queue, task: Task, error: str = ERROR, traceback: str = TRACEBACK) -> Task:
    claim = await claimed(queue, task)
    return await queue.fail(claim, error, traceback=traceback, permanent=True)


async def hire(queue: Queue, worker_id: str, *, heard_s: float = 0.0, current: list[str] | None = None) -> None:
    """A report as workers write it."""
    now = await queue.store.now()
    heard = now - timedelta(seconds=heard_s)
    info = WorkerInfo(
        worker_id=worker_id,
        started_at=heard - timedelta(hours=2),
        last_heartbeat=heard,
        current_tasks=current or [],
        tasks_completed=1234,
        tasks_failed=5,
        task_types=["greet", "train"],
        slots=4,
        host="machine-7",
        pid=4242,
        requests=98_765,
        dollars=0.12,
    )
    await roster.report(queue.store, info)
