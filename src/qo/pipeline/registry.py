"""The registry of runtimes that a job may name under ``runtime``: those that are built in, and those of the settings.

A runtime has queues. A job runs from the one that it names under ``queue``, or from the first of its runtime; so slow
jobs need not stand before quick ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from qo.config.kinds import parse_queues
from qo.config.runtimes import RuntimeSettings
from qo.core.pipeline.dag import Job, SourceKind
from qo.errors import ConfigError, NotFound, UsageError
from qo.pipeline.operators.built_in import operators_of

FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*\Z")  # module:function
SPARK = "spark"
CONTAINER = "container"


class Launcher(StrEnum):
    """Who starts the work of a runtime."""

    QUEUE = "queue"  # A worker that reads the runtime's queue.
    INVOKE = "invoke"  # The dispatcher calls a function service.
    IN_PROCESS = "in_process"  # The dispatcher itself: bookkeeping only, no compute.


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    launcher: Launcher
    operators: frozenset[str]  # The built-in ones.
    functions: bool  # Whether module:function is an operator too.
    timeout_seconds: float  # Of one attempt, where the job sets none.
    kind: str = ""  # Which built-in runtime it works like; empty: it is one.
    weights: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # By queue; empty: one, named as the runtime.
    image: str | None = None  # For whoever starts its workers, as are the next two.
    memory: str | None = None
    cpu: float | None = None
    idle_timeout: str | None = None  # Of its workers, where a job sets none.
    max_in_flight: int | None = None
    parallel: int = 8  # How many of its functions one dispatcher runs at a time.
    env: tuple[str, ...] = ()  # Variables of the dispatcher that its functions may request.
    network: bool | None = None  # Whether its functions reach the network; None: as its kind has it.
    engine: tuple[str, ...] = ()  # The container engine; empty: none runs.
    queue_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    operator_limits: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def queues(self) -> tuple[str, ...]:
        """The prefixes of its queues, below ``queues/``. The first is for jobs that name none."""
        return tuple(self.weights) or (self.name,)

    @property
    def works_like(self) -> str:
        return self.kind or self.name

    @property
    def reaches_network(self) -> bool | None:
        """Whether its functions reach the network, as its kind has it if the settings do not say; None: the dispatcher
        does not decide that, for they run in workers or in the dispatcher itself."""
        if self.launcher is not Launcher.INVOKE:
            return None
        return self.works_like == CONTAINER if self.network is None else self.network

    def queue_of(self, job: Job) -> str | None:
        """Return the queue of a job of this runtime; None: the runtime does not have the one that the job names."""
        if job.queue is None:
            return self.queues[0]
        return job.queue if job.queue in self.queues else None

    def timeout_s(self, job: Job) -> float | None:
        """Return how long one attempt of the job may take; None: unlimited while it sends heartbeats."""
        if job.timeout_seconds is not None:
            return float(job.timeout_seconds)
        always_on = job.source is not None and job.source.kind is SourceKind.ALWAYS_ON
        return None if always_on else self.timeout_seconds

    def accepts(self, operator: str) -> bool:
        return operator in self.operators or (self.functions and FUNCTION.match(operator) is not None)


@dataclass(frozen=True, slots=True)
class Registry:
    runtimes: Mapping[str, Runtime]

    def get(self, name: str) -> Runtime:
        """Return a runtime. Raises NotFound for an unknown name."""
        if name not in self.runtimes:
            raise NotFound(f"there is no runtime {name!r}: write one of {', '.join(sorted(self.runtimes))}")
        return self.runtimes[name]

    def with_workers(self, name: str) -> Runtime:
        """Return a runtime whose tasks run in workers. Raises NotFound, and UsageError for one without workers."""
        runtime = self.get(name)
        if runtime.launcher is not Launcher.QUEUE:
            raise UsageError(f"runtime {name!r} has no workers: the dispatcher starts its tasks itself")
        return runtime

    def of_queue(self, queue: str) -> Runtime | None:
        """Return the runtime of a queue; None if no runtime has it."""
        return next((each for each in self.runtimes.values() if queue in each.queues), None)

    def missing_reason(self, job: Job) -> str | None:
        """Return why no worker can run a job that was deployed earlier; None if one can."""
        runtime = self.runtimes.get(job.runtime)
        if runtime is None:
            return (
                f"this dispatcher has no runtime {job.runtime!r}: add [runtimes.{job.runtime}] to its settings, or "
                "deploy the job with another"
            )
        if runtime.queue_of(job) is None:
            return (
                f"the runtime {runtime.name} of this dispatcher has no queue {job.queue!r}: add it to queues of "
                f"[runtimes.{runtime.name}], or deploy the job with one of {', '.join(runtime.queues)}"
            )
        return None


def registry(runtimes: Iterable[Runtime]) -> Registry:
    return Registry({each.name: each for each in runtimes})


def _built_in(name: str, launcher: Launcher, timeout_seconds: float) -> Runtime:
    functions = launcher is Launcher.QUEUE
    return Runtime(name, launcher, operators_of(name), functions=functions, timeout_seconds=timeout_seconds)


DEFAULT = registry(
    (
        _built_in(SPARK, Launcher.QUEUE, 1800.0),
        _built_in("python", Launcher.QUEUE, 1800.0),
        _built_in("lambda", Launcher.INVOKE, 60.0),
        _built_in(CONTAINER, Launcher.INVOKE, 1800.0),
        _built_in("dispatcher", Launcher.IN_PROCESS, 60.0),
    )
)
_COPIED = (*(each.name for each in DEFAULT.runtimes.values() if each.launcher is Launcher.QUEUE), "container")
# Settings that only some kinds have.
_OWN_SETTINGS = {
    "parallel": ("lambda", "container"),
    "env": ("lambda", "container"),
    "network": ("lambda", "container"),
    "engine": ("container",),
}


def configured_registry(tables: Iterable[RuntimeSettings]) -> Registry:
    """Return the built-in runtimes with those of the settings. Raises ConfigError for tables that contradict."""
    runtimes = dict(DEFAULT.runtimes)
    for table in tables:
        runtimes[table.name] = _configured(table)
    owners: dict[str, str] = {}
    for each in runtimes.values():
        for queue in each.queues:
            if queue in owners:
                raise ConfigError(
                    f"the queue {queue!r} belongs to both runtimes {owners[queue]} and {each.name}: a worker of one "
                    "would take tasks of the other; give one of them another name under queues"
                )
            owners[queue] = each.name
    return Registry(runtimes)


def _configured(table: RuntimeSettings) -> Runtime:
    place = f"[runtimes.{table.name}]"
    kind = _kind_of(table, place)
    base = DEFAULT.runtimes[kind]
    if table.queues and base.launcher is not Launcher.QUEUE:
        raise ConfigError(
            f"{place}: queues are for runtimes with workers, and the dispatcher starts {kind} itself"
        )
    for name, kinds in _OWN_SETTINGS.items():
        if getattr(table, name) not in (None, ()) and kind not in kinds:
            raise ConfigError(f"{place}: {name} is a setting of {' and '.join(kinds)}, not of {kind}")
    if table.scaling is not None and base.launcher is not Launcher.QUEUE:
        raise ConfigError(
            f"{place}: scaling is for runtimes with workers, and the dispatcher starts {kind} itself"
        )
    weights = parse_queues(table.queues)
    limits = dict(table.queue_limits)
    runtime = replace(
        base,
        name=table.name,
        kind=kind,
        weights=weights,
        timeout_seconds=base.timeout_seconds if table.timeout_seconds is None else table.timeout_seconds,
        image=table.image,
        memory=table.memory,
        cpu=table.cpu,
        idle_timeout=table.idle_timeout,
        max_in_flight=table.max_in_flight,
        parallel=base.parallel if table.parallel is None else table.parallel,
        env=table.env,
        network=table.network,
        engine=table.engine,
        queue_limits=limits,
        operator_limits=dict(table.operator_limits),
    )
    unknown = sorted(limits.keys() - set(runtime.queues))
    if unknown:
        raise ConfigError(
            f"{place}: queue_limits names {unknown[0]!r}, and its queues are {', '.join(runtime.queues)}"
        )
    foreign = sorted(each for each in runtime.operator_limits if not runtime.accepts(each))
    if foreign:
        raise ConfigError(f"{place}: operator_limits names {foreign[0]!r}, which is no operator of {kind}")
    return runtime


def _kind_of(table: RuntimeSettings, place: str) -> str:
    built_in = DEFAULT.runtimes.get(table.name)
    if built_in is not None:
        if table.kind not in (None, table.name):
            raise ConfigError(f"{place}: {table.name} is built in, and stays of its own kind; leave out kind")
        return table.name
    if table.kind not in _COPIED:
        mistake = "has no kind" if table.kind is None else f"has the kind {table.kind!r}"
        raise ConfigError(f"{place} {mistake}: write kind = one of {', '.join(map(repr, _COPIED))}")
    return table.kind
