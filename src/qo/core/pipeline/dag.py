"""A pipeline as its author wrote it: jobs, what they read, and what they publish.

These are the fields of the YAML file, documented for users in ``docs/reference/dag.md``. ``qo.pipeline`` turns a file
into a ``Dag`` and validates it; ``core.pipeline.plan`` derives its ids.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from qo.core.pipeline.columns import Drift
from qo.core.pipeline.expectation import Expectation
from qo.core.pipeline.partitions import Partitions
from qo.core.struct_preload import preload

HEARTBEAT_TIMEOUT_S = 60  # A lease lapses after so long without a heartbeat.
MAX_ATTEMPTS = 3


class Activation(StrEnum):
    SOURCE = "source"  # Emits events by itself.
    REACTIVE = "reactive"  # Runs because an input changed.


class SourceKind(StrEnum):
    MANUAL = "manual"
    CRON = "cron"
    WEBHOOK = "webhook"
    ALWAYS_ON = "always_on"
    FILES = "files"  # Watches a prefix of a store or a directory.
    HTTP = "http"  # Watches files behind URLs.


class Strategy(StrEnum):
    PER_UPDATE = "PerUpdate"  # One task per cursor event.
    PER_PARTITION = "PerPartition"  # One task per partition event.
    PER_CHANGE = "PerChange"  # One task at a time, for all that has changed since the last one.


# Of jobs whose tasks have no key of a partition.
WITHOUT_KEYS = frozenset({Strategy.PER_UPDATE, Strategy.PER_CHANGE})


class UpdateStrategy(StrEnum):
    APPEND = "append"
    REPLACE = "replace"


class Refresh(StrEnum):
    """What happens to partitions when a side input (``trigger: false``) that they were made from has changed."""

    MANUAL = "manual"  # They are stale until somebody rebuilds them.
    ON_CHANGE = "on_change"  # They are rebuilt.


class Join(StrEnum):
    """What a PerPartition job with several triggering inputs waits for."""

    ANY = "any"  # A task for each event on either input.
    ALL = "all"  # One task for a partition, when every triggering input has it.


class Complete(StrEnum):
    """When a partition that is made of others is made for the first time."""

    ALL = "all"  # Once every partition that it reads is there.
    ANNOUNCED = "announced"  # At its deadline, of those that are there.
    ANY = "any"  # As soon as one is there.


class BackpressureMode(StrEnum):
    """What a job does while something downstream of it is overfull."""

    HOLD = "hold"  # It waits; each announcement of a source is made later, one by one.
    COALESCE = "coalesce"  # It waits; what a source would have announced meanwhile becomes one announcement.
    IGNORE = "ignore"  # It goes on.


class SinkKind(StrEnum):
    """Where a published dataset is copied to, besides its files."""

    POSTGRES = "postgres"  # A table in a PostgreSQL database.
    FILES = "files"  # Files for others, in a directory or bucket.


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class From(_Part, frozen=True, kw_only=True):
    """An output of a job of this DAG, or a published dataset by its name; one of the two."""

    job: str | None = None
    output: int = 0
    dataset: str | None = None


class Input(_Part, frozen=True, kw_only=True, rename={"from_": "from", "name": "as"}):
    from_: From
    name: str | None = None  # What the operator calls it; unset: the job's or dataset's name.
    where: dict[str, Any] = {}  # Field to scalar (equal) or list (one of); applied by the reader.
    trigger: bool = True  # False: a side input, whose events start no task.
    refresh: Refresh = Refresh.MANUAL  # For side inputs only.
    window: int = 1  # How many partitions of the job it reads back, its own among them.
    offset: int = 0  # By how many partitions of the job it is moved; -1: the one before.


class Source(_Part, frozen=True, kw_only=True):
    kind: SourceKind
    schedule: str | None = None  # cron: five fields, or "rate(5 minutes)".
    timezone: str | None = None
    offset: int = 0  # cron: by how many partitions the one that is announced is moved; -1: the one before.
    webhook_path: str | None = None
    secret: str | None = None  # webhook: the logical name of the secret that signs.
    path: str | None = None  # files: a directory, or s3://bucket/prefix.
    pattern: str = "*"  # files: which names count.
    key: str | None = None  # files, http: which part of a path is the key, see core.pipeline.key_pattern.
    poll_seconds: int = 30  # files, http: how often to look.
    urls: tuple[str, ...] = ()  # http: the files.
    index_url: str | None = None  # http: a file that lists them.
    url: str | None = None  # http: one file for each partition, see core.pipeline.url_pattern.


class Bootstrap(_Part, frozen=True, kw_only=True):
    reset_outputs: bool = False


class Scaling(_Part, frozen=True, kw_only=True):
    max_concurrency: int | None = None


class Udf(_Part, frozen=True, kw_only=True):
    bundle_id: str
    entrypoint: str


class Job(_Part, frozen=True, kw_only=True):
    name: str
    activation: Activation
    runtime: str
    operator: str
    outputs: int
    queue: str | None = None  # Of the runtime; None: its first.
    group: str | None = None  # Jobs that people see together.
    update_strategy: UpdateStrategy = UpdateStrategy.REPLACE
    inputs: tuple[Input, ...] = ()
    execution_strategy: Strategy | None = None
    join: Join = Join.ANY
    unique_key: tuple[str, ...] = ()
    source: Source | None = None
    bootstrap: Bootstrap | None = None
    idle_timeout: str | None = None
    secrets: tuple[str, ...] = ()
    scaling: Scaling = Scaling()
    max_queue_depth: int | None = (
        None  # More waiting tasks than this pause what feeds the job; None: no threshold.
    )
    max_queue_age: str | None = None  # So does a task that waits for longer.
    backpressure_mode: BackpressureMode | None = None  # None: what its kind does, see core.pipeline.pressure.
    timeout_seconds: int | None = None  # Of one attempt; None: that of the runtime.
    heartbeat_timeout_seconds: int | None = None
    max_attempts: int | None = None
    config: dict[str, Any] = {}
    udf: Udf | None = None
    code: str | None = None  # Fingerprint of the operator's code: another fingerprint is another edition.
    cursor_column: str | None = None  # Its smallest and largest value are kept with each commit.
    drift: Drift = Drift.FAIL
    expectations: tuple[Expectation, ...] = ()
    partitions: Partitions | None = None  # Of its outputs. None: those of its inputs, see core.pipeline.plan.
    complete: Complete = Complete.ALL  # For jobs whose partitions are made of others.
    deadline: str | None = None  # How long after its end a partition is made of what is there; None: never.

    @property
    def is_source(self) -> bool:
        return self.activation is Activation.SOURCE


class Defaults(_Part, frozen=True, kw_only=True):
    runtime: str | None = None  # Of functions; written into the jobs before a DAG is made of them.
    timeout_seconds: int | None = None
    heartbeat_timeout_seconds: int | None = None
    max_attempts: int | None = None


class Publish(_Part, frozen=True, kw_only=True, rename={"from_": "from"}):
    from_: From
    to: SinkKind | None = None
    table: str | None = None  # postgres: as [schema.]table; unset: the published name.
    database: str | None = None  # postgres: by the name that settings give it.
    file: str | None = None  # files: the pattern of their names, see core.pipeline.file_pattern.
    directory: str | None = None  # files: by the name that settings give it.
    keep_seconds: int | None = None  # files: how long replaced ones stay.


class Dag(_Part, frozen=True, kw_only=True):
    name: str
    jobs: tuple[Job, ...]
    defaults: Defaults = Defaults()
    publish: dict[str, Publish] = {}
    description: str | None = None


preload(Dag)


def resolve_defaults(dag: Dag) -> Dag:
    """Return the DAG with its defaults written into every job, and the jobs in order of name.

    Two files with the same meaning become equal here; the result is what is hashed, stored and shown.
    """
    jobs = tuple(sorted((_with_defaults(job, dag.defaults) for job in dag.jobs), key=lambda job: job.name))
    return replace(dag, jobs=jobs, defaults=Defaults(), publish=dict(sorted(dag.publish.items())))


def _with_defaults(job: Job, defaults: Defaults) -> Job:
    def first_set(own: int | None, common: int | None, else_: int | None) -> int | None:
        return own if own is not None else common if common is not None else else_

    beat = first_set(job.heartbeat_timeout_seconds, defaults.heartbeat_timeout_seconds, HEARTBEAT_TIMEOUT_S)
    return replace(
        job,
        timeout_seconds=first_set(job.timeout_seconds, defaults.timeout_seconds, None),
        heartbeat_timeout_seconds=beat,
        max_attempts=first_set(job.max_attempts, defaults.max_attempts, MAX_ATTEMPTS),
        inputs=tuple(replace(each, name=input_name(each)) for each in job.inputs),
    )


def input_name(each: Input) -> str:
    """Return the name by which the operator knows an input."""
    return each.name or each.from_.job or each.from_.dataset or ""


def to_json(value: Any) -> bytes:
    """Return canonical JSON: equal values have equal bytes."""
    return msgspec.json.encode(value, order="deterministic")


def from_json(document: bytes | str) -> Dag:
    return msgspec.json.decode(document, type=Dag)
