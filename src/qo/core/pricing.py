"""The prices of requests, and a model of how many a queue makes: used by the meter and `qo cost`.

The model covers the normal case, and overestimates in doubt. It leaves out what depends on the tasks: failed attempts
(each costs another claim and two PUTs), lost races, lease renewals of long tasks (two PUTs each), large inputs and
outputs, clients that wait for results, and more delayed tasks than one page holds (an idle poll then lists the shards
one by one).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from qo.core.discovery import IndexMode
from qo.errors import UsageError

# Amazon S3 Standard, us-east-1, US dollars: https://aws.amazon.com/s3/pricing/ as of November 2026.
WRITE_PRICE = 0.005 / 1000  # PUT, COPY, POST, LIST
READ_PRICE = 0.0004 / 1000  # GET, HEAD and all others
STORAGE_PRICE_GB_MONTH = 0.023

DAY_S = 86_400
MONTH_D = 30
GB = 10**9
VERSIONS_PER_TASK = 3  # Pending, running, completed.
PAGE = 1000  # Keys of a LIST, versions of a listing of versions, objects of a delete of many.
POLLS_PER_TASK = 2  # Beside those after a pause: at once after finding it, and when it is finished.


class Operation(StrEnum):
    """The kinds of request that a store makes. A refused request (404, 409, 412) costs as much as another."""

    GET = "get"
    HEAD = "head"
    PUT = "put"
    DELETE = "delete"
    DELETE_MANY = "delete_many"
    LIST = "list"
    VERSIONS = "versions"
    VERSIONING = "versioning"

    @property
    def price(self) -> float:
        """US dollars for one request."""
        return _PRICES[self]


_PRICES = {
    Operation.GET: READ_PRICE,
    Operation.HEAD: READ_PRICE,
    Operation.PUT: WRITE_PRICE,
    Operation.DELETE: 0.0,
    # A POST on the wire. Deletes are free, but the price list does not name this one, so we err high.
    Operation.DELETE_MANY: WRITE_PRICE,
    Operation.LIST: WRITE_PRICE,
    Operation.VERSIONS: WRITE_PRICE,
    Operation.VERSIONING: READ_PRICE,
}

Requests = Mapping[Operation, float]


def dollars(counts: Requests) -> float:
    return sum(count * operation.price for operation, count in counts.items())


DELETE_EVERY_S = 0.25  # A claim and its completion often share one request then.


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The intervals and page sizes of a queue's requests. The defaults are those of the settings."""

    poll_min_s: float = 0.1  # The first pause after a poll that found nothing; each further one is doubled ...
    poll_max_s: float = 5.0  # ... up to this.
    ready_page: int = 100
    log_scan_every_s: float = 60.0  # In hybrid mode; in log-scan mode every poll scans a page.
    log_scan_page: int = 50
    log_scan_memory: int = 200_000  # Ended tasks that a scan remembers and does not read again.
    heartbeat_s: float = 15.0
    change_s: float = 5.0  # A worker reports a change of its running tasks this often at most.
    control_s: float = 5.0
    check_s: float = 30.0
    waiting_s: float = 600.0  # Between listings of the tasks that wait for others.
    sweep_s: float = 300.0  # 0 for never.
    sweep_page: int = 1000
    delete_every_s: float = DELETE_EVERY_S  # Index keys are removed this often, or when a batch is full.
    delete_batch: int = 100


DEFAULT_RHYTHM = Rhythm()


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a queue."""

    workers: int
    tasks_per_day: float
    kept_d: float = MONTH_D  # How long ended tasks stay in the bucket.

    @property
    def tasks_each(self) -> float:
        """Tasks a day of one worker."""
        return self.tasks_per_day / self.workers if self.workers else 0.0

    @property
    def tasks_kept(self) -> float:
        return self.tasks_per_day * self.kept_d


def requests_per_task(keys_per_delete: float = DEFAULT_RHYTHM.delete_batch) -> Requests:
    """Return the requests for a task that is submitted, claimed once and completed, without the polling."""
    return {
        Operation.PUT: 5,  # Submit: task and ready key. Claim: task and lease key. Complete: task.
        Operation.GET: 1,  # Claim reads the task; completing keeps the ETag and need not.
        Operation.DELETE_MANY: 2 / keys_per_delete,  # Its ready key and its lease key.
    }


def keys_per_delete(tasks_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the average batch size of one worker that finds this many tasks, evenly spread over the day."""
    keys = 2 * tasks_per_day * rhythm.delete_every_s / DAY_S
    return min(max(1.0, keys), rhythm.delete_batch)


def polls_per_day(tasks_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> float:
    """Return the polls of one worker that finds this many tasks, evenly spread over the day.

    Even spacing is the most expensive pattern: each task resets the pauses, and none shares a page with another. A
    worker without work polls at the longest pause; a busy one takes a page of tasks with each poll.
    """
    if not tasks_per_day:
        return DAY_S / rhythm.poll_max_s
    gap_s = DAY_S / tasks_per_day
    if gap_s < rhythm.poll_min_s:
        return max((POLLS_PER_TASK + 1) * DAY_S / rhythm.poll_min_s, tasks_per_day / rhythm.ready_page)
    return tasks_per_day * (POLLS_PER_TASK + _polls_within(gap_s, rhythm))


def _polls_within(gap_s: float, rhythm: Rhythm) -> float:
    """Return how many pauses fit into a gap on average; they double from the shortest to the longest."""
    polls, pause_s = 0, rhythm.poll_min_s
    while pause_s < gap_s and pause_s < rhythm.poll_max_s:
        polls, gap_s, pause_s = polls + 1, gap_s - pause_s, min(2 * pause_s, rhythm.poll_max_s)
    return polls + gap_s / pause_s


def polling_per_day(load: Load, mode: IndexMode, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests that one worker makes to find its tasks."""
    polls = polls_per_day(load.tasks_each, rhythm)
    match mode:
        case IndexMode.INDEX_ONLY:
            return {Operation.LIST: polls}
        case IndexMode.HYBRID:
            scans = DAY_S / rhythm.log_scan_every_s
            return {
                Operation.LIST: polls + scans,
                Operation.GET: _scan_reads(scans * rhythm.log_scan_page, load, rhythm),
            }
        case IndexMode.LOG_SCAN:
            return {Operation.LIST: polls, Operation.GET: _scan_reads(polls * rhythm.log_scan_page, load, rhythm)}


def _scan_reads(listed: float, load: Load, rhythm: Rhythm) -> float:
    """Return how many tasks one scan reads: each once after it has ended, if the scan can remember them all."""
    return listed if load.tasks_kept > rhythm.log_scan_memory else min(listed, load.tasks_per_day)


def monitor_per_day(load: Load, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests that the monitors of all workers make together.

    Each lists leases and workers at every check, waiting tasks less often, and reads where the sweep stands. The sweep
    itself is shared: whoever moves the cursor lists tasks, and once in an interval the three indexes. It goes over all
    tasks once a day at least, and reads those that are new, and all of them once a month.
    """
    checks = load.workers * DAY_S / rhythm.check_s
    waiting = load.workers * DAY_S / max(rhythm.check_s, rhythm.waiting_s)
    sweeps = DAY_S / rhythm.sweep_s if rhythm.sweep_s and load.workers else 0.0
    pages = max(sweeps, load.tasks_kept / rhythm.sweep_page) if sweeps else 0.0
    reads = load.tasks_per_day + load.tasks_kept / MONTH_D if sweeps else 0.0
    return {
        Operation.LIST: 2 * checks + waiting + pages + 3 * sweeps,
        Operation.GET: load.workers * sweeps + reads,
        Operation.PUT: 2 * pages,
    }


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


def heartbeats_per_day(tasks_per_day: float, rhythm: Rhythm = DEFAULT_RHYTHM) -> Requests:
    """Return the requests that one worker makes for heartbeats and for reading its orders.

    While it has work, it also lists the other workers, to start with other shards than they do, and reports more often.
    """
    beats = DAY_S / rhythm.heartbeat_s
    changes = max(0.0, min(tasks_per_day, DAY_S / rhythm.change_s - beats))
    return {
        Operation.PUT: beats + changes,
        Operation.LIST: beats if tasks_per_day else 0.0,
        Operation.GET: DAY_S / rhythm.control_s,
    }


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """US dollars for 30 days, by what they are spent on, and the requests behind them."""

    tasks: float
    polling: float
    heartbeats: float
    monitor: float
    storage: float
    requests: Requests

    @property
    def total(self) -> float:
        return self.tasks + self.polling + self.heartbeats + self.monitor + self.storage


def estimate(
    workers: int,
    tasks_per_day: int,
    mode: IndexMode = IndexMode.HYBRID,
    *,
    kept_d: float = MONTH_D,
    task_bytes: int = 2048,
    rhythm: Rhythm = DEFAULT_RHYTHM,
) -> CostEstimate:
    """Estimate the cost of 30 days. ``kept_d`` 0 leaves out storage, and the sweep and purge of it."""
    if workers < 0 or tasks_per_day < 0 or kept_d < 0:
        raise UsageError("workers, tasks per day and days kept cannot be negative")
    load = Load(workers, tasks_per_day, kept_d)
    per_task = requests_per_task(keys_per_delete(load.tasks_each, rhythm))
    tasks = _multiply(per_task, tasks_per_day * MONTH_D)
    polling = _multiply(polling_per_day(load, mode, rhythm), workers * MONTH_D)
    heartbeats = _multiply(heartbeats_per_day(load.tasks_each, rhythm), workers * MONTH_D)
    monitor = _multiply(_add(monitor_per_day(load, rhythm), purge_per_day(load)), MONTH_D)
    parts = (tasks, polling, heartbeats, monitor)
    return CostEstimate(
        tasks=dollars(tasks),
        polling=dollars(polling),
        heartbeats=dollars(heartbeats),
        monitor=dollars(monitor),
        storage=load.tasks_kept * VERSIONS_PER_TASK * task_bytes / GB * STORAGE_PRICE_GB_MONTH,
        requests={operation: sum(part.get(operation, 0.0) for part in parts) for operation in Operation},
    )


def _add(one: Requests, other: Requests) -> Requests:
    return {operation: one.get(operation, 0.0) + other.get(operation, 0.0) for operation in Operation}


def _multiply(requests: Requests, factor: float) -> Requests:
    return {operation: count * factor for operation, count in requests.items()}
