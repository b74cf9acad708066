"""Running all tasks of a queue in a test, and telling what became of them."""

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
from qo.core.sweep import lapsed
from qo.core.task import Status, Task
from qo.core.words import plural
from qo.errors import Unavailable
from qo.queue.listing import pages
from qo.queue.monitor import Monitor
from qo.queue.payload import Payloads
from qo.queue.queue import PAYLOAD_THRESHOLD_BYTES, Queue
from qo.store.port import ObjectStore
from qo.testing.clock import StillClock
from qo.testing.wanted import told
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.loop.state import State
from qo.worker.worker import Worker

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 10_000
LEAPS_MAX = 2_000  # From one due task to the next.
IN_VAIN_MAX = 3  # Rounds in which something was due and nothing ran.
BEGINNINGS_MAX = 10
QUICK = Pace(min_s=0.001, max_s=1.0)
REPORTED_MAX = 20
TRACEBACKS_MAX = 5


class DrainFailed(AssertionError):
    """Tasks failed for good during a drain, or there was no end to it."""


@dataclass(frozen=True, slots=True)
class Drained:
    ended: tuple[Task, ...]  # During this drain, in this order.
    left: tuple[Task, ...]  # What still waits, or is held by somebody else.
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
    everything: Callable[[], list[Task]],
    *,
    for_s: float | None,
    config: WorkerConfig | None,
    executors: Mapping[str, Executor] | None,
) -> Drained:
    """Work until nothing is due, go on to when something is, and so on."""
    config = replace(config or WorkerConfig(worker_id="drain"), stop_when_empty=True, pace=QUICK)
    until = None if for_s is None else clock.now() + timedelta(seconds=for_s)
    before = {task.id: task.token for task in everything() if task.ended}
    attempts = in_vain = 0
    for leaps in itertools.count():
        more = ATTEMPTS_MAX - attempts
        started = await _patiently(partial(_work, queue, app, config, executors, more))
        attempts += started
        if attempts >= ATTEMPTS_MAX or leaps >= LEAPS_MAX:
            raise DrainFailed(
                f"no end after {attempts:,} attempts and {leaps:,} leaps in time; what is left:"
                f"{_listed(_open(everything()))}"
            )
        next_at = _next_at(everything(), app)
        if next_at is None or (until is not None and next_at > until):
            break
        in_vain = in_vain + 1 if next_at <= clock.now() and not started else 0
        if in_vain >= IN_VAIN_MAX:
            break  # It is paused.
        clock.reach(next_at)
        if any(lapsed(task, clock.now()) for task in everything()):
            await _take_back(queue)
    if until is not None:
        clock.reach(until)
    now = everything()
    ended = tuple(task for task in now if task.ended and before.get(task.id) != task.token)
    return Drained(ended, tuple(_open(now)), attempts)


async def _work(
    queue: Queue, app: App, config: WorkerConfig, executors: Mapping[str, Executor] | None, attempts_max: int
) -> int:
    """Run what is due, in a worker of its own; how many attempts that were."""
    worker = Worker(queue, app, config, executors=executors)

    def enough() -> None:
        if worker.stats.started >= attempts_max:
            worker.stop()

    worker.stats.changed = enough
    paused = asyncio.ensure_future(worker.reached(State.PAUSED))
    paused.add_done_callback(lambda _: worker.stop())  # It would wait for somebody to resume it.
    try:
        await worker.run()
    finally:
        paused.cancel()
    return worker.stats.started


async def _patiently(work: Callable[[], Awaitable[int]]) -> int:
    """A worker that cannot begin ends, as it should, and whoever runs it begins again."""
    for _ in range(BEGINNINGS_MAX):
        try:
            return await work()
        except Unavailable as error:
            log.warning("the store is away: %s", error)
    return await work()


async def _take_back(queue: Queue) -> None:
    """What dead workers held. A store that fails just now is asked again in the next round."""
    try:
        await Monitor(queue).check()
    except Unavailable:
        return


def _next_at(tasks: list[Task], app: App) -> datetime | None:
    """When the next task that the app handles is due, or is taken back from whoever holds it."""
    moments = [
        task.lease_expires_at if task.status is Status.RUNNING else task.available_at
        for task in _open(tasks)
        if app.handler(task.task_type) is not None
    ]
    return min((moment for moment in moments if moment is not None), default=None)


def _open(tasks: list[Task]) -> list[Task]:
    return [task for task in tasks if not task.ended]


async def everything(store: ObjectStore) -> list[Task]:
    """Every task with its values, in the order of the last changes."""
    payloads = Payloads(store, PAYLOAD_THRESHOLD_BYTES)
    found: list[tuple[int, Task]] = []
    async for entries in pages(store, keys.TASKS):
        for entry in entries:
            stored = await store.get(entry.key)
            if stored is not None and stored.version is not None:
                task = wire.decode_task(stored.body, entry.key)
                if task.input_ref is not None:
                    task = structs.replace(task, input=await payloads.input(task))
                if task.output_ref is not None:
                    task = structs.replace(task, output=await payloads.output(task))
                found.append((int(stored.version), task))  # Versions in memory are numbered through.
    return [task for _, task in sorted(found, key=lambda each: each[0])]


def failure(drained: Drained) -> DrainFailed:
    """All that failed, with why."""
    failed = drained.failed
    lines = [f"{len(failed)} of {len(drained.ended)} tasks failed:{_listed(failed)}"]
    lines += [
        f"\n{task.task_type} {task.id}:\n{task.traceback.rstrip()}"
        for task in failed[:TRACEBACKS_MAX]
        if task.traceback
    ]
    return DrainFailed("\n".join(lines))


def _listed(tasks: tuple[Task, ...] | list[Task]) -> str:
    lines = [
        f"\n  {task.task_type}  {told(task.input)}  {task.status} after {plural(task.attempt, 'attempt')}: "
        f"{task.last_error}"
        for task in tasks[:REPORTED_MAX]
    ]
    if len(tasks) > REPORTED_MAX:
        lines.append(f"\n  and {len(tasks) - REPORTED_MAX} more")
    return "".join(lines)
