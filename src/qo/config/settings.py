"""Every setting: its name, its variable, its default, and what it is for.

The fields below are the one table. ``qo.config.sources`` fills them, ``qo config show`` prints them and
``docs/reference/settings.md`` documents them; a test compares the three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from qo.config import kinds, location
from qo.config.kinds import Kind
from qo.core.discovery import IndexMode, UnknownTypes
from qo.errors import ConfigError

LIST_PAGE_MAX = 1000  # What one LIST request can return at most.
DEFAULT = "default"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Setting:
    key: str  # As in the file: "worker.concurrency" is `concurrency` in the table [worker].
    env: tuple[str, ...]  # The first variable that is set counts.
    kind: Kind
    default: Any
    help: str

    @property
    def flag(self) -> str:
        # Tables within tables keep their name: --shard-leasing for worker.shard_leasing.enabled.
        name = self.key.partition(".")[2] or self.key
        return "--" + name.removesuffix(".enabled").replace(".", "-").replace("_", "-")


def _setting(default: Any, *env: str, kind: Kind, help: str) -> Any:
    return field(default=default, metadata={"env": env, "kind": kind, "help": help})


_PAGE = kinds.whole(1, LIST_PAGE_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    endpoint: str | None = _setting(
        None, "S3_ENDPOINT", kind=kinds.ENDPOINT, help="Where an S3-compatible server listens; unset: AWS."
    )
    region: str | None = _setting(
        None,
        "S3_REGION",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        kind=kinds.NAME,
        help="The region of the bucket; unset: as the AWS config files say, else us-east-1.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeasingSettings:
    enabled: bool = _setting(
        False,
        "QO_SHARD_LEASING",
        kind=kinds.FLAG,
        help="Share the shards out: each worker polls only those it holds a lease on.",
    )
    shards_per_worker: int = _setting(
        16,
        "QO_SHARD_LEASING_SHARDS_PER_WORKER",
        kind=kinds.whole(1, 256),
        help="How many leases one worker takes at most; one is for a shard or, beyond 256, for a range of them.",
    )
    lease_ttl_secs: float = _setting(
        30.0,
        "QO_SHARD_LEASING_TTL_SECS",
        kind=kinds.number(1),
        help="Seconds for which a shard lease holds. A dead worker's shards wait so long for another.",
    )
    lease_renew_interval_secs: float = _setting(
        10.0,
        "QO_SHARD_LEASING_RENEW_SECS",
        kind=kinds.number(0.1),
        help="Seconds between renewals of a shard lease, and between counts of the workers; half a lease at most.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    id: str | None = _setting(
        None,
        "QO_WORKER_ID",
        kind=kinds.NAME,
        help="The name of this worker; unset: a fresh one at each start.",
    )
    shards: tuple[str, ...] = _setting(
        (), "QO_SHARDS", kind=kinds.SHARDS, help="The shards this worker polls, as 0,1,a; unset: all of them."
    )
    concurrency: int = _setting(
        16, "QO_CONCURRENCY", kind=kinds.whole(1, 10_000), help="How many tasks one worker runs at a time."
    )
    index_mode: IndexMode = _setting(  # noqa: RUF009 - an immutable value, made once.
        IndexMode.HYBRID,
        "QO_INDEX_MODE",
        kind=kinds.choice(IndexMode),
        help="How a worker finds ready tasks.",
    )
    ready_page_size: int = _setting(
        100, "QO_READY_PAGE_SIZE", kind=_PAGE, help="How many ready tasks one look at the index may return."
    )
    log_scan_page_size: int = _setting(
        50, "QO_LOG_SCAN_PAGE_SIZE", kind=_PAGE, help="How many tasks one page of a log scan may return."
    )
    unknown_types: UnknownTypes = _setting(  # noqa: RUF009 - an immutable value, made once.
        UnknownTypes.LEAVE,
        "QO_UNKNOWN_TYPES",
        kind=kinds.choice(UnknownTypes),
        help="What becomes of tasks that no handler of this worker is for: left to others, or failed.",
    )
    no_monitor: bool = _setting(
        False, "QO_NO_MONITOR", kind=kinds.FLAG, help="Run the worker without the monitor inside it."
    )
    poll_min_ms: int = _setting(
        100,
        "QO_POLL_MIN_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest after the first poll that found nothing.",
    )
    poll_max_ms: int = _setting(
        5000,
        "QO_POLL_MAX_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest between polls of an idle worker, at most.",
    )
    heartbeat_s: float = _setting(
        15.0, "QO_HEARTBEAT_S", kind=kinds.number(0.1), help="Seconds between a worker's signs of life."
    )
    shutdown_grace_s: float = _setting(
        30.0,
        "QO_SHUTDOWN_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that running tasks have to finish after the first stop signal; then they are cancelled.",
    )
    cancel_grace_s: float = _setting(
        10.0,
        "QO_CANCEL_GRACE_S",
        kind=kinds.number(0),
        help="Seconds that cancelled tasks have to stop and be given back; then the worker ends without them.",
    )
    exit_grace_s: float = _setting(
        5.0,
        "QO_EXIT_GRACE_S",
        kind=kinds.number(0.1),
        help="Seconds for the rest of the shutdown, after which the process ends whatever hangs.",
    )
    inbox_capacity: int = _setting(
        1,
        "QO_INBOX_CAPACITY",
        kind=kinds.whole(0, 1_000),
        help="How many claimed tasks may wait for each slot while tasks are short.",
    )
    threads: int | None = _setting(
        None,
        "QO_THREADS",
        kind=kinds.whole(1, 10_000),
        help="How many plain functions run at a time, at most; unset: as many as there are slots.",
    )
    processes: int | None = _setting(
        None,
        "QO_PROCESSES",
        kind=kinds.whole(1, 1_000),
        help="How many process-bound handlers run at a time, at most; unset: one for each core.",
    )
    process_tasks_max: int = _setting(
        1_000,
        "QO_PROCESS_TASKS_MAX",
        kind=kinds.whole(0),
        help="How many tasks a child process runs before it is replaced; 0: any number.",
    )
    process_memory_max_mb: int = _setting(
        0,
        "QO_PROCESS_MEMORY_MAX_MB",
        kind=kinds.whole(0),
        help="A child process that has grown beyond this is replaced after its task; 0: never.",
    )
    spark_slots: int = _setting(
        1, "QO_SPARK_SLOTS", kind=kinds.whole(1, 1_000), help="How many Spark tasks run at a time, at most."
    )
    timeout_s: float | None = _setting(
        30.0,
        "QO_TIMEOUT_S",
        kind=kinds.optional(kinds.number(0.001)),
        help="Seconds that an attempt may take if neither its task nor its handler says; none: no limit.",
    )
    lease_s: float = _setting(
        60.0,
        "QO_LEASE_S",
        kind=kinds.number(1),
        help="Seconds for which a claim holds; renewed three times as often. A dead worker's tasks wait so long.",
    )
    dequeue_backoff_ms: int = _setting(
        50,
        "QO_DEQUEUE_BACKOFF_MS",
        kind=kinds.whole(1),
        help="Milliseconds of rest after a look at the queue that failed, or whose finds all went to others.",
    )
    control_s: float = _setting(
        5.0,
        "QO_CONTROL_S",
        kind=kinds.number(0.1),
        help="Seconds between looks at what operators want: pause, resume, drain, cancel.",
    )
    http: str = _setting(
        "127.0.0.1:0",
        "QO_WORKER_HTTP",
        kind=kinds.LISTEN,
        help="Where /stats, /metrics, /livez and /readyz are served; port 0: any free one; off: nowhere.",
    )
    shard_leasing: ShardLeasingSettings = ShardLeasingSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    check_interval: float = _setting(
        30.0,
        "QO_MONITOR_CHECK_INTERVAL",
        kind=kinds.number(0.1),
        help="Seconds between looks for expired leases.",
    )
    worker_health_threshold: float = _setting(
        60.0,
        "QO_MONITOR_WORKER_HEALTH_THRESHOLD",
        kind=kinds.number(0.1),
        help="Seconds without a heartbeat after which a worker counts as stale.",
    )
    sweep_interval: float = _setting(
        300.0,
        "QO_MONITOR_SWEEP_INTERVAL",
        kind=kinds.number(0),
        help="Seconds between sweeps that repair the indexes; 0 switches them off.",
    )
    sweep_page_size: int = _setting(
        1000,
        "QO_MONITOR_SWEEP_PAGE_SIZE",
        kind=_PAGE,
        help="How many objects one page of a sweep may return.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    durable: bool = _setting(
        False,
        "QO_LOCAL_DURABLE",
        kind=kinds.FLAG,
        help="Wait for the disk at each write: survives a power cut, not only a killed process. Slower.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. ``Settings()`` is the defaults; ``qo.config.sources.load`` reads the real ones."""

    store: str = _setting(
        "local:.qo",
        "QO_STORE",
        kind=kinds.STORE,
        help="Where the queue is kept. If unset, S3_BUCKET names a bucket.",
    )
    shard_prefix_len: int | None = _setting(
        None,
        "QO_SHARD_PREFIX_LEN",
        kind=kinds.whole(1, 4),
        help="16, 256, 4,096 or 65,536 shards. Unset: as the store says, 1 for a new one.",
    )
    allow_no_versioning: bool = _setting(
        False,
        "QO_ALLOW_NO_VERSIONING",
        kind=kinds.FLAG,
        help="Accept a bucket that keeps no versions; there is then no history.",
    )
    payload_threshold_bytes: int = _setting(
        262_144,
        "QO_PAYLOAD_THRESHOLD_BYTES",
        kind=kinds.whole(0, 64 * 1024 * 1024),
        help="Larger inputs and outputs are kept beside the task object, not in it.",
    )
    log_level: LogLevel = _setting(  # noqa: RUF009 - an immutable value, made once.
        LogLevel.INFO,
        "QO_LOG",
        kind=kinds.choice(LogLevel, {"warn": "warning"}),
        help="What is logged, on standard error.",
    )
    s3: S3Settings = S3Settings()
    worker: WorkerSettings = WorkerSettings()
    monitor: MonitorSettings = MonitorSettings()
    local: LocalSettings = LocalSettings()
    origins: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType[str, str]({}), repr=False, compare=False
    )

    @property
    def location(self) -> location.Location:
        return location.parse(self.store)

    def value(self, key: str) -> Any:
        """The value of a setting by its full name."""
        return attrgetter(key)(self)

    def origin(self, key: str) -> str:
        """Where the value came from, in words: "environment QO_CONCURRENCY", "qo.toml", "default"."""
        if key not in BY_KEY:
            raise KeyError(key)
        return self.origins.get(key, DEFAULT)


def _table(group: Any, within: str = "") -> Iterator[Setting]:
    for each in fields(group):
        if "kind" in each.metadata:
            yield _row(f"{within}{each.name}", each)
        elif each.name != "origins":
            yield from _table(each.default, f"{within}{each.name}.")


def _row(key: str, described: Any) -> Setting:
    told = described.metadata
    return Setting(key, told["env"], told["kind"], described.default, told["help"])


SETTINGS = tuple(_table(Settings))
BY_KEY: Mapping[str, Setting] = {row.key: row for row in SETTINGS}


def assemble(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    """Settings from checked values by full name; what is not given keeps its default."""
    settings = replace(_filled(Settings(), values), origins=MappingProxyType(dict(origins)))
    _check_together(settings)
    return settings


def _filled(group: Any, values: Mapping[str, Any]) -> Any:
    """The group with these values, by their names within it."""
    own = {key: value for key, value in values.items() if "." not in key}
    for name in {key.partition(".")[0] for key in values if "." in key}:
        inner = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
        own[name] = _filled(getattr(group, name), inner)
    return replace(group, **own)


def _check_together(settings: Settings) -> None:
    worker, origin = settings.worker, settings.origin
    if worker.poll_min_ms > worker.poll_max_ms:
        raise ConfigError(
            f"worker.poll_min_ms ({worker.poll_min_ms}, {origin('worker.poll_min_ms')}) is more than "
            f"worker.poll_max_ms ({worker.poll_max_ms}, {origin('worker.poll_max_ms')})"
        )
    leasing = worker.shard_leasing
    if 2 * leasing.lease_renew_interval_secs > leasing.lease_ttl_secs:
        group = "worker.shard_leasing"
        raise ConfigError(
            f"{group}.lease_renew_interval_secs ({leasing.lease_renew_interval_secs:g}, "
            f"{origin(f'{group}.lease_renew_interval_secs')}) is more than half of {group}.lease_ttl_secs "
            f"({leasing.lease_ttl_secs:g}, {origin(f'{group}.lease_ttl_secs')}): one late renewal would lose a lease"
        )
    if leasing.enabled and worker.shards:
        raise ConfigError(
            f"worker.shards ({origin('worker.shards')}) and worker.shard_leasing.enabled "
            f"({origin('worker.shard_leasing.enabled')}) exclude each other: shards are either chosen or leased"
        )
