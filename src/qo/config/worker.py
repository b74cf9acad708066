"""The settings of a worker: the table [worker], and within it [worker.shard_leasing]."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.config import kinds
from qo.config.setting import PAGE, setting
from qo.core.discovery import IndexMode, UnknownTypes


class PackageDrift(StrEnum):
    """What a worker does whose installed packages are not those that a version was deployed with."""

    WARN = "warn"
    REFUSE = "refuse"  # Leave the task to a worker that has them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeasingSettings:
    enabled: bool = setting(
        False,
        "QO_SHARD_LEASING",
        kind=kinds.FLAG,
        help="Share the shards out: each worker polls only those it holds a lease on.",
    )
    shards_per_worker: int = setting(
        16,
        "QO_SHARD_LEASING_SHARDS_PER_WORKER",
        kind=kinds.whole(1, 256),
        help="How many leases one worker takes at most; one is for a shard or, beyond 256, for a range of them.",
    )
    lease_ttl_s: float = setting(
        30.0,
        "QO_SHARD_LEASING_TTL_S",
        kind=kinds.number(1),
        help="Seconds for which a shard lease holds. A dead worker's shards wait so long for another.",
    )
    lease_renew_interval_s: float = setting(
        10.0,
        "QO_SHARD_LEASING_RENEW_S",
        kind=kinds.number(0.1),
        help="Seconds between renewals of a shard lease, and between counts of the workers; half a lease at most.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    id: str | None = setting(
        None,
        "QO_WORKER_ID",
        kind=kinds.NAME,
        help="The name of this worker; unset: a fresh one at each start.",
    )
    shards: tuple[str, ...] = setting(
        (), "QO_SHARDS", kind=kinds.SHARDS, help="The shards this worker polls, as 0,1,a; unset: all of them."
    )
    concurrency: int = setting(
        16, "QO_CONCURRENCY", kind=kinds.whole(1, 10_000), help="How many tasks one worker runs at a time."
    )
    index_mode: IndexMode = setting(  # noqa: RUF009 - an immutable value, made once.
        IndexMode.HYBRID,
        "QO_INDEX_MODE",
        kind=kinds.choice(IndexMode),
        help="How a worker finds ready tasks.",
    )
    ready_page_size: int = setting(
        100, "QO_READY_PAGE_SIZE", kind=PAGE, help="How many ready tasks one look at the index may return."
    )
    log_scan_page_size: int = setting(
        50, "QO_LOG_SCAN_PAGE_SIZE", kind=PAGE, help="How many tasks one page of a log scan may return."
    )
    unknown_types: UnknownTypes = setting(  # noqa: RUF009 - an immutable value, made once.
        UnknownTypes.LEAVE,
        "QO_UNKNOWN_TYPES",
        kind=kinds.choice(UnknownTypes),
        help="What becomes of tasks that no handler of this worker is for: left to others, or failed.",
    )
    no_monitor: bool = setting(
        False, "QO_NO_MONITOR", kind=kinds.FLAG, help="Run the worker without the monitor inside it."
    )
    poll_min_ms: int = setting(
        100,
        "QO_POLL_MIN_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest after the first poll that found nothing.",
    )
    poll_max_ms: int = setting(
        5000,
        "QO_POLL_MAX_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest between polls of an idle worker, at most.",
    )
    heartbeat_s: float = setting(
        15.0,
        "QO_HEARTBEAT_S",
        kind=kinds.number(0.1),
        help="Seconds between a worker's signs of life; changes in what it runs are told every 5.",
    )
    shutdown_grace_s: float = setting(
        30.0,
        "QO_SHUTDOWN_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that running tasks have to finish after the first stop signal; then they are cancelled.",
    )
    cancel_grace_s: float = setting(
        10.0,
        "QO_CANCEL_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that cancelled tasks have to stop and be given back; then the worker ends without them.",
    )
    exit_grace_s: float = setting(
        5.0,
        "QO_EXIT_GRACE_S",
        kind=kinds.number(0.1),
        help="Seconds for the rest of the shutdown, after which the process ends whatever hangs.",
    )
    inbox_capacity: int = setting(
        1,
        "QO_INBOX_CAPACITY",
        kind=kinds.whole(0, 1_000),
        help="How many claimed tasks may wait for each slot while tasks are short.",
    )
    threads: int | None = setting(
        None,
        "QO_THREADS",
        kind=kinds.whole(1, 10_000),
        help="How many plain functions run at a time, at most; unset: as many as there are slots.",
    )
    processes: int | None = setting(
        None,
        "QO_PROCESSES",
        kind=kinds.whole(1, 1_000),
        help="How many process-bound handlers run at a time, at most; unset: one for each core.",
    )
    process_tasks_max: int = setting(
        1_000,
        "QO_PROCESS_TASKS_MAX",
        kind=kinds.whole(0),
        help="How many tasks a child process runs before it is replaced; 0: any number.",
    )
    process_memory_max_mb: int = setting(
        0,
        "QO_PROCESS_MEMORY_MAX_MB",
        kind=kinds.whole(0),
        help="A child process that has grown beyond this is replaced after its task; 0: never.",
    )
    spark_slots: int = setting(
        4, "QO_SPARK_SLOTS", kind=kinds.whole(1, 1_000), help="How many Spark tasks run at a time, at most."
    )
    timeout_s: float | None = setting(
        300.0,
        "QO_TIMEOUT_S",
        kind=kinds.optional(kinds.number(0.001)),
        help="Seconds that an attempt may take if neither its task nor its handler says; none: no limit.",
    )
    lease_s: float = setting(
        60.0,
        "QO_LEASE_S",
        kind=kinds.number(1),
        help="Seconds for which a claim holds; renewed three times as often. A dead worker's tasks wait so long. "
        "On a bucket at least 5: the clocks of two workers may differ by 1.5.",
    )
    dequeue_backoff_ms: int = setting(
        50,
        "QO_DEQUEUE_BACKOFF_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest after a look at the queue whose finds went to others.",
    )
    control_s: float = setting(
        5.0,
        "QO_CONTROL_S",
        kind=kinds.number(0.1),
        help="Seconds between looks at what operators want: pause, resume, drain, cancel.",
    )
    packages: PackageDrift = setting(  # noqa: RUF009 - an immutable value, made once.
        PackageDrift.WARN,
        "QO_WORKER_PACKAGES",
        kind=kinds.choice(PackageDrift),
        help="What to do where an installed package is not the one that a version recorded: warn, or refuse to run it.",
    )
    http: str = setting(
        "127.0.0.1:0",
        "QO_WORKER_HTTP",
        kind=kinds.LISTEN,
        help="Where /stats, /metrics, /livez and /readyz are served; port 0: any free one; off: nowhere.",
    )
    shard_leasing: ShardLeasingSettings = ShardLeasingSettings()
