"""Every setting: its name, its variable, its default, and what it is for.

The fields below are the one table. ``qo.config.sources`` fills them, ``qo config show`` prints them and
``docs/reference/settings.md`` documents them; a test compares the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from qo.config import kinds, location
from qo.config.kinds import Kind
from qo.core.discovery import IndexMode
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
        return "--" + self.key.rpartition(".")[2].replace("_", "-")


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
        help="Seconds that running tasks have to finish after a stop signal; then they are given back.",
    )


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
        group, _, name = key.rpartition(".")
        return getattr(getattr(self, group) if group else self, name)

    def origin(self, key: str) -> str:
        """Where the value came from, in words: "environment QO_CONCURRENCY", "qo.toml", "default"."""
        if key not in BY_KEY:
            raise KeyError(key)
        return self.origins.get(key, DEFAULT)


def _table() -> tuple[Setting, ...]:
    rows: list[Setting] = []
    for top in fields(Settings):
        if "kind" in top.metadata:
            rows.append(_row(top.name, top))
        elif top.name != "origins":
            group: Any = top.default
            rows.extend(_row(f"{top.name}.{inner.name}", inner) for inner in fields(group))
    return tuple(rows)


def _row(key: str, described: Any) -> Setting:
    told = described.metadata
    return Setting(key, told["env"], told["kind"], described.default, told["help"])


SETTINGS = _table()
BY_KEY: Mapping[str, Setting] = {row.key: row for row in SETTINGS}


def assemble(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    """Settings from checked values by full name; what is not given keeps its default."""
    groups: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        groups.setdefault(group, {})[name] = value
    defaults = Settings()
    nested = {name: replace(getattr(defaults, name), **inner) for name, inner in groups.items() if name}
    settings = replace(defaults, **groups.get("", {}), **nested, origins=MappingProxyType(dict(origins)))
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    worker, origin = settings.worker, settings.origin
    if worker.poll_min_ms > worker.poll_max_ms:
        raise ConfigError(
            f"worker.poll_min_ms ({worker.poll_min_ms}, {origin('worker.poll_min_ms')}) is more than "
            f"worker.poll_max_ms ({worker.poll_max_ms}, {origin('worker.poll_max_ms')})"
        )
