"""Run all tasks of a queue in a test, and report what became of them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from msgspec import structs

from qo.core import keys, wire
from qo.core.poll import Pace
from qo.core.sweep import is_lapsed
from qo.core.task import Status, Task
from qo.core.words import plural
from qo.errors import Unavailable
from qo.queue.listing import pages
from qo.queue.monitor import Monitor
from qo.queue.payload import Payloads
from qo.queue.queue import PAYLOAD_THRESHOLD_BYTES, Queue
from qo.store.port import ObjectStore
from qo.testing.clock import StillClock
from qo.testing.expected import format_value
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.loop.state import State
from qo.worker.worker import Worker

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 10_000
JUMPS_MAX = 2_000  # From one due task to the next.
IDLE_ROUNDS_MAX = 3  # Rounds in which a task was due and nothing ran.
STARTS_MAX = 10
QUICK_PACE = Pace(min_s=0.001, max_s=1.0)
REPORTED_MAX = 20
TRACEBACKS_MAX = 5


class DrainFailed(AssertionError):
    """Tasks failed for good during a drain, or the drain did not end."""


@dataclass(frozen=True, slots=True)
class Drained:
    ended: tuple[Task, ...]  # Those that ended during this drain, in this order.
    remaining: tuple[Task, ...]  # Those that still wait, or that another worker holds.
    attempts: int

    @property
    def completed(self) -> tuple[Task, ...]:
        return tuple(task for task in self.ended if task.status is Status.COMPLETED)

    @property
    def failed(self) -> tuple[Task, ...]:
        return tuple(task for task in self.ended if task.status is Status.FAILED)


async def drain(
    queue: Queue,
    app: App,
    clock: StillClock,
    read_all: Callable[[], list[Task]],
    *,
    for_s: float | None,
    config: WorkerConfig | None,
    executors: Mapping[str, Executor] | None,
) -> Drained:
    """Run what is due, move the clock to the next task that is due, and repeat."""
    config = replace(config or WorkerConfig(worker_id="drain"), stop_when_empty=True, pace=QUICK_PACE)
    until = None if for_s is None else clock.now() + timedelta(seconds=for_s)
    before = {task.id: task.token for task in read_all() if task.ended}
    attempts = idle_rounds = 0
    for jumps in itertools.count():
        attempts_left = ATTEMPTS_MAX - attempts
        started = await _retry_unavailable(partial(_work, queue, app, config, executors, attempts_left))
        attempts += started
        if attempts >= ATTEMPTS_MAX or jumps >= JUMPS_MAX:
            raise DrainFailed(
                f"the drain has not ended after {attempts:,} attempts and {jumps:,} jumps in time; tasks that remain:"
                f"{_list_tasks(_unfinished(read_all()))}"
            )
        next_at = _next_due(read_all(), app)
        if next_at is None or (until is not None and next_at > until):
            break
        idle_rounds = idle_rounds + 1 if next_at <= clock.now() and not started else 0
        if idle_rounds >= IDLE_ROUNDS_MAX:
            break  # The queue is paused.
        clock.reach(next_at)
        if any(is_lapsed(task, clock.now()) for task in read_all()):
            await _requeue_lapsed(queue)
    if until is not None:
        clock.reach(until)
    now = read_all()
    ended = tuple(task for task in now if task.ended and before.get(task.id) != task.token)
    return Drained(ended, tuple(_unfinished(now)), attempts)


async def _work(
    queue: Queue, app: App, config: WorkerConfig, executors: Mapping[str, Executor] | None, attempts_max: int
) -> int:
    """Run the tasks that are due, in a new worker; return the number of attempts."""
    worker = Worker(queue, app, config, executors=executors)

    def stop_at_limit() -> None:
        if worker.stats.started >= attempts_max:
            worker.stop()

    worker.stats.on_change = stop_at_limit
    paused = asyncio.ensure_future(worker.reached(State.PAUSED))
    paused.add_done_callback(lambda _: worker.stop())  # A paused worker would wait until somebody resumes it.
    try:
        await worker.run()
    finally:
        paused.cancel()
    return worker.stats.started


async def _retry_unavailable(work: Callable[[], Awaitable[int]]) -> int:
    """Call ``work`` until the store is available: a worker that cannot start exits, and is started again."""
    for _ in range(STARTS_MAX):
        try:
            return await work()
        except Unavailable as error:
            log.warning("the store is not available: %s", error)
    return await work()


async def _requeue_lapsed(queue: Queue) -> None:
    """Requeue the tasks of dead workers. If the store fails, the next round tries again."""
    try:
        await Monitor(queue).check()
    except Unavailable:
        return


def _next_due(tasks: list[Task], app: App) -> datetime | None:
    """Return when the next task that the app handles is due, or when its lease expires."""
    moments = [
        task.lease_expires_at if task.status is Status.RUNNING else task.available_at
        for task in _unfinished(tasks)
        if app.handler(task.task_type) is not None
    ]
    return min((moment for moment in moments if moment is not None), default=None)


def _unfinished(tasks: list[Task]) -> list[Task]:
    return [task for task in tasks if not task.ended]


async def read_tasks(store: ObjectStore) -> list[Task]:
    """Return all tasks with their payloads, in the order of their last changes."""
    payloads = Payloads(store, PAYLOAD_THRESHOLD_BYTES)
    tasks_by_version: list[tuple[int, Task]] = []
    async for entries in pages(store, keys.TASKS):
        for entry in entries:
            stored = await store.get(entry.key)
            if stored is not None and stored.version is not None:
                task = wire.decode_task(stored.body, entry.key)
                if task.input_ref is not None:
                    task = structs.replace(task, input=await payloads.input(task))
                if task.output_ref is not None:
                    task = structs.replace(task, output=await payloads.output(task))
                tasks_by_version.append((int(stored.version), task))  # Versions in memory are consecutive numbers.
    return [task for _, task in sorted(tasks_by_version, key=lambda each: each[0])]


def failure(drained: Drained) -> DrainFailed:
    """Return an error that lists the failed tasks with their errors."""
    failed = drained.failed
    lines = [f"{len(failed)} of {len(drained.ended)} tasks failed:{_list_tasks(failed)}"]
    lines += [
        f"\n{task.task_type} {task.id}:\n{task.traceback.rstrip()}"
        for task in failed[:TRACEBACKS_MAX]
        if task.traceback
    ]
    return DrainFailed("\n".join(lines))


def _list_tasks(tasks: tuple[Task, ...] | list[Task]) -> str:
    lines = [
        f"\n  {task.task_type}  {format_value(task.input)}  {task.status} after {plural(task.attempt, 'attempt')}: "
        f"{task.last_error}"
        for task in tasks[:REPORTED_MAX]
    ]
    if len(tasks) > REPORTED_MAX:
        lines.append(f"\n  and {len(tasks) - REPORTED_MAX} more")
    return "".join(lines)
