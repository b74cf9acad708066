"""The settings of the dispatcher, and of those who talk to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qo.config import kinds
from qo.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureSettings:
    depth: int = setting(
        1000,
        "QO_PRESSURE_DEPTH",
        kind=kinds.whole(1),
        help="Waiting wake-ups of one queue above which its producers are paused.",
    )
    age_s: float = setting(
        300.0,
        "QO_PRESSURE_AGE_S",
        kind=kinds.number(0.1),
        help="Seconds the oldest wake-up may wait before its producers are paused.",
    )
    clear_ratio: float = setting(
        0.5,
        "QO_PRESSURE_CLEAR_RATIO",
        kind=kinds.number(0.0, 1.0),
        help="Producers go on when depth and age have fallen to this part of the thresholds.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherSettings:
    state: str = setting(
        "sqlite:.qo/state.db",
        "QO_STATE",
        kind=kinds.STATE,
        secret=True,
        help="The state database: sqlite:PATH, or postgresql://USER@HOST/NAME.",
    )
    state_durable: bool = setting(
        False,
        "QO_STATE_DURABLE",
        kind=kinds.FLAG,
        help="On SQLite, wait for the disk at each transaction: survives a power cut, not only a killed process. "
        "Each then takes a flush of the disk longer. PostgreSQL has its own setting.",
    )
    listen: str = setting(
        "127.0.0.1:8470",
        "QO_DISPATCHER_LISTEN",
        kind=kinds.ADDRESS,
        help="Where the API for people is served.",
    )
    internal_listen: str = setting(
        "127.0.0.1:8471",
        "QO_DISPATCHER_INTERNAL_LISTEN",
        kind=kinds.ADDRESS,
        help="Where the API for workers and tasks is served. Keep it off public networks.",
    )
    url: str | None = setting(
        None,
        "QO_DISPATCHER_URL",
        kind=kinds.endpoint("QO_TOKEN"),
        help="The dispatcher's API for people, for commands that ask it; unset: open the state database here.",
    )
    internal_url: str | None = setting(
        None,
        "QO_DISPATCHER_INTERNAL_URL",
        kind=kinds.endpoint("QO_WORKER_TOKEN"),
        help="The dispatcher's API for workers, for workers, the scheduler and sources; unset: internal_listen.",
    )
    token: str | None = setting(
        None,
        "QO_TOKEN",
        kind=kinds.TEXT,
        secret=True,
        help="The token that commands present to the dispatcher; see qo token create.",
    )
    worker_token: str | None = setting(
        None,
        "QO_WORKER_TOKEN",
        kind=kinds.TEXT,
        secret=True,
        help="The token that workers present. Unset: kept in secrets_dir. Two, separated by a comma, while it changes.",
    )
    secrets_dir: str = setting(
        ".qo/secrets",
        "QO_SECRETS_DIR",
        kind=kinds.TEXT,
        help="The directory of signing keys, the worker token and webhook secrets, readable by its owner only.",
    )
    data: str = setting(
        "file:.qo/data",
        "QO_DATA",
        kind=kinds.DATA,
        help="Where datasets are written: file:PATH or s3://BUCKET/PREFIX.",
    )
    tick_ms: int = setting(
        200,
        "QO_DISPATCHER_TICK_MS",
        kind=kinds.whole(1, 60_000),
        help="How long the loops rest when there was nothing to do; those that others wake, five times as long.",
    )
    reconcile_s: float = setting(
        60.0,
        "QO_DISPATCHER_RECONCILE_S",
        kind=kinds.number(0.1),
        help="Seconds between looks for partitions and cursors that a job has missed.",
    )
    sweep_s: float = setting(
        300.0,
        "QO_DISPATCHER_SWEEP_S",
        kind=kinds.number(0.1),
        help="A released task that nobody claimed for so long is woken again.",
    )
    keep_days: int = setting(
        90,
        "QO_DISPATCHER_KEEP_DAYS",
        kind=kinds.whole(0, 36_500),
        help="Days for which idempotency keys of sources, wake-ups that were given up, checks of data and outputs "
        "that failed them are kept; 0: for ever.",
    )
    operator_limits: str | None = setting(
        None,
        "QO_OPERATOR_LIMITS",
        kind=kinds.TEXT,
        help="How many tasks of an operator may be under way, as compact=2,ingest=8; unset: no limit.",
    )
    role_arn: str | None = setting(
        None,
        "QO_CREDENTIALS_ROLE_ARN",
        kind=kinds.TEXT,
        help="The role that credentials of tasks are minted from; unset: none are minted.",
    )
    sts_endpoint: str | None = setting(
        None,
        "QO_STS_ENDPOINT",
        kind=kinds.ENDPOINT,
        help="Where an STS-compatible server listens; unset: AWS.",
    )
    lambda_function: str | None = setting(
        None,
        "QO_LAMBDA_FUNCTION",
        kind=kinds.TEXT,
        help="The AWS Lambda function that runs bundles, by name or ARN; unset: none do, see QO_LAMBDA_LOCAL.",
    )
    lambda_local: bool = setting(
        False,
        "QO_LAMBDA_LOCAL",
        kind=kinds.FLAG,
        help="Without a function, run bundles as processes of the dispatcher's own user, who is an admin. No sandbox: "
        "whoever may upload a bundle may then do what that user may.",
    )
    lambda_endpoint: str | None = setting(
        None,
        "QO_LAMBDA_ENDPOINT",
        kind=kinds.ENDPOINT,
        help="Where a Lambda-compatible server listens; unset: AWS.",
    )
    lineage_url: str | None = setting(
        None,
        "QO_LINEAGE_URL",
        kind=kinds.ENDPOINT,
        help="Where workers send OpenLineage events, besides writing them below the data; unset: nowhere.",
    )
    body_max_bytes: int = setting(
        1_048_576,
        "QO_DISPATCHER_BODY_MAX_BYTES",
        kind=kinds.whole(1024),
        help="The largest request body that is read.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "QO_DISPATCHER_CORS_ORIGINS",
        kind=kinds.ORIGINS,
        help="Origins whose pages may ask the API for people, such as that of a dashboard in a bucket; unset: none.",
    )
    coalesce_writes: bool = setting(
        True,
        "QO_DISPATCHER_COALESCE_WRITES",
        kind=kinds.FLAG,
        help="Send the head and the body of a small response in one packet. false: as uvicorn does by itself, to find "
        "out whether this is at fault; responses take longer.",
    )
    pressure: PressureSettings = PressureSettings()

    @property
    def data_root(self) -> str:
        """``data``, a relative path made absolute: what one process is told of a file must mean the same to another."""
        scheme, _, path = self.data.partition(":")
        return f"file:{Path(path).expanduser().absolute()}" if scheme == "file" else self.data
