"""A model of how many requests a queue makes: the figures of `qo cost`.

Metered runs of real workers are held against it. It covers the normal case, and leaves out what depends on the tasks:
failed attempts (each costs another claim and two PUTs), large inputs and outputs, clients that wait for results, and
more delayed tasks than one page holds (the lookout then needs several LISTs).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from qo.core.board import PREFERRED, Reader, WatchTimes, rest_max_s, turn_s
from qo.core.cost_extras import NO_EXTRAS, Extras, flows_per_day, serving_per_day
from qo.core.discovery import IndexMode
from qo.core.pricing import DAY_S, MONTH_D, STORAGE_PRICE_GB_MONTH, Operation, Requests, add, dollars, multiply
from qo.errors import UsageError

GB = 10**9
VERSIONS_PER_TASK = 3  # Pending, running, completed.
PAGE = 1000  # Keys of a LIST, versions of a listing of versions, objects of a delete of many.

# Intervals that are no settings. The modules that keep them take them from here.
DELETE_EVERY_S = 0.25  # Hints are removed this often, or when a batch is full.
DELETE_ONE_BY_ONE_MAX = 3  # So few are removed by single requests, which S3 does not charge for.
POST_EVERY_S = 0.25  # Notices are posted this often, the first one at once.
COUNT_EVERY_S = 120.0  # The lookout counts the workers.
COUNT_LEASED_EVERY_S = 60.0  # The same where workers lease shards.
LOOK_ANYWAY_EVERY_S = 3600.0  # A worker lists without a reason.
ORDERS_EVERY_S = 300.0  # A worker reads the orders without a reason.
SCAN_EVERY_S = 60.0  # In hybrid mode, the lookout reads a page of tasks.
ROSTER_EVERY_S = 60.0  # The monitor looks for silent workers.
INBOXES_EVERY_S = 600.0  # The lookout, and the monitor, list the inboxes of workers without a reason.
INBOXES_IN_USE_S = 600.0  # For so long after a task was routed, the lookout lists them in each round.
MARKERS_EVERY_S = 900.0  # The monitor removes delete markers of hints.
MARKED_PREFIXES = 4
VIEW_S = 30.0  # Whoever wakes workers, or routes tasks to them, lists them this often while it submits, …
VIEW_RECORDS_MAX = 16  # … and reads so many of their records.
MEMBERS_READ = 4  # Where shards are leased, so many records are read again with each count: one may be paused now.
# A task that runs for so long gets a lease hint; most end before, and need no hint but the one that they were found
# through. It must be well below STALE_AFTER: others then take that hint for one that was left behind.
INDEX_LEASE_AFTER_S = 2.0
BEATS_LATE_MAX = 0.2  # Heartbeats come up to this part of their interval late.


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals and page sizes of a queue's requests. The defaults are those of the settings."""

    poll_min_s: float = 0.1  # The first pause after a poll that found nothing; each further one is doubled ...
    poll_max_s: float = 5.0  # ... up to this, or less if there are few workers.
    ready_page: int = 100
    log_scan_page: int = 50
    log_scan_memory: int = 200_000  # Ended tasks that a scan remembers and does not read again.
    heartbeat_s: float = 60.0
    change_s: float = 20.0  # A worker reports a change of its running tasks this often at most.
    check_s: float = 30.0
    waiting_s: float = 600.0  # Between listings of the tasks that wait for others.
    sweep_s: float = 300.0  # 0 for never.
    sweep_page: int = 1000
    lease_s: float = 60.0
    delete_batch: int = 100

    @property
    def renew_s(self) -> float:
        return self.lease_s / 3


DEFAULT_RHYTHM = Rhythm()


class Delivery(StrEnum):
    """How workers learn of new tasks."""

    BOARD = "board"
    LEASED = "leased"  # From the board, in turns, by workers that lease shards.
    PUSH = "push"  # By a wake-up from one sender, and from the board.
    DIRECT = "direct"  # In its inbox, as ``core.dispatch_pricing`` has it.


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a queue."""

    workers: int
    tasks_per_day: float
    kept_d: float = MONTH_D  # How long ended tasks stay in the bucket.
    task_s: float = 1.0  # How long a task runs.

    @property
    def tasks_each(self) -> float:
        """Tasks a day of one worker."""
        return self.tasks_per_day / self.workers if self.workers else 0.0

    @property
    def tasks_kept(self) -> float:
        return self.tasks_per_day * self.kept_d


# Tasks


def requests_per_task(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests for a task that is submitted, claimed once and completed, without those to find it."""
    renewals = load.task_s // rhythm.renew_s
    is_long = load.task_s > INDEX_LEASE_AFTER_S
    moves = is_long + renewals * rhythm.renew_s / 60  # The key of a lease hint names a minute.
    batch = keys_per_delete((1 + moves) * load.tasks_each, rhythm)
    one_by_one = batch <= DELETE_ONE_BY_ONE_MAX
    return {
        # Submit: task and ready hint. Claim: task. Complete: task.
        Operation.PUT: 4 + moves + renewals,
        Operation.GET: 1,  # Claim reads the task; completing keeps the ETag and need not.
        Operation.DELETE: 1 + moves if one_by_one else 0.0,
        Operation.DELETE_MANY: 0.0 if one_by_one else (1 + moves) / batch,
    }


def keys_per_delete(keys_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the average batch of one worker that removes this many hints, evenly spread over the day."""
    return min(max(1.0, keys_per_day * DELETE_EVERY_S / DAY_S), rhythm.delete_batch)


# Finding them


def polls_per_day(tasks_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the polls of one worker that finds this many tasks, evenly spread over the day.

    Even spacing is the most expensive pattern: each task resets the pauses, and none shares a page with another. A
    worker without work polls at the longest pause; a busy one takes a page of tasks with each poll.
    """
    if not tasks_per_day:
        return DAY_S / rhythm.poll_max_s
    gap_s = DAY_S / tasks_per_day
    if gap_s < rhythm.poll_min_s:
        return max(2 * DAY_S / rhythm.poll_min_s, tasks_per_day / rhythm.ready_page)
    return tasks_per_day * (1 + sum(share for share, _ in _pauses_within(gap_s, rhythm)))


def _pauses_within(gap_s: float, rhythm: Rhythm) -> Iterator[tuple[float, float]]:
    """Yield the pauses that fit into a gap, each with how often: they double from the shortest to the longest."""
    pause_s = rhythm.poll_min_s
    while pause_s < gap_s and pause_s < rhythm.poll_max_s:
        yield 1.0, pause_s
        gap_s, pause_s = gap_s - pause_s, min(2 * pause_s, rhythm.poll_max_s)
    yield gap_s / pause_s, pause_s


def tries_per_task(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD) -> float:
    """Return how many workers read a task because of its notice: those that read the board soon after it was posted,
    and a few that the task prefers, or the owner of its shard. Workers that have just had a task read the board more
    often."""
    leased = delivery is Delivery.LEASED
    window_s = Reader("", load.workers, rhythm.poll_max_s, frozenset() if leased else None).window_s
    gap_s = DAY_S / load.tasks_each if load.tasks_each else DAY_S
    pauses = list(_pauses_within(gap_s, rhythm))
    at_hand = sum(share * min(pause_s, window_s) for share, pause_s in pauses) / gap_s
    preferred = min(1.0, (1.0 if leased else PREFERRED) / max(1, load.workers))
    return load.workers * (1 - (1 - min(1.0, at_hand)) * (1 - preferred))


def finding_per_day(
    load: Load, mode: IndexMode, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD
) -> Requests:
    """Return the requests that all workers, and the submitters, make so that tasks are found."""
    if not load.workers:
        return notices_per_day(load)
    if delivery is Delivery.PUSH:
        return add(finding_per_day(load, mode, rhythm), views_per_day(load))
    if mode is IndexMode.LOG_SCAN:
        polls = polls_per_day(load.tasks_each, rhythm)
        reads = _scan_reads(polls * rhythm.log_scan_page, load, rhythm)
        return add(
            notices_per_day(load), {Operation.LIST: load.workers * polls, Operation.GET: load.workers * reads}
        )
    rhythm = adapt_to_workers(rhythm, load.workers, delivery)
    reads = load.workers * polls_per_day(load.tasks_each, rhythm)
    in_vain = load.tasks_per_day * max(0.0, tries_per_task(load, rhythm, delivery) - 1)
    scans = DAY_S / SCAN_EVERY_S if mode is IndexMode.HYBRID else 0.0
    lists = 2 if delivery is Delivery.LEASED else 1  # Of its own shards, and of late tasks in others.
    looking = {
        Operation.GET: reads + in_vain + _scan_reads(scans * rhythm.log_scan_page, load, rhythm),
        Operation.LIST: scans + lists * load.workers * DAY_S / LOOK_ANYWAY_EVERY_S,
    }
    return add(notices_per_day(load), looking)


def adapt_to_workers(rhythm: Rhythm, workers: int, delivery: Delivery = Delivery.BOARD) -> Rhythm:
    """Return the rhythm with the longest pause of so many workers."""
    longest_s = (turn_s if delivery is Delivery.LEASED else rest_max_s)(workers, rhythm.poll_max_s)
    return replace(rhythm, poll_max_s=longest_s)


def views_per_day(load: Load, view_s: float = VIEW_S) -> Requests:
    """Return the requests of one submitter that looks for workers: at its next task after a view has grown old."""
    if not load.tasks_per_day:
        return {}
    views = DAY_S / (view_s + DAY_S / load.tasks_per_day)
    return {
        Operation.LIST: views * max(1, math.ceil(load.workers / PAGE)),
        Operation.GET: views * min(load.workers, VIEW_RECORDS_MAX),
    }


def notices_per_day(load: Load) -> Requests:
    """Return the requests to post notices, by one submitter: it reads the board and writes it."""
    per_s = load.tasks_per_day / DAY_S
    posts = load.tasks_per_day / (1 + per_s * POST_EVERY_S)
    return {Operation.GET: posts, Operation.PUT: posts}


def _scan_reads(listed: float, load: Load, rhythm: Rhythm) -> float:
    """Return how many tasks one scan reads: each once after it has ended, if the scan can remember them all."""
    return listed if load.tasks_kept > rhythm.log_scan_memory else min(listed, load.tasks_per_day)


# Watching


def lookout_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM, delivery: Delivery = Delivery.BOARD) -> Requests:
    """Return the requests of the lookout: it lists the index, renews its duty, counts workers and reads the orders.

    Where shards are leased it counts more often, and reads the plan and a few records of workers each time.
    """
    if not load.workers:
        return {}
    times = WatchTimes.for_checks(rhythm.check_s)
    renewals = DAY_S / times.renew_s
    leased = delivery is Delivery.LEASED
    counts = DAY_S / (COUNT_LEASED_EVERY_S if leased else COUNT_EVERY_S)
    return {
        Operation.LIST: DAY_S / times.round_s + counts + DAY_S / INBOXES_EVERY_S,
        Operation.PUT: renewals,
        Operation.GET: 2 * renewals + (counts * (1 + min(load.workers, MEMBERS_READ)) if leased else 0.0),
    }


def monitor_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests of the one monitor that is on duty: it lists leases, workers, waiting tasks and
    inboxes, and sweeps tasks with their hints. It goes over all tasks once a day at least, and reads those that are
    new, and all of them once a month. The other monitors read now and then where the sweep stands."""
    if not load.workers:
        return {}
    sweeps = DAY_S / rhythm.sweep_s if rhythm.sweep_s else 0.0
    pages = max(sweeps, load.tasks_kept / rhythm.sweep_page) if sweeps else 0.0
    reads = load.tasks_per_day + load.tasks_kept / MONTH_D if sweeps else 0.0
    intervals_s = (0.0, ROSTER_EVERY_S, rhythm.waiting_s, INBOXES_EVERY_S)
    checks = sum(DAY_S / max(rhythm.check_s, each_s) for each_s in intervals_s)
    return {
        Operation.LIST: checks + pages + 4 * sweeps,
        Operation.GET: load.workers * sweeps + reads,
        Operation.PUT: pages,
    }


def markers_per_day(load: Load) -> Requests:
    """Return the requests that remove delete markers of hints, in a versioned bucket. Hints that were found through a
    notice leave none."""
    return {Operation.VERSIONS: MARKED_PREFIXES * DAY_S / MARKERS_EVERY_S} if load.workers else {}


def purge_per_day(load: Load) -> Requests:
    """Return the requests of the purger, if as many tasks go each day as come, all after the same time."""
    if not load.kept_d or not load.workers or not load.tasks_per_day:
        return {}
    thousands = load.tasks_per_day / PAGE
    return {
        Operation.LIST: load.tasks_kept / PAGE,
        Operation.GET: load.tasks_per_day,
        Operation.VERSIONS: 1 + VERSIONS_PER_TASK * thousands,  # One for the data.
        Operation.DELETE_MANY: VERSIONS_PER_TASK * thousands,
    }


def _watching_per_day(load: Load, rhythm: Rhythm, delivery: Delivery) -> Requests:
    monitor = add(monitor_per_day(load, rhythm), markers_per_day(load))
    return add(add(lookout_per_day(load, rhythm, delivery), monitor), purge_per_day(load))


def heartbeats_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests that one worker makes for heartbeats and for reading its orders.

    A change of its running tasks is reported if a task runs at the moment when the worker would report.
    """
    beats = DAY_S / (rhythm.heartbeat_s * (1 + BEATS_LATE_MAX / 2))
    is_visible = min(1.0, load.task_s / rhythm.change_s)
    changes = max(0.0, min(2 * load.tasks_each * is_visible, DAY_S / rhythm.change_s - beats))
    return {Operation.PUT: beats + changes, Operation.GET: DAY_S / ORDERS_EVERY_S}


# All of it


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """US dollars for 30 days, by what they are spent on, and the requests behind them."""

    tasks: float
    polling: float
    heartbeats: float
    monitor: float
    flows: float
    serving: float
    storage: float
    requests: Requests

    @property
    def total(self) -> float:
        watching = self.polling + self.heartbeats + self.monitor
        return self.tasks + watching + self.flows + self.serving + self.storage


def estimate(
    load: Load,
    mode: IndexMode = IndexMode.HYBRID,
    *,
    delivery: Delivery = Delivery.BOARD,
    extras: Extras = NO_EXTRAS,
    task_bytes: int = 2048,
    rhythm: Rhythm = DEFAULT_RHYTHM,
) -> CostEstimate:
    """Estimate the cost of 30 days. ``Load.kept_d`` 0 leaves out storage, and the sweep and purge of it."""
    if load.workers < 0 or load.tasks_per_day < 0 or load.kept_d < 0 or load.task_s < 0:
        raise UsageError("workers, tasks per day, days kept and seconds per task cannot be negative")
    parts = {
        "tasks": multiply(requests_per_task(load, rhythm), load.tasks_per_day * MONTH_D),
        "polling": multiply(finding_per_day(load, mode, rhythm, delivery), MONTH_D),
        "heartbeats": multiply(heartbeats_per_day(load, rhythm), load.workers * MONTH_D),
        "monitor": multiply(_watching_per_day(load, rhythm, delivery), MONTH_D),
        "flows": multiply(flows_per_day(extras, load.workers), MONTH_D),
        "serving": multiply(serving_per_day(extras, load.task_s), MONTH_D),
    }
    return CostEstimate(
        **{name: dollars(requests) for name, requests in parts.items()},
        storage=load.tasks_kept * VERSIONS_PER_TASK * task_bytes / GB * STORAGE_PRICE_GB_MONTH,
        requests={each: sum(part.get(each, 0.0) for part in parts.values()) for each in Operation},
    )
