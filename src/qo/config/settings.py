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
from qo.config.dispatcher import DispatcherSettings
from qo.config.setting import PAGE, Setting, setting
from qo.config.spark import SparkSettings
from qo.config.ui import UiSettings
from qo.config.worker import WorkerSettings
from qo.errors import ConfigError

DEFAULT = "default"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Isolation(StrEnum):
    """Where the code of a pipeline's version runs."""

    AUTO = "auto"  # Beside other versions, unless its source shows that it cannot.
    PROCESS = "process"  # In a process of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    endpoint: str | None = setting(
        None, "S3_ENDPOINT", kind=kinds.ENDPOINT, help="Where an S3-compatible server listens; unset: AWS."
    )
    region: str | None = setting(
        None,
        "S3_REGION",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        kind=kinds.NAME,
        help="The region of the bucket; unset: as the AWS config files say, else us-east-1.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    check_interval_s: float = setting(
        30.0,
        "QO_MONITOR_CHECK_INTERVAL_S",
        kind=kinds.number(0.1),
        help="Seconds between looks for expired leases.",
    )
    worker_health_threshold_s: float | None = setting(
        None,
        "QO_MONITOR_WORKER_HEALTH_THRESHOLD_S",
        kind=kinds.number(0.1),
        help="Seconds without a heartbeat after which a worker counts as stale; unset: four of its own heartbeats.",
    )
    sweep_interval_s: float = setting(
        300.0,
        "QO_MONITOR_SWEEP_INTERVAL_S",
        kind=kinds.number(0),
        help="Seconds between sweeps that repair the indexes; 0 switches them off.",
    )
    sweep_page_size: int = setting(
        1000,
        "QO_MONITOR_SWEEP_PAGE_SIZE",
        kind=PAGE,
        help="How many objects one page of a sweep may return.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    durable: bool = setting(
        False,
        "QO_LOCAL_DURABLE",
        kind=kinds.FLAG,
        help="Wait for the disk at each write: survives a power cut, not only a killed process. Slower.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. ``Settings()`` is the defaults; ``qo.config.sources.load`` reads the real ones."""

    store: str = setting(
        "local:.qo",
        "QO_STORE",
        kind=kinds.STORE,
        help="Where the queue is kept. If unset, S3_BUCKET names a bucket.",
    )
    shard_prefix_len: int | None = setting(
        None,
        "QO_SHARD_PREFIX_LEN",
        kind=kinds.whole(1, 4),
        help="16, 256, 4,096 or 65,536 shards. Unset: as the store says, 1 for a new one.",
    )
    allow_no_versioning: bool = setting(
        False,
        "QO_ALLOW_NO_VERSIONING",
        kind=kinds.FLAG,
        help="Accept a bucket that keeps no versions; there is then no history.",
    )
    payload_threshold_bytes: int = setting(
        262_144,
        "QO_PAYLOAD_THRESHOLD_BYTES",
        kind=kinds.whole(0, 64 * 1024 * 1024),
        help="Larger inputs and outputs are kept beside the task object, not in it.",
    )
    log_level: LogLevel = setting(  # noqa: RUF009 - an immutable value, made once.
        LogLevel.INFO,
        "QO_LOG",
        kind=kinds.choice(LogLevel, {"warn": "warning"}),
        help="What is logged, on standard error.",
    )
    include: tuple[str, ...] = setting(
        (),
        "QO_INCLUDE",
        kind=kinds.WORDS,
        help="Files beside its modules that travel with the code of a version, as patterns such as rules/*.json.",
    )
    isolation: Isolation = setting(  # noqa: RUF009 - an immutable value, made once.
        Isolation.AUTO,
        "QO_ISOLATION",
        kind=kinds.choice(Isolation),
        help="auto: a version's code runs beside others unless its source shows that it cannot; process: never.",
    )
    s3: S3Settings = S3Settings()
    worker: WorkerSettings = WorkerSettings()  # noqa: RUF009 - an immutable value, made once.
    monitor: MonitorSettings = MonitorSettings()
    local: LocalSettings = LocalSettings()
    dispatcher: DispatcherSettings = DispatcherSettings()  # noqa: RUF009 - an immutable value, made once.
    spark: SparkSettings = SparkSettings()  # noqa: RUF009 - an immutable value, made once.
    ui: UiSettings = UiSettings()  # noqa: RUF009 - an immutable value, made once.
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
    return Setting(key, told["env"], told["kind"], described.default, told["help"], told["secret"])


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
    if 2 * leasing.lease_renew_interval_s > leasing.lease_ttl_s:
        group = "worker.shard_leasing"
        raise ConfigError(
            f"{group}.lease_renew_interval_s ({leasing.lease_renew_interval_s:g}, "
            f"{origin(f'{group}.lease_renew_interval_s')}) is more than half of {group}.lease_ttl_s "
            f"({leasing.lease_ttl_s:g}, {origin(f'{group}.lease_ttl_s')}): one late renewal would lose a lease"
        )
    if leasing.enabled and worker.shards:
        raise ConfigError(
            f"worker.shards ({origin('worker.shards')}) and worker.shard_leasing.enabled "
            f"({origin('worker.shard_leasing.enabled')}) exclude each other: shards are either chosen or leased"
        )
