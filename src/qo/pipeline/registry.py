"""The registry of runtimes that a job may name under ``runtime``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from qo.core.pipeline.dag import Job, SourceKind
from qo.errors import NotFound
from qo.pipeline.operators.built_in import operators_of

FUNCTION = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*\Z")  # module:function


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

    @property
    def queue(self) -> str:
        """The prefix of its queue, below ``queues/``."""
        return self.name

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


def registry(runtimes: Iterable[Runtime]) -> Registry:
    return Registry({each.name: each for each in runtimes})


DEFAULT = registry(
    (
        Runtime(
            "spark",
            Launcher.QUEUE,
            operators=operators_of("spark"),
            functions=True,
            timeout_seconds=1800.0,
        ),
        Runtime(
            "python", Launcher.QUEUE, operators=operators_of("python"), functions=True, timeout_seconds=1800.0
        ),
        Runtime(
            "lambda", Launcher.INVOKE, operators=operators_of("lambda"), functions=False, timeout_seconds=60.0
        ),
        Runtime(
            "dispatcher",
            Launcher.IN_PROCESS,
            operators=operators_of("dispatcher"),
            functions=False,
            timeout_seconds=60.0,
        ),
    )
)
