"""The monitor: takes back the tasks of dead workers, and runs the sweeper, which repairs the hints, and the purger,
which removes tasks that were kept long enough. It also removes what hints leave behind.

Any number may run at once. Every action is a conditional write, so two monitors that see the same task act once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from qo.core import keys
from qo.core.depth import QueueDepth
from qo.core.discovery import Due
from qo.core.lifecycle import Lapse
from qo.core.retention import Allowance, Policy
from qo.core.rhythm import INBOXES_EVERY_S, ROSTER_EVERY_S
from qo.core.shard import all_shards
from qo.core.sweep import is_lapsed, repair
from qo.core.task import Status
from qo.errors import AccessDenied, CorruptRecord, QoError, UsageError
from qo.queue import roster
from qo.queue.concurrency import gather_cancellable
from qo.queue.depth import DepthReader
from qo.queue.follow_up import follow_up
from qo.queue.hint_markers import HintMarkers
from qo.queue.inbox_recovery import InboxRecovery
from qo.queue.index import Walk
from qo.queue.listing import READS_AT_ONCE
from qo.queue.purger import Purger, PurgeReport
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper, SweepReport
from qo.queue.tasks import Snapshot
from qo.queue.waiting_tasks import WaitingTasks
from qo.store.port import Deletion

log = logging.getLogger(__name__)

LEASE_PAGE_SIZE = 1000
FORGET_AFTER = timedelta(days=1)  # Since a worker was last heard of.
REFUSED_REST_S = 3600.0  # After which a monitor without the right to purge tries again.
SILENT_S = 90.0  # Workers that were silent for so long are looked at closely. Most report every minute or so.
OFF_DUTY_REST_S = 1.0  # How soon a monitor notices that it is on duty.
INTERVALS_MISSED_MAX = 3  # Of sweeps, before a monitor that is not on duty stands in.
CLAIMED_WITHIN = timedelta(seconds=10)  # A claim ends at most this long after its lease key was written.


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorConfig:
    check_interval_s: float = 30.0
    worker_health_threshold_s: float | None = None  # None: by each worker's own heartbeat interval.
    sweep_interval_s: float = 300.0  # 0: never.
    sweep_page_size: int = 1000
    retention: Policy = Policy()  # noqa: RUF009 - an immutable value: every task is kept for ever.
    purge_requests_per_minute: float = 600.0


class DepthSink(Protocol):
    """Where the monitor publishes how much waits in the queue."""

    @property
    def is_wanted(self) -> bool: ...
    def publish(self, depth: QueueDepth | None) -> None: ...


@dataclass(slots=True)
class CheckReport:
    examined: int = 0
    requeued: int = 0
    failed: int = 0
    cancelled: int = 0
    repaired: int = 0
    offered: int = 0  # Tasks that waited too long in the inbox of one worker.
    settled: int = 0  # Waiting tasks that nobody had told that they may start, or must be cancelled.
    stale_workers: list[str] = field(default_factory=list[str])


class Monitor:
    def __init__(self, queue: Queue, config: MonitorConfig | None = None, depths: DepthSink | None = None) -> None:
        """``depths`` gets the depth of the queue after each check, as long as somebody wants it."""
        self._queue = queue
        self._depths = depths
        self._depth_reader = DepthReader(queue)
        self._config = config or MonitorConfig()
        self._walk = Walk(queue.store, keys.LEASES, all_shards(queue.prefix_len), LEASE_PAGE_SIZE, queue.ambient)
        self._roster_at = float("-inf")
        self._last_stale: list[str] = []
        self._logged_stale: set[str] = set()
        self._confirmed_stale: set[str] = set()  # Silent workers whose records say that they should have reported.
        self._waiting_tasks = WaitingTasks(queue)
        self._inboxes = InboxRecovery(queue)
        self._inboxes_at = float("-inf")
        self._sweeper = Sweeper(queue, self._config.sweep_page_size)
        self._purger = Purger(queue, self._config.retention) if self._config.retention.limits else None
        self._purge_at = float("-inf")
        self._markers = HintMarkers(queue)
        self._allowance = Allowance(self._config.purge_requests_per_minute)

    async def run(self, stop: asyncio.Event, *, on_duty: Callable[[], bool] = lambda: True) -> None:
        """Check and sweep at their intervals until stopped, while ``on_duty``. Survives an unreachable store.

        Off duty, it stands in if the sweeper's cursor shows that whoever is on duty does nothing.
        """
        monotonic, sweep_s = self._queue.ambient.monotonic, self._config.sweep_interval_s
        sweep_at = monotonic()
        stand_in_at = sweep_at + sweep_s * (1 + self._queue.ambient.unit())
        while not stop.is_set():
            if on_duty():
                await _log_errors(self.check(roster_every_s=0.9 * ROSTER_EVERY_S))
                if on_duty() and sweep_s > 0 and monotonic() >= sweep_at:
                    sweep_at = monotonic() + sweep_s
                    # Also after a failed check: only a sweep finds tasks whose hints were never written. All monitors
                    # together sweep one page per interval.
                    await _log_errors(self.sweep(unless_within_s=sweep_s * 0.9))
                if on_duty() and self._purger is not None:
                    await _log_errors(self.purge())
                if on_duty():
                    await _log_errors(self._markers.remove_if_due())
            elif sweep_s > 0 and monotonic() >= stand_in_at:
                stand_in_at = monotonic() + sweep_s
                await _log_errors(self._stand_in())
            await _log_errors(self._publish_depth(on_duty()))
            rest_s = self._config.check_interval_s
            try:
                async with asyncio.timeout(rest_s if on_duty() else min(rest_s, OFF_DUTY_REST_S)):
                    await stop.wait()
            except TimeoutError:
                continue

    async def _stand_in(self) -> None:
        if await self._sweeper.is_overdue(INTERVALS_MISSED_MAX * self._config.sweep_interval_s):
            log.warning("no monitor has swept the queue for a while, so this one does, although it is not on duty")
            await _log_errors(self.check())
            await self.sweep(unless_within_s=self._config.sweep_interval_s)

    async def sweep(self, *, unless_within_s: float = 0.0, full: bool = False) -> SweepReport:
        """Sweep the next page, unless a monitor swept one within ``unless_within_s`` seconds. See ``Sweeper.sweep``."""
        return await self._sweeper.sweep(unless_within_s=unless_within_s, full=full)

    async def _publish_depth(self, on_duty: bool) -> None:
        """Show how much waits, if this monitor is on duty and somebody asks; otherwise show nothing."""
        if self._depths is not None:
            shows = on_duty and self._depths.is_wanted
            self._depths.publish(await self._depth_reader.read() if shows else None)

    async def purge(self) -> PurgeReport:
        """Remove tasks that were kept long enough, as far as the budget of requests allows."""
        if self._purger is None or self._queue.ambient.monotonic() < self._purge_at:
            return PurgeReport(wrapped=True)
        try:
            report = await self._purger.purge(self._allowance)
        except AccessDenied as error:
            self._purge_at = self._queue.ambient.monotonic() + REFUSED_REST_S
            log.error(
                "nothing is purged: %s. Grant the rights (qo policy monitor --purge) or unset retention", error
            )
            return PurgeReport(skipped=True)
        if report.tasks or report.orphans:
            log.info("purged %d tasks and %d objects of large values", report.tasks, report.data)
        return report

    async def check(self, *, roster_every_s: float = 0.0) -> CheckReport:
        """Make one pass over the leases whose minute has come, and over the workers' heartbeats unless that was done
        within ``roster_every_s`` seconds."""
        report = CheckReport()
        passed: set[str] = set()  # Keys seen in this pass: a lease that ends later in its minute stays listed.

        # Keys written during this pass wait for the next one; with short leases, a pass would otherwise never end.
        started_at = await self._queue.store.now()

        def fresh(due: Due) -> bool:
            return due.key not in passed and due.written_at <= started_at

        while due_keys := await self._walk.due(fresh):
            passed.update(due.key for due in due_keys)
            for start in range(0, len(due_keys), READS_AT_ONCE):
                batch = due_keys[start : start + READS_AT_ONCE]
                await gather_cancellable(self._examine(due, report) for due in batch)
        report.settled = await self._waiting_tasks.check()
        if self._queue.ambient.monotonic() >= self._inboxes_at:
            # Where no lookout does it, because all workers lease their shards.
            self._inboxes_at = self._queue.ambient.monotonic() + INBOXES_EVERY_S
            report.offered = await self._inboxes.offer_overdue()
        await self._queue.hints.flush()
        if self._queue.ambient.monotonic() - self._roster_at >= roster_every_s:
            self._roster_at = self._queue.ambient.monotonic()
            self._last_stale = await self._stale_workers()
        report.stale_workers = self._last_stale
        return report

    async def _examine(self, due: Due, report: CheckReport) -> None:
        report.examined += 1
        try:
            snapshot = await self._queue.tasks.load(due.task_id)
        except CorruptRecord as error:
            log.error("%s", error)
            return
        hint = Deletion(due.key, etag=due.etag)
        if snapshot is not None and is_lapsed(snapshot.task, await self._queue.store.now()):
            await self._take_back(snapshot._replace(hints=(hint,)), report)
            return
        if snapshot is not None and snapshot.task.follow_up_due:
            if await self._queue.followers.release(snapshot.task):
                await follow_up(self._queue, snapshot._replace(hints=(hint,)))
            return
        needed = repair(None if snapshot is None else snapshot.task, [due.key])
        if not needed.stale:
            return  # Still running, and its lease ends later in this minute.
        pending = snapshot is not None and snapshot.task.status is Status.PENDING
        if pending and due.listed_at - due.written_at < CLAIMED_WITHIN:
            return  # The claim that wrote this key may still be under way, and needs it.
        if needed.missing is not None and snapshot is not None:
            # Whoever moved the task may have died before writing its new hint: write that first.
            restored = await self._queue.hints.restore(needed.missing, snapshot.task.token)
            report.repaired += restored
        if snapshot is not None and snapshot.task.ended and not await self._queue.followers.release(snapshot.task):
            return
        # Awaited before it is added: others add to the same report meanwhile.
        removed = await self._queue.hints.drop_stale(due.key, due.etag)
        report.repaired += removed

    async def _take_back(self, snapshot: Snapshot, report: CheckReport) -> None:
        ambient = self._queue.ambient
        command = Lapse(ambient.token(), snapshot.task.lease_id, ambient.unit())
        moved = await self._queue.tasks.apply(snapshot, command)
        if not isinstance(moved, Snapshot):
            return  # Its holder, or another monitor, was quicker.
        log.warning("task %s: %s", moved.task.id, moved.task.last_error)
        report.requeued += moved.task.status is Status.PENDING
        report.failed += moved.task.status is Status.FAILED
        report.cancelled += moved.task.status is Status.CANCELLED
        if moved.task.follow_up_due:
            await follow_up(self._queue, moved)

    async def _stale_workers(self) -> list[str]:
        now = await self._queue.store.now()
        threshold_s = self._config.worker_health_threshold_s
        since = now - timedelta(seconds=SILENT_S if threshold_s is None else threshold_s)
        last_reports = await roster.last_heard(self._queue.store)
        # Seldom true: most checks cost no second listing.
        if any(at < now - FORGET_AFTER for at in last_reports.values()):
            for worker_id in await roster.forget_stale(self._queue.store, now - FORGET_AFTER):
                log.info("worker %s was silent for so long that it is forgotten", worker_id)
                last_reports.pop(worker_id, None)
        silent = [worker_id for worker_id, at in last_reports.items() if at < since]
        self._confirmed_stale.intersection_update(silent)
        stale = (
            silent if threshold_s is not None else [each for each in silent if await self._missed_beats(each, now)]
        )
        for worker_id in set(stale) - self._logged_stale:
            log.warning("worker %s was last heard of at %s", worker_id, last_reports[worker_id].isoformat())
        self._logged_stale = set(stale)  # Logged once, until the worker reports again.
        return stale

    async def _missed_beats(self, worker_id: str, now: datetime) -> bool:
        """Whether a silent worker is overdue by the heartbeat interval in its record.

        The record of an overdue worker is not read again, so that with many dead workers a check that fails midway gets
        further the next time.
        """
        if worker_id in self._confirmed_stale:
            return True
        try:
            info = await roster.find(self._queue.store, worker_id)
            is_late = info is not None and info.is_stale(now)
        except (CorruptRecord, UsageError):
            is_late = True  # An unreadable record gives it no longer interval.
        if is_late:
            self._confirmed_stale.add(worker_id)
        return is_late


async def _log_errors(work: Awaitable[object]) -> None:
    """Log any error, so that no failure ends the monitor."""
    try:
        await work
    except QoError as error:
        log.warning("monitor: %s", error)
    except Exception:
        log.exception("monitor: this should not happen; the next round tries again")
