"""Declares tables in Python: functions on Spark whose parameters name inputs, queries, and files that become tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from qo.core.pipeline.expectation import Expectation
from qo.pipeline.declaration import (
    Declaration,
    Inputs,
    JobName,
    Reading,
    drop_none,
    name_job,
    spot_of_caller,
    spot_of_function,
    write_expectations,
    write_partitions,
)
from qo.pipeline.problems import Spot

P = ParamSpec("P")
R = TypeVar("R")

# Parameters of an operator on Spark that are no inputs, see spark.operators.functions.
_NO_INPUTS = ("config", "run", "spark")


class TableDeclaration(Declaration):
    @overload
    def table(self, function: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...

    @overload
    def table(
        self,
        /,
        *,
        name: str | None = None,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        partition: str | Mapping[str, Any] | None = None,
        expect: Sequence[Expectation] = (),
        config: Mapping[str, Any] | None = None,
        publish: str | None = None,
        **fields: Any,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    def table(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a function from frames to a frame: a table, made on Spark when its inputs change.

        Each parameter names the job that it reads. ``inputs`` maps parameters to other inputs, ``side`` lists jobs
        that are read without being waited for, and ``publish`` is a name for the table. The function stays as it is.
        """
        spot = spot_of_caller(inspect.currentframe())
        if function is not None:
            self._add_table(function, spot, **options)
            return function

        def declare(decorated: Callable[P, R]) -> Callable[P, R]:
            self._add_table(decorated, spot_of_function(decorated), **options)
            return decorated

        return declare

    def sql(
        self,
        query: str,
        *,
        name: str | None = None,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        partition: str | Mapping[str, Any] | None = None,
        expect: Sequence[Expectation] = (),
        publish: str | None = None,
        **fields: Any,
    ) -> JobName:
        """Declare a table by a query in Spark SQL, or by a file ``*.sql`` with it. The jobs that it names are read."""
        frame = inspect.currentframe()
        job = {
            "name": name_job(name, frame, "sql"),
            "inputs": self._inputs(inputs, side) or None,
            "sql": query,
            **_common(partition, expect),
            **fields,
        }
        return self._add_published(job, publish, spot_of_caller(frame))

    def files(
        self,
        path: str,
        *,
        name: str | None = None,
        columns: str | None = None,
        format: str | None = None,
        options: Mapping[str, Any] | None = None,
        missing: str | None = None,
        key: str | None = None,
        poll_seconds: int | None = None,
        source: str | None = None,
        partition: str | Mapping[str, Any] | None = None,
        expect: Sequence[Expectation] = (),
        publish: str | None = None,
        **fields: Any,
    ) -> JobName:
        """Declare a table of files that arrive, such as ``landing/*.csv``. ``partition`` is the kind of their keys."""
        frame = inspect.currentframe()
        files = drop_none(
            path=path,
            key=key,
            poll_seconds=poll_seconds,
            format=format,
            options=options,
            columns=columns,
            missing=missing,
            source=source,
        )
        job = {"name": name_job(name, frame, "files"), "files": files, **_common(partition, expect), **fields}
        return self._add_published(job, publish, spot_of_caller(frame))

    def ingest(
        self,
        of: Reading,
        *,
        format: str,
        name: str | None = None,
        columns: str | None = None,
        options: Mapping[str, Any] | None = None,
        missing: str | None = None,
        partition: str | Mapping[str, Any] | None = None,
        expect: Sequence[Expectation] = (),
        publish: str | None = None,
        **fields: Any,
    ) -> JobName:
        """Declare a table of the files that another job has written."""
        frame = inspect.currentframe()
        job = {
            "name": name_job(name, frame, "ingest"),
            "operator": "ingest",
            "inputs": self._inputs([of]),
            "config": drop_none(format=format, options=options, columns=columns, missing=missing),
            **_common(partition, expect),
            **fields,
        }
        return self._add_published(job, publish, spot_of_caller(frame))

    def _add_table(
        self,
        function: Callable[..., Any],
        spot: Spot,
        *,
        name: str | None = None,
        inputs: Inputs = (),
        side: Sequence[Reading] = (),
        partition: str | Mapping[str, Any] | None = None,
        expect: Sequence[Expectation] = (),
        publish: str | None = None,
        **fields: Any,
    ) -> None:
        declared = self._inputs(inputs, side)
        names = {
            str(each.get("as") or dict(each["from"]).get("job") or dict(each["from"]).get("dataset"))
            for each in declared
        }
        parameters = [{"from": {"job": each}} for each in _input_parameters(function) if each not in names]
        job = {
            "name": name,
            "runtime": "spark",
            "inputs": [*parameters, *declared],
            **_common(partition, expect),
            **fields,
        }
        self._add_function(function, job, spot)
        self._publish_job(self._names[function], publish, spot)

    def _add_published(self, job: Mapping[str, Any], publish: str | None, spot: Spot) -> JobName:
        declared = self._add_job(job, spot)
        self._publish_job(declared.name, publish, spot)
        return declared

    def _publish_job(self, job: str, name: str | None, spot: Spot) -> None:
        if name is not None:
            self._publish_output(name, {"from": {"job": job}}, spot)


def _common(partition: str | Mapping[str, Any] | None, expect: Sequence[Expectation]) -> dict[str, Any]:
    return {"partitions": write_partitions(partition), "expectations": write_expectations(expect)}


def _input_parameters(function: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters that name inputs: all that have no default, but those for the run and its configuration."""
    for name, parameter in inspect.signature(function).parameters.items():
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if not is_variadic and parameter.default is parameter.empty and name not in _NO_INPUTS:
            yield name
