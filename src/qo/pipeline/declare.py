"""Pipelines declared in Python. A declaration becomes the same document as a file, and is checked by the same rules.

    pipeline = qo.Pipeline("flights")
    departures = pipeline.files("landing/flights/*.csv")

    @pipeline.table(expect=[qo.not_null("day")], publish="flights")
    def clean(departures: DataFrame) -> DataFrame: ...

A decorated function is returned unchanged: workers import and call it under its own name, and so do tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from qo.core.pipeline.dag import Dag
from qo.pipeline.declaration import (
    Inputs,
    Job,
    JobName,
    Reading,
    Reads,
    drop_none,
    spot_of_caller,
    spot_of_function,
)
from qo.pipeline.declared_sources import SourceDeclaration
from qo.pipeline.declared_tables import TableDeclaration
from qo.pipeline.document import plain
from qo.pipeline.parsing import build_dag
from qo.pipeline.problems import Report, Spot
from qo.pipeline.query_inputs import OpenQuery
from qo.pipeline.registry import DEFAULT, Registry
from qo.pipeline.rendering import to_yaml
from qo.pipeline.sources import all_source_fields

P = ParamSpec("P")
R = TypeVar("R")

_SOURCE_FIELDS = tuple(field.name for field in all_source_fields())


class Pipeline(TableDeclaration, SourceDeclaration):
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
        defaults = drop_none(
            timeout_seconds=timeout_seconds,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            max_attempts=max_attempts,
        )
        head = drop_none(name=name, description=description, defaults=defaults or None)
        super().__init__(head, spot_of_caller(inspect.currentframe()))
        self.name = name

    @overload
    def source(self, function: Callable[P, R], /, *, kind: str, **options: Any) -> Callable[P, R]: ...

    @overload
    def source(
        self, /, *, kind: str, runtime: str = "python", name: str | None = None, outputs: int = 1, **fields: Any
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def source(self, function: Callable[..., Any] | None = None, /, *, kind: str, **options: Any) -> Any:
        """Declare a function as a source of the kind ``always_on``. The others call no function: see ``add``."""
        own = {key: options.pop(key) for key in _SOURCE_FIELDS if key in options}
        job = {
            "activation": "source",
            "source": {"kind": kind, **own},
            "runtime": "python",
            "outputs": 1,
            **options,
        }
        return self._declare(function, job, spot_of_caller(inspect.currentframe()))

    @overload
    def job(self, function: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...

    @overload
    def job(
        self,
        /,
        *,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        strategy: str | None = None,
        runtime: str = "python",
        name: str | None = None,
        outputs: int = 1,
        **fields: Any,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        strategy: str | None = None,
        **options: Any,
    ) -> Any:
        """Declare a function of a run as a job that runs when its inputs change. Other fields are those of the file.

        ``side`` lists jobs that are read without being waited for. ``table`` is for functions from frames to a frame.
        """
        reads = {"inputs": self._inputs(inputs, side) or None, "execution_strategy": strategy}
        job = {"activation": "reactive", "runtime": "python", "outputs": 1, **reads, **options}
        return self._declare(function, job, spot_of_caller(inspect.currentframe()))

    def add(
        self,
        name: str,
        *,
        operator: str | None = None,
        runtime: str | None = None,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        strategy: str | None = None,
        source: Mapping[str, Any] | None = None,
        outputs: int = 1,
        **fields: Any,
    ) -> JobName:
        """Declare a job whose operator is built in, or a function by its name ``module:function``.

        A source that runs no code (all but always_on) has neither operator nor runtime.
        """
        job = {
            "name": name,
            "activation": "source" if source is not None else "reactive",
            "runtime": runtime,
            "operator": operator,
            "outputs": outputs,
            "inputs": self._inputs(inputs, side) or None,
            "execution_strategy": strategy,
            "source": dict(source) if source is not None else None,
        }
        return self._add_job({**job, **fields}, spot_of_caller(inspect.currentframe()))

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
        origin = {"from": {"job": self._name(job), "output": output}}
        sink = drop_none(
            to=to, table=table, database=database, file=file, directory=directory, keep_seconds=keep_seconds
        )
        self._publish_output(name, {**origin, **sink}, spot_of_caller(inspect.currentframe()))

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

    def _declare(self, function: Callable[..., Any] | None, job: Mapping[str, Any], spot: Spot) -> Any:
        """Declare a function, or return a decorator that does."""
        if function is not None:
            self._add_function(function, job, spot)
            return function

        def declare(decorated: Callable[P, R]) -> Callable[P, R]:
            self._add_function(decorated, job, spot_of_function(decorated))
            return decorated

        return declare


def _make_input(
    from_: dict[str, Any],
    name: str | None,
    where: Mapping[str, Any] | None,
    trigger: bool,
    **others: Any,
) -> Reads:
    optional = drop_none(where=dict(where) if where else None, **others, **{"as": name})
    return Reads({"from": from_, **optional, **({} if trigger else {"trigger": False})})
