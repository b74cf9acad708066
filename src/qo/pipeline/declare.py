"""Pipelines declared in Python. A declaration becomes the same document as a file, and is checked by the same rules.

    pipeline = qo.Pipeline("sales")
    orders = pipeline.add("orders", source={"kind": "manual"})

    @pipeline.job(inputs=[orders], strategy="PerPartition", runtime="python")
    def totals(task): ...

    pipeline.publish("daily_totals", totals)

A decorated function is returned unchanged, so workers import and call it under its own name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from qo.core.pipeline.dag import Dag
from qo.pipeline.document import plain
from qo.pipeline.parsing import build_dag
from qo.pipeline.problems import Problem, Report, Spot
from qo.pipeline.query_inputs import OpenQuery
from qo.pipeline.registry import DEFAULT, Registry
from qo.pipeline.rendering import to_yaml
from qo.pipeline.sources import all_source_fields

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobName:
    """A reference to a job of a pipeline, for inputs and for publishing."""

    name: str


@dataclass(frozen=True, slots=True)
class Reads:
    """An input with more than the job that it comes from."""

    input: Mapping[str, Any]


Job = JobName | Callable[..., Any] | str  # A declared job, or its name.
Reading = Job | Reads | Mapping[str, Any]


class Pipeline:
    """Collects jobs. Nothing is checked before ``document()``, which reports everything that is wrong at once."""

    def __init__(
        self,
        name: str,
        *,
        description: str | None = None,
        timeout_seconds: int | None = None,
        heartbeat_timeout_seconds: int | None = None,
        max_attempts: int | None = None,
    ) -> None:
        defaults = _drop_none(
            timeout_seconds=timeout_seconds,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            max_attempts=max_attempts,
        )
        self.name = name
        self._head = _drop_none(name=name, description=description, defaults=defaults or None)
        self._jobs: list[dict[str, Any]] = []
        self._publish: dict[str, Any] = {}
        self._names: dict[Any, str] = {}  # Of decorated functions.
        self._problems: list[Problem] = []
        self._spot = _spot_of_caller(inspect.currentframe())
        self._spot.parts = {name: Spot(self._spot.file, self._spot.line, 1, {}) for name in ("jobs", "publish")}

    def source(
        self, *, kind: str, runtime: str = "python", name: str | None = None, outputs: int = 1, **fields: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Declare a function as a source of the kind ``always_on``. Others call no function: see ``add``."""
        own = {key: fields.pop(key) for key in _SOURCE_FIELDS if key in fields}
        job = {"source": {"kind": kind, **own}, "runtime": runtime, "outputs": outputs, **fields}
        return self._decorator(name, {"activation": "source", **job})

    def job(
        self,
        *,
        inputs: Sequence[Reading] = (),
        strategy: str | None = None,
        runtime: str = "python",
        name: str | None = None,
        outputs: int = 1,
        **fields: Any,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Declare a function as a job that runs when its inputs change. Other fields are those of the file.

        It needs inputs and a strategy; ``document`` reports a job without them, and where it was declared.
        """
        job = {"runtime": runtime, "outputs": outputs, "execution_strategy": strategy, **fields}
        return self._decorator(name, {"activation": "reactive", "inputs": self._inputs(inputs) or None, **job})

    def add(
        self,
        name: str,
        *,
        operator: str | None = None,
        runtime: str | None = None,
        inputs: Sequence[Reading] = (),
        strategy: str | None = None,
        source: Mapping[str, Any] | None = None,
        outputs: int = 1,
        **fields: Any,
    ) -> JobName:
        """Declare a job whose operator is built in, or a function by its name ``module:function``.

        A source that runs no code (all but always_on) has neither operator nor runtime.
        """
        job = _drop_none(
            name=name,
            activation="source" if source is not None else "reactive",
            runtime=runtime,
            operator=operator,
            outputs=outputs,
            inputs=self._inputs(inputs) or None,
            execution_strategy=strategy,
            source=dict(source) if source is not None else None,
        )
        self._add_job({**job, **fields}, _spot_of_caller(inspect.currentframe()))
        return JobName(name)

    def input(
        self,
        job: Job,
        *,
        output: int = 0,
        name: str | None = None,
        where: Mapping[str, Any] | None = None,
        trigger: bool = True,
        refresh: str | None = None,
        window: int | None = None,
        offset: int | None = None,
    ) -> Reads:
        """Return an output of a job of this pipeline as an input."""
        return _make_input(
            {"job": self._name(job), "output": output},
            name,
            where,
            trigger,
            refresh=refresh,
            window=window,
            offset=offset,
        )

    def dataset(
        self,
        dataset: str,
        *,
        name: str | None = None,
        where: Mapping[str, Any] | None = None,
        trigger: bool = True,
        refresh: str | None = None,
        window: int | None = None,
        offset: int | None = None,
    ) -> Reads:
        """Return a published dataset of any pipeline as an input."""
        return _make_input(
            {"dataset": dataset}, name, where, trigger, refresh=refresh, window=window, offset=offset
        )

    def publish(
        self,
        name: str,
        job: Job,
        *,
        output: int = 0,
        to: str | None = None,
        table: str | None = None,
        database: str | None = None,
        file: str | None = None,
        directory: str | None = None,
        keep_seconds: int | None = None,
    ) -> None:
        """Give an output a name under which other pipelines read it.

        ``to="postgres"``: also keep a table of a database up with it; see ``table`` and ``database`` of the file.
        ``to="files"``: also keep files for others up with it; see ``file``, ``directory`` and ``keep_seconds``.
        """
        spot = _spot_of_caller(inspect.currentframe())
        if name in self._publish:
            hint = "publish it under another name"
            self._problems.append(Problem(spot.file, spot.line, 1, f"{name!r} is published twice", hint))
        sink = _drop_none(
            to=to, table=table, database=database, file=file, directory=directory, keep_seconds=keep_seconds
        )
        self._publish[name] = {"from": {"job": self._name(job), "output": output}, **sink}
        self._spot.parts["publish"].parts[name] = spot

    def document(
        self,
        *,
        registry: Registry = DEFAULT,
        known_datasets: Mapping[str, str] | None = None,
        open_query: OpenQuery | None = None,
    ) -> Dag:
        """Return the resolved DAG. Raises DefinitionError, whose problems point to where jobs were declared."""
        report = Report(self._spot, list(self._problems))
        whole = {**self._head, "jobs": self._jobs, **({"publish": self._publish} if self._publish else {})}
        return build_dag(
            plain(whole, report), report, registry=registry, known_datasets=known_datasets, open_query=open_query
        )

    def to_yaml(self) -> str:
        """Return the definition file with the same meaning."""
        return to_yaml(self.document())

    def _decorator(self, name: str | None, fields: dict[str, Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
        def declare(function: Callable[P, R]) -> Callable[P, R]:
            job_name = name or getattr(function, "__name__", "")
            operator = f"{function.__module__}:{getattr(function, '__qualname__', job_name)}"
            self._add_job({"name": job_name, "operator": operator, **fields}, _spot_of_function(function))
            self._names[function] = job_name
            return function

        return declare

    def _add_job(self, job: dict[str, Any], spot: Spot) -> None:
        self._spot.parts["jobs"].parts[len(self._jobs)] = spot
        self._jobs.append({key: value for key, value in job.items() if value is not None})

    def _inputs(self, inputs: Sequence[Reading]) -> list[Any]:
        return [self._input(each) for each in inputs]

    def _input(self, each: Reading) -> Mapping[str, Any]:
        if isinstance(each, Reads):
            return each.input
        if isinstance(each, Mapping):
            return cast("Mapping[str, Any]", each)  # As in a file.
        return {"from": {"job": self._name(each)}}

    def _name(self, job: Job) -> Any:
        if isinstance(job, JobName):
            return job.name
        if isinstance(job, str):
            return job
        return self._names.get(job, f"{getattr(job, '__name__', job)}")


_SOURCE_FIELDS = tuple(field.name for field in all_source_fields())


def _make_input(
    from_: dict[str, Any],
    name: str | None,
    where: Mapping[str, Any] | None,
    trigger: bool,
    **others: Any,
) -> Reads:
    optional = _drop_none(where=dict(where) if where else None, **others, **{"as": name})
    return Reads({"from": from_, **optional, **({} if trigger else {"trigger": False})})


def _drop_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _spot_of_caller(frame: FrameType | None) -> Spot:
    """Return where the method with this frame was called."""
    above = frame.f_back if frame is not None else None
    return Spot(above.f_code.co_filename, above.f_lineno) if above is not None else Spot("<python>")


def _spot_of_function(function: Callable[..., Any]) -> Spot:
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return Spot("<python>")
    return Spot(inner.__code__.co_filename, inner.__code__.co_firstlineno)
