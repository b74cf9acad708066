"""How many requests the processes make that watch over a queue: lookout, monitor, purger, and heartbeats."""

from __future__ import annotations

from qo.core.board import WatchTimes
from qo.core.load import Delivery, Load
from qo.core.pricing import DAY_S, MONTH_D, Operation, Requests, add
from qo.core.rhythm import (
    BEATS_LATE_MAX,
    COUNT_EVERY_S,
    COUNT_LEASED_EVERY_S,
    DEFAULT_RHYTHM,
    INBOXES_EVERY_S,
    MARKED_PREFIXES,
    MARKERS_EVERY_S,
    MEMBERS_READ,
    ORDERS_EVERY_S,
    PAGE,
    ROSTER_EVERY_S,
    Rhythm,
)

VERSIONS_PER_TASK = 3  # Pending, running, completed.


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


def watching_per_day(load: Load, rhythm: Rhythm, delivery: Delivery) -> Requests:
    """Return the requests of lookout, monitor and purger."""
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
