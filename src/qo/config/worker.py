"""The settings of a worker: the table [worker], and within it [worker.shard_leasing]."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.config import kinds
from qo.config.runtimes import IDLE_OR_JOBS
from qo.config.setting import PAGE, setting
from qo.core.discovery import IndexMode, UnknownTypes


class PackageDrift(StrEnum):
    """What a worker does if its installed packages differ from those that a version was deployed with."""

    WARN = "warn"
    REFUSE = "refuse"  # Leave the task to a worker that has them.


class CredentialUse(StrEnum):
    """Whether attempts read and write a bucket with credentials of their own."""

    AUTO = "auto"  # Where the dispatcher mints them.
    REQUIRED = "required"  # Nothing runs without.
    OFF = "off"  # All use those of the worker.


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeasingSettings:
    enabled: bool = setting(
        False,
        "QO_SHARD_LEASING",
        kind=kinds.FLAG,
        help="Share the shards among the workers: each lists only those it has a lease on.",
    )
    shards_per_worker: int = setting(
        16,
        "QO_SHARD_LEASING_SHARDS_PER_WORKER",
        kind=kinds.whole(1, 256),
        help="The most shards that one worker leases; in a queue of more than 256, the most 256ths of it.",
    )
    lease_ttl_s: float = setting(
        30.0,
        "QO_SHARD_LEASING_TTL_S",
        kind=kinds.number(1),
        help="Seconds for which a worker relies on its shards without a renewal. Shards that move to another worker "
        "are nobody's for as long.",
    )
    lease_renew_interval_s: float = setting(
        10.0,
        "QO_SHARD_LEASING_RENEW_S",
        kind=kinds.number(0.1),
        help="Seconds between renewals of a shard lease, at most: reading the board renews it. At most half of "
        "lease_ttl_s.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    id: str | None = setting(
        None,
        "QO_WORKER_ID",
        kind=kinds.NAME,
        help="The id of this worker; unset: a new one at each start.",
    )
    shards: tuple[str, ...] = setting(
        (), "QO_SHARDS", kind=kinds.SHARDS, help="The shards this worker polls, as 0,1,a; unset: all of them."
    )
    queue: tuple[str, ...] = setting(
        (),
        "QO_WORKER_QUEUE",
        kind=kinds.QUEUES,
        help="Work on these queues at once, by weight: names below the store, or stores; unset: the store itself. With "
        "--runtime, queues of the runtime; unset: all of them.",
    )
    workers: int = setting(
        1,
        "QO_WORKERS",
        kind=kinds.whole(1, 256),
        help="How many worker processes one command runs, each with these settings and an id and a port of its own.",
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
        100, "QO_READY_PAGE_SIZE", kind=PAGE, help="How many ready tasks one poll of the index may return."
    )
    log_scan_page_size: int = setting(
        50, "QO_LOG_SCAN_PAGE_SIZE", kind=PAGE, help="How many tasks one page of a log scan may return."
    )
    unknown_types: UnknownTypes = setting(  # noqa: RUF009 - an immutable value, made once.
        UnknownTypes.LEAVE,
        "QO_UNKNOWN_TYPES",
        kind=kinds.choice(UnknownTypes),
        help="What to do with tasks that this worker has no handler for: leave them to others, or fail them.",
    )
    limits: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_LIMITS",
        kind=kinds.PAIRS,
        help="By limit or type, how many tasks all workers together run at a time or start: as 10, 100/m, 10 100/m, or "
        "2 by input.customer.",
    )
    no_monitor: bool = setting(
        False, "QO_NO_MONITOR", kind=kinds.FLAG, help="Run the worker without the monitor inside it."
    )
    poll_min_ms: int = setting(
        100,
        "QO_POLL_MIN_MS",
        kind=kinds.whole(1),
        help="Milliseconds to sleep after the first poll that found nothing.",
    )
    poll_max_ms: int = setting(
        5000,
        "QO_POLL_MAX_MS",
        kind=kinds.whole(1),
        help="The most milliseconds to sleep between polls of an idle worker.",
    )
    heartbeat_s: float = setting(
        60.0,
        "QO_HEARTBEAT_S",
        kind=kinds.number(0.1),
        help="Seconds between heartbeats of a worker; changes in what it runs are reported every 20.",
    )
    idle_timeout: str = setting(
        "never",
        "QO_IDLE_TIMEOUT",
        kind=IDLE_OR_JOBS,
        help="End, with exit code 0, after so long without a task, as 5m; 0: as soon as there is none; never; jobs: as "
        "the jobs that it has run say, else its runtime.",
    )
    shutdown_grace_s: float = setting(
        30.0,
        "QO_SHUTDOWN_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that running tasks have to finish after the first signal; then they are cancelled.",
    )
    cancel_grace_s: float = setting(
        10.0,
        "QO_CANCEL_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that cancelled tasks have to stop and be given back; then the worker exits without them.",
    )
    exit_grace_s: float = setting(
        5.0,
        "QO_EXIT_GRACE_S",
        kind=kinds.number(0.1),
        help="Seconds for the rest of the shutdown; then the process exits even if something hangs.",
    )
    inbox_capacity: int = setting(
        1,
        "QO_INBOX_CAPACITY",
        kind=kinds.whole(0, 1_000),
        help="How many claimed tasks may wait for each slot while tasks take little time.",
    )
    threads: int | None = setting(
        None,
        "QO_THREADS",
        kind=kinds.whole(1, 10_000),
        help="The most plain functions that run at a time; unset: as many as there are slots.",
    )
    processes: int | None = setting(
        None,
        "QO_PROCESSES",
        kind=kinds.whole(1, 1_000),
        help="The most process-bound handlers that run at a time; unset: one for each core.",
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
        help="A child process that uses more memory than this is replaced after its task; 0: never.",
    )
    spark_slots: int = setting(
        4, "QO_SPARK_SLOTS", kind=kinds.whole(1, 1_000), help="The most Spark tasks that run at a time."
    )
    load_shed: bool = setting(
        True,
        "QO_LOAD_SHED",
        kind=kinds.FLAG,
        help="Give a task back at once if there is no room for it in the buffer, instead of holding it meanwhile.",
    )
    buffer: int | None = setting(
        128,
        "QO_BUFFER",
        kind=kinds.optional(kinds.whole(1, 1_000_000)),
        help="How many tasks of a type may wait for a permit of a limit; none: without a permit a task is given back.",
    )
    concurrency_limit: int | None = setting(
        None,
        "QO_CONCURRENCY_LIMIT",
        kind=kinds.whole(1, 1_000_000),
        help="The most handlers that run at a time, of all types together; unset: as many as there are slots.",
    )
    rate_limit: str | None = setting(
        None,
        "QO_RATE_LIMIT",
        kind=kinds.RATE,
        help="The most attempts that start in a period, of all types together; unset: any number.",
    )
    producer_buffer: int = setting(
        128,
        "QO_PRODUCER_BUFFER",
        kind=kinds.whole(1, 100_000),
        help="How many submissions by handlers are written at a time; further ones wait.",
    )
    result_buffer: int = setting(
        128,
        "QO_RESULT_BUFFER",
        kind=kinds.whole(1, 100_000),
        help="How many outcomes are reported at a time; while there are as many, nothing is claimed.",
    )
    timeout_s: float | None = setting(
        300.0,
        "QO_TIMEOUT_S",
        kind=kinds.optional(kinds.number(0.001)),
        help="Seconds that an attempt may take, unless its task or its handler sets another limit; none: no limit.",
    )
    lease_s: float = setting(
        60.0,
        "QO_LEASE_S",
        kind=kinds.number(1),
        help="Seconds for which a lease on a task is valid; it is renewed three times as often. Tasks of a dead worker "
        "wait this long. On a bucket at least 5: the clocks of two workers may differ by 1.5.",
    )
    dequeue_backoff_ms: int = setting(
        50,
        "QO_DEQUEUE_BACKOFF_MS",
        kind=kinds.whole(1),
        help="Milliseconds to sleep after a poll whose tasks were all claimed by other workers.",
    )
    control_s: float = setting(
        5.0,
        "QO_CONTROL_S",
        kind=kinds.number(0.1),
        help="Seconds between checks for orders of operators: pause, resume, drain, cancel.",
    )
    packages: PackageDrift = setting(  # noqa: RUF009 - an immutable value, made once.
        PackageDrift.WARN,
        "QO_WORKER_PACKAGES",
        kind=kinds.choice(PackageDrift),
        help="What to do if an installed package differs from what a version recorded: warn, or refuse to run it.",
    )
    credentials: CredentialUse = setting(  # noqa: RUF009 - an immutable value, made once.
        CredentialUse.AUTO,
        "QO_CREDENTIALS",
        kind=kinds.choice(CredentialUse),
        help="Whose credentials attempts of pipelines read and write a bucket with. auto: their own, for their "
        "prefixes, where the dispatcher mints them; required: no attempt runs without; off: those of the worker.",
    )
    run_log_bytes: int = setting(
        1024 * 1024,
        "QO_RUN_LOG_BYTES",
        kind=kinds.whole(0, 64 * 1024 * 1024),
        help="Bytes that are kept of what one attempt of a pipeline prints and logs: its beginning and its end. "
        "0: nothing is kept.",
    )
    http: str = setting(
        "127.0.0.1:0",
        "QO_WORKER_HTTP",
        kind=kinds.LISTEN,
        help="The address of /stats, /metrics, /livez and /readyz; port 0: any free one; off: not served.",
    )
    push_address: str | None = setting(
        None,
        "QO_WORKER_PUSH_ADDRESS",
        kind=kinds.ADDRESS,
        help="The IP address and port at which producers reach worker.http to wake this worker; unset: that of "
        "worker.http, if it names one.",
    )
    shard_leasing: ShardLeasingSettings = ShardLeasingSettings()
