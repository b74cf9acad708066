"""The settings of the dispatcher and of its clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from qo.config import kinds
from qo.config.setting import setting


class LocalBundles(StrEnum):
    """How bundles run on the dispatcher's own machine."""

    OFF = "off"
    SANDBOX = "sandbox"
    UNSAFE = "unsafe"  # As the dispatcher's user, who is an admin.


def _accept_local_bundles(value: object) -> LocalBundles:
    text = str(value).strip().lower() if isinstance(value, str | bool) else ""
    if text == "true":
        raise kinds.InvalidValue("true meant no sandbox: write sandbox, or unsafe for what it was")
    if text not in ("false", *LocalBundles):
        raise kinds.InvalidValue
    return LocalBundles.OFF if text == "false" else LocalBundles(text)


_LOCAL_BUNDLES = kinds.Kind("one of off, sandbox, unsafe", lambda text: text, _accept_local_bundles)


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureSettings:
    depth: int = setting(
        1000,
        "QO_PRESSURE_DEPTH",
        kind=kinds.whole(1),
        help="When more wake-ups than this wait in a queue, its producers are paused.",
    )
    age_s: float = setting(
        300.0,
        "QO_PRESSURE_AGE_S",
        kind=kinds.number(0.1),
        help="When the oldest wake-up of a queue has waited this many seconds, its producers are paused.",
    )
    clear_ratio: float = setting(
        0.5,
        "QO_PRESSURE_CLEAR_RATIO",
        kind=kinds.number(0.0, 1.0),
        help="Producers resume when depth and age have fallen to this fraction of the thresholds.",
    )
    queues: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_PRESSURE_QUEUES",
        kind=kinds.PAIRS,
        help="Thresholds of single queues, as depth/seconds: spark=200/60,python=5000/600.",
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
        help="On SQLite, flush each transaction to the disk: it survives a power cut, not only a killed process. "
        "Slower. PostgreSQL has its own setting.",
    )
    listen: str = setting(
        "127.0.0.1:8470",
        "QO_DISPATCHER_LISTEN",
        kind=kinds.ADDRESS,
        help="The address of the API for people.",
    )
    internal_listen: str = setting(
        "127.0.0.1:8471",
        "QO_DISPATCHER_INTERNAL_LISTEN",
        kind=kinds.ADDRESS,
        help="The address of the API for workers and tasks. Keep it off public networks.",
    )
    url: str | None = setting(
        None,
        "QO_DISPATCHER_URL",
        kind=kinds.endpoint("QO_TOKEN"),
        help="The URL of the API for people, for commands; unset: they open the state database themselves.",
    )
    internal_url: str | None = setting(
        None,
        "QO_DISPATCHER_INTERNAL_URL",
        kind=kinds.endpoint("QO_WORKER_TOKEN"),
        help="The URL of the API for workers, for workers, the scheduler and sources; unset: internal_listen.",
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
        help="The token that workers present. Unset: the one in secrets_dir. Two, separated by a comma, to rotate it.",
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
        help="How long a loop sleeps when there is nothing to do; loops that others wake sleep five times as long.",
    )
    reconcile_s: float = setting(
        60.0,
        "QO_DISPATCHER_RECONCILE_S",
        kind=kinds.number(0.1),
        help="Seconds between checks for partitions and cursors that a job has missed.",
    )
    sweep_s: float = setting(
        300.0,
        "QO_DISPATCHER_SWEEP_S",
        kind=kinds.number(0.1),
        help="Seconds after which a released task that no worker has claimed gets another wake-up.",
    )
    keep_days: int = setting(
        90,
        "QO_DISPATCHER_KEEP_DAYS",
        kind=kinds.whole(0, 36_500),
        help="Days for which idempotency keys of sources, undeliverable wake-ups, results of data checks and rejected "
        "outputs are kept; 0: for ever.",
    )
    keep_history_days: int = setting(
        0,
        "QO_DISPATCHER_KEEP_HISTORY_DAYS",
        kind=kinds.whole(0, 36_500),
        help="Days for which tasks, attempts and events are kept that nothing depends on any more, because their work "
        "was done again since; 0: for ever.",
    )
    keep_versions_days: int = setting(
        0,
        "QO_DISPATCHER_KEEP_VERSIONS_DAYS",
        kind=kinds.whole(0, 36_500),
        help="Days after which a version that was replaced, rolled back or abandoned is given up: its data and its "
        "tasks go, and its jobs cannot be deployed again as they were; 0: never.",
    )
    purge_per_s: int = setting(
        500,
        "QO_DISPATCHER_PURGE_PER_S",
        kind=kinds.whole(1, 500),
        help="The most tasks or events a second that are examined to purge history.",
    )
    operator_limits: str | None = setting(
        None,
        "QO_OPERATOR_LIMITS",
        kind=kinds.TEXT,
        help="How many tasks of an operator may run at a time, as compact=2,ingest=8; unset: no limit.",
    )
    role_arn: str | None = setting(
        None,
        "QO_CREDENTIALS_ROLE_ARN",
        kind=kinds.TEXT,
        help="The role that credentials of tasks are minted from; unset: none are minted.",
    )
    catalog_role_arn: str | None = setting(
        None,
        "QO_CATALOG_ROLE_ARN",
        kind=kinds.TEXT,
        help="The role that credentials for readers of tables are minted from; unset: role_arn. off: none are minted.",
    )
    sts_endpoint: str | None = setting(
        None,
        "QO_STS_ENDPOINT",
        kind=kinds.ENDPOINT,
        help="The URL of an STS-compatible server; unset: s3.endpoint, or AWS.",
    )
    lambda_function: str | None = setting(
        None,
        "QO_LAMBDA_FUNCTION",
        kind=kinds.TEXT,
        help="The AWS Lambda function that runs bundles, by name or ARN; unset: none, but see QO_LAMBDA_LOCAL.",
    )
    lambda_local: LocalBundles = setting(  # noqa: RUF009 - an immutable value, made once.
        LocalBundles.OFF,
        "QO_LAMBDA_LOCAL",
        kind=_LOCAL_BUNDLES,
        help="Without a function, how bundles run on the dispatcher's machine. sandbox: in one, if the machine offers "
        "it. unsafe: as its own user, so that whoever may upload a bundle can do everything that this user can.",
    )
    lambda_endpoint: str | None = setting(
        None,
        "QO_LAMBDA_ENDPOINT",
        kind=kinds.ENDPOINT,
        help="The URL of a Lambda-compatible server; unset: AWS.",
    )
    lineage_url: str | None = setting(
        None,
        "QO_LINEAGE_URL",
        kind=kinds.ENDPOINT,
        help="The URL to which workers send OpenLineage events, besides writing them below the data; unset: none.",
    )
    body_max_bytes: int = setting(
        1_048_576,
        "QO_DISPATCHER_BODY_MAX_BYTES",
        kind=kinds.whole(1024),
        help="The largest request body that is accepted.",
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "QO_DISPATCHER_CORS_ORIGINS",
        kind=kinds.ORIGINS,
        help="Origins whose pages may call the API for people, such as that of a dashboard in a bucket; unset: none.",
    )
    coalesce_writes: bool = setting(
        True,
        "QO_DISPATCHER_COALESCE_WRITES",
        kind=kinds.FLAG,
        help="Send the head and the body of a small response in one packet. false: as uvicorn does by itself, to find "
        "out whether this is at fault; responses take longer.",
    )
    serve_queue: bool = setting(
        False,
        "QO_DISPATCHER_SERVE_QUEUE",
        kind=kinds.FLAG,
        help="Serve the HTTP API of the queue, too, below /v1/queue/ of the API for people: readers look, writers do "
        "the rest. The settings of [serve] apply, except for its address and tokens.",
    )
    pressure: PressureSettings = PressureSettings()

    @property
    def data_root(self) -> str:
        """``data`` with an absolute path, so that the location of a file means the same to every process."""
        scheme, _, path = self.data.partition(":")
        return f"file:{Path(path).expanduser().absolute()}" if scheme == "file" else self.data
