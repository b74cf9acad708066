"""All settings, with their variables, defaults and help.

The fields below are the only table of settings. ``qo.config.origins`` fills them, ``qo config show`` prints them and
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
from qo.config.encryption import EncryptionSettings
from qo.config.fetch import FetchSettings
from qo.config.push import PushSettings
from qo.config.queue import QueueSettings
from qo.config.retention import RetentionSettings
from qo.config.runtimes import RUNTIMES, RuntimeTables
from qo.config.scaling import ScalerSettings
from qo.config.secret_keys import SecretsSettings
from qo.config.serve import ServeSettings
from qo.config.setting import PAGE, Setting, setting
from qo.config.sink import SinkSettings
from qo.config.spark import SparkSettings
from qo.config.telemetry import TelemetrySettings
from qo.config.ui import UiSettings
from qo.config.worker import WorkerSettings
from qo.core import push as push_rules
from qo.core.dispatch import Dispatch
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
        None, "S3_ENDPOINT", kind=kinds.ENDPOINT, help="The URL of an S3-compatible server; unset: AWS."
    )
    region: str | None = setting(
        None,
        "S3_REGION",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        kind=kinds.NAME,
        help="The region of the bucket; unset: as in the AWS config files, else us-east-1.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    check_interval_s: float = setting(
        30.0,
        "QO_MONITOR_CHECK_INTERVAL_S",
        kind=kinds.number(0.1),
        help="Seconds between checks for expired leases.",
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
    http: str = setting(
        "off",
        "QO_MONITOR_HTTP",
        kind=kinds.LISTEN,
        help="The address at which qo monitor serves the depth of the queue as /metrics; workers do at worker.http.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    durable: bool = setting(
        False,
        "QO_LOCAL_DURABLE",
        kind=kinds.FLAG,
        help="Flush each write to the disk: it survives a power cut, not only a killed process. Slower.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. ``Settings()`` has the defaults; ``qo.config.origins.load`` reads the configured values."""

    store: str = setting(
        "local:.qo",
        "QO_STORE",
        kind=kinds.STORE,
        help="The store of the queue. If unset, S3_BUCKET names a bucket.",
    )
    shard_prefix_len: int | None = setting(
        None,
        "QO_SHARD_PREFIX_LEN",
        kind=kinds.whole(1, 4),
        help="16, 256, 4,096 or 65,536 shards, by 1 to 4. Unset: as in the store, 1 for a new one.",
    )
    allow_no_versioning: bool = setting(
        False,
        "QO_ALLOW_NO_VERSIONING",
        kind=kinds.FLAG,
        help="Accept a bucket without versioning; tasks then have no history.",
    )
    payload_threshold_bytes: int = setting(
        262_144,
        "QO_PAYLOAD_THRESHOLD_BYTES",
        kind=kinds.whole(0, 64 * 1024 * 1024),
        help="Larger inputs and outputs are stored beside the task object, not in it.",
    )
    log_level: LogLevel = setting(  # noqa: RUF009 - an immutable value, made once.
        LogLevel.INFO,
        "QO_LOG",
        kind=kinds.choice(LogLevel, {"warn": "warning"}),
        help="The level of the log, on standard error.",
    )
    include: tuple[str, ...] = setting(
        (),
        "QO_INCLUDE",
        kind=kinds.WORDS,
        help="Files that are bundled with the code of a version besides its modules, as patterns such as rules/*.json.",
    )
    isolation: Isolation = setting(  # noqa: RUF009 - an immutable value, made once.
        Isolation.AUTO,
        "QO_ISOLATION",
        kind=kinds.choice(Isolation),
        help="auto: a version's code runs beside others unless its source shows that it cannot; process: never.",
    )
    runtimes: RuntimeTables = setting(  # noqa: RUF009 - an immutable value, made once.
        (),
        "QO_RUNTIMES",
        kind=RUNTIMES,
        help="The runtimes of pipelines that are added, or differ from what is built in: tables [runtimes.NAME].",
    )
    s3: S3Settings = S3Settings()
    queue: QueueSettings = QueueSettings()  # noqa: RUF009 - an immutable value, made once.
    worker: WorkerSettings = WorkerSettings()  # noqa: RUF009 - an immutable value, made once.
    monitor: MonitorSettings = MonitorSettings()
    retention: RetentionSettings = RetentionSettings()  # noqa: RUF009 - an immutable value, made once.
    local: LocalSettings = LocalSettings()
    encryption: EncryptionSettings = EncryptionSettings()  # noqa: RUF009 - an immutable value, made once.
    dispatcher: DispatcherSettings = DispatcherSettings()  # noqa: RUF009 - an immutable value, made once.
    secrets: SecretsSettings = SecretsSettings()  # noqa: RUF009 - an immutable value, made once.
    scaler: ScalerSettings = ScalerSettings()  # noqa: RUF009 - an immutable value, made once.
    fetch: FetchSettings = FetchSettings()  # noqa: RUF009 - an immutable value, made once.
    push: PushSettings = PushSettings()  # noqa: RUF009 - an immutable value, made once.
    serve: ServeSettings = ServeSettings()  # noqa: RUF009 - an immutable value, made once.
    sink: SinkSettings = SinkSettings()  # noqa: RUF009 - an immutable value, made once.
    spark: SparkSettings = SparkSettings()  # noqa: RUF009 - an immutable value, made once.
    telemetry: TelemetrySettings = TelemetrySettings()  # noqa: RUF009 - an immutable value, made once.
    ui: UiSettings = UiSettings()  # noqa: RUF009 - an immutable value, made once.
    origins: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType[str, str]({}), repr=False, compare=False
    )

    @property
    def location(self) -> location.Location:
        return location.parse(self.store)

    def value(self, key: str) -> Any:
        """Return the value of a setting by its full name."""
        return attrgetter(key)(self)

    def origin(self, key: str) -> str:
        """Return where the value comes from, in words: "environment QO_CONCURRENCY", "qo.toml", "default"."""
        if key not in BY_KEY:
            raise KeyError(key)
        return self.origins.get(key, DEFAULT)


def _rows(group: Any, within: str = "") -> Iterator[Setting]:
    for each in fields(group):
        if "kind" in each.metadata:
            yield _row(f"{within}{each.name}", each)
        elif each.name != "origins":
            yield from _rows(each.default, f"{within}{each.name}.")


def _row(key: str, field_: Any) -> Setting:
    metadata = field_.metadata
    return Setting(key, metadata["env"], metadata["kind"], field_.default, metadata["help"], metadata["secret"])


SETTINGS = tuple(_rows(Settings))
BY_KEY: Mapping[str, Setting] = {row.key: row for row in SETTINGS}


def assemble(values: Mapping[str, Any], origins: Mapping[str, str]) -> Settings:
    """Build the settings from validated values by full name; others keep their default. Raises ConfigError."""
    settings = replace(_with_values(Settings(), values), origins=MappingProxyType(dict(origins)))
    _check_combinations(settings)
    return settings


def _with_values(group: Any, values: Mapping[str, Any]) -> Any:
    """Return the group with these values, by their names within it."""
    own = {key: value for key, value in values.items() if "." not in key}
    for name in {key.partition(".")[0] for key in values if "." in key}:
        inner = {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
        own[name] = _with_values(getattr(group, name), inner)
    return replace(group, **own)


def _check_keys(settings: Settings, table: str) -> None:
    values = settings.value(table)
    sources = [name for name in ("keys", "key_file", "keys_from") if getattr(values, name) is not None]
    if len(sources) > 1:
        places = " and ".join(f"{table}.{name} ({settings.origin(f'{table}.{name}')})" for name in sources)
        raise ConfigError(f"{places} exclude each other: set one of them")


def _check_combinations(settings: Settings) -> None:
    _check_keys(settings, "encryption")
    _check_keys(settings, "secrets")
    worker, origin = settings.worker, settings.origin
    if worker.poll_min_ms > worker.poll_max_ms:
        raise ConfigError(
            f"worker.poll_min_ms ({worker.poll_min_ms}, {origin('worker.poll_min_ms')}) is more than "
            f"worker.poll_max_ms ({worker.poll_max_ms}, {origin('worker.poll_max_ms')})"
        )
    _check_push(settings)
    _check_dispatch(settings)
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
            f"({origin('worker.shard_leasing.enabled')}) exclude each other: set one of them"
        )


def _check_dispatch(settings: Settings) -> None:
    if settings.queue.dispatch is Dispatch.DIRECT and settings.worker.shard_leasing.enabled:
        raise ConfigError(
            f"queue.dispatch = direct ({settings.origin('queue.dispatch')}) and worker.shard_leasing.enabled "
            f"({settings.origin('worker.shard_leasing.enabled')}) exclude each other: tasks are divided among the "
            "workers either by inboxes or by shards; set one of them"
        )


def _check_push(settings: Settings) -> None:
    push, origin = settings.push, settings.origin
    if push.token is not None and min(map(len, push.tokens), default=0) < push_rules.TOKEN_CHARS_MIN:
        raise ConfigError(
            f"push.token ({origin('push.token')}) is too short to be a secret: take {push_rules.TOKEN_CHARS_MIN} "
            "characters or more, for example of openssl rand -hex 32"
        )
