"""The scheduler: submits the tasks of schedules when their time has come.

Any number may run at once. A run's task id is derived from the schedule and the planned time, so all of them submit the
same task. The task is submitted first and the run recorded after it: if a scheduler dies in between, the next one
submits the run again, to no effect, and records it.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from qo.core import keys
from qo.core.schedule import GRACE_S, Overlap, Schedule, due_runs, record_run, run_key
from qo.core.task import Task
from qo.errors import IdempotencyConflict, NotFound, QoError, StoreError, UsageError
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import pages
from qo.queue.options import build
from qo.queue.queue import Queue
from qo.queue.schedules import Schedules, Snapshot, new_task, snapshot
from qo.store.port import Entry

log = logging.getLogger(__name__)

INTERVAL_S = 15.0
SCHEDULES_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one pass over the schedules did. A failed run is still due: the next pass tries it again."""

    schedules: int = 0
    fired: int = 0  # Submitted, or found to be submitted already.
    skipped: int = 0  # Because the run before had not ended.
    failures: tuple[str, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report(
            schedules=self.schedules + other.schedules,
            fired=self.fired + other.fired,
            skipped=self.skipped + other.skipped,
            failures=self.failures + other.failures,
        )


class Scheduler:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._schedules = Schedules(queue)
        self._snapshots: dict[
            str, Snapshot
        ] = {}  # As read last, by key, so that an idle pass costs one LIST and no GET.

    async def run(self, stop: asyncio.Event, *, interval_s: float = INTERVAL_S) -> None:
        """Make one pass per interval until ``stop`` is set. A store that does not answer is tried again at the next."""
        if not interval_s > 0:
            raise UsageError(f"the scheduler's interval must be more than 0 seconds, not {interval_s}")
        while not stop.is_set():
            try:
                await self.tick(grace_s=max(GRACE_S, 2 * interval_s))
            except StoreError as error:
                log.warning("schedules were not checked: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await stop.wait()

    async def tick(self, *, grace_s: float = GRACE_S) -> Report:
        """Make one pass over all schedules. A failure affects only its own schedule, and is in the report."""
        # Read the time before the schedules: a run that another scheduler records in between is then never due here.
        now = await self._queue.store.now()
        entries = [entry async for page in pages(self._queue.store, keys.SCHEDULES) for entry in page]
        self._snapshots = {
            entry.key: self._snapshots[entry.key] for entry in entries if entry.key in self._snapshots
        }
        gate = asyncio.Semaphore(SCHEDULES_AT_ONCE)

        async def visit(entry: Entry) -> Report:
            async with gate:
                try:
                    return await self._visit(entry, now, grace_s)
                except QoError as error:
                    log.warning("%s: %s", entry.key, error)
                    return Report(schedules=1, failures=(f"{entry.key}: {error}",))

        return sum(await gather_cancellable(visit(entry) for entry in entries), Report())

    async def _visit(self, entry: Entry, now: datetime, grace_s: float) -> Report:
        last = self._snapshots.get(entry.key)
        if last is None or last.etag != entry.etag:
            stored = await self._queue.store.get(entry.key)
            if stored is None:
                return Report()  # Deleted since it was listed.
            last = self._snapshots[entry.key] = snapshot(stored, entry.key)
        return await self._fire(last, due_runs(last.schedule, now, grace_s=grace_s), now)

    async def _fire(self, last: Snapshot, instants: list[datetime], now: datetime) -> Report:
        schedule, report = last.schedule, Report(schedules=1)
        task_id: str | None = None
        recorded: datetime | None = None
        for instant in instants:
            try:
                if schedule.overlap == Overlap.SKIP and await self._is_unfinished(
                    task_id or schedule.last_task_id
                ):
                    report += Report(skipped=1)
                else:
                    task_id = (await self._submit(schedule, instant, now)).id
                    report += Report(fired=1)
            except QoError as error:
                log.warning("schedule %s, run of %s: %s", schedule.name, instant.isoformat(), error)
                report += Report(failures=(f"{schedule.name}, run of {instant.isoformat()}: {error}",))
                break
            recorded = instant
        if recorded is not None:
            await self._record(last, recorded, task_id, now)
        return report

    async def _submit(self, schedule: Schedule, instant: datetime, now: datetime) -> Task:
        new = new_task(self._schedules.with_input(schedule), run_key(schedule, instant))
        try:
            return await self._queue.submit(new.task_type, new.input, new.options)
        except IdempotencyConflict:
            # Another scheduler submitted this run before the schedule's input was changed.
            built = build(new, now=now, prefix_len=self._queue.prefix_len, ambient=self._queue.ambient)
            return await self._queue.get(built.id)

    async def _is_unfinished(self, task_id: str | None) -> bool:
        try:
            return task_id is not None and not (await self._queue.get(task_id)).ended
        except NotFound:
            return False  # Somebody removed the task, so it will never end.

    async def _record(self, last: Snapshot, instant: datetime, task_id: str | None, now: datetime) -> None:
        token = self._queue.ambient.token()

        def move(schedule: Schedule) -> Schedule:
            if schedule.created_at != last.schedule.created_at:
                return schedule  # Deleted, and another was created under its name: the run is not of this one.
            return record_run(schedule, instant, task_id, now=now, token=token)

        moved = await self._schedules.apply(last, move)
        if moved is not None:
            self._snapshots[keys.schedule(last.schedule.name)] = moved
