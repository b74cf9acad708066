"""What a declaration in Python collects: jobs, publications, and where each was declared."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, cast

import msgspec

from qo.core.pipeline.expectation import Expectation
from qo.errors import UsageError
from qo.pipeline.problems import Problem, Spot


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
Inputs = Sequence[Reading] | Mapping[str, Reading]  # A mapping has the names that the operator calls them.


class Declaration:
    """The jobs and publications that were declared so far, as a file would have them."""

    def __init__(self, head: Mapping[str, Any], spot: Spot) -> None:
        self._head = dict(head)
        self._jobs: list[dict[str, Any]] = []
        self._publish: dict[str, Any] = {}
        self._names: dict[Any, str] = {}  # Of declared functions.
        self._problems: list[Problem] = []
        self._spot = spot
        self._spot.parts = {name: Spot(spot.file, spot.line, 1, {}) for name in ("jobs", "publish")}

    def _add_job(self, job: Mapping[str, Any], spot: Spot) -> JobName:
        self._spot.parts["jobs"].parts[len(self._jobs)] = spot
        self._jobs.append(drop_none(**job))
        return JobName(job["name"])

    def _add_function(self, function: Callable[..., Any], job: Mapping[str, Any], spot: Spot) -> None:
        name = job.get("name") or getattr(function, "__name__", "")
        operator = f"{function.__module__}:{getattr(function, '__qualname__', name)}"
        self._add_job({**job, "name": name, "operator": operator}, spot)
        self._names[function] = name

    def _publish_output(self, name: str, output: Mapping[str, Any], spot: Spot) -> None:
        if name in self._publish:
            hint = "publish it under another name"
            self._problems.append(Problem(spot.file, spot.line, 1, f"{name!r} is published twice", hint))
        self._publish[name] = dict(output)
        self._spot.parts["publish"].parts[name] = spot

    def _inputs(self, inputs: Inputs, side: Sequence[Reading] = ()) -> list[Mapping[str, Any]]:
        """Return inputs as a file has them; those of ``side`` start nothing."""
        if isinstance(inputs, Mapping):
            triggering = [{**self._input(each), "as": name} for name, each in inputs.items()]
        else:
            triggering = [dict(self._input(each)) for each in inputs]
        return [*triggering, *({**self._input(each), "trigger": False} for each in side)]

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


def drop_none(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def write_expectations(expect: Sequence[Expectation]) -> list[Any] | None:
    """Return expectations as a file has them; None if there are none."""
    return [msgspec.to_builtins(each) for each in expect] or None


def write_partitions(partition: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return a declaration of partitions: their kind alone, or all its fields."""
    return {"kind": partition} if isinstance(partition, str) else partition


def name_job(name: str | None, frame: FrameType | None, method: str) -> str:
    """Return the name that was given, or that of the variable to which the caller of a method assigns its result.

    Raises UsageError if there is neither.
    """
    above = frame.f_back if frame is not None else None
    assigned = name or (_assigned_names(above.f_code).get(above.f_lasti) if above is not None else None)
    if assigned is None:
        place = f"{above.f_code.co_filename}:{above.f_lineno}: " if above is not None else ""
        raise UsageError(f"{place}pipeline.{method} needs a name: assign it to a variable, or pass name=")
    return assigned


@lru_cache(maxsize=256)
def _assigned_names(code: CodeType) -> Mapping[int, str]:
    """Return the variable that each call is assigned to, by the position of the call in the code."""
    names: dict[int, str] = {}
    call: int | None = None
    for each in dis.get_instructions(code):
        if each.opname.startswith("STORE_") and call is not None and each.opname not in _OTHER_STORES:
            variable: Any = each.argval  # A pair, where an instruction stores two.
            stored = variable if isinstance(variable, str) else variable[0]
            # While a call runs, its frame stands at the call or, in some versions of Python, at its inline caches.
            names |= dict.fromkeys(range(call, each.offset), stored)
        if each.opname not in ("EXTENDED_ARG", "CACHE"):
            call = each.offset if each.opname.startswith("CALL") else None
    return names


_OTHER_STORES = ("STORE_SUBSCR", "STORE_ATTR", "STORE_SLICE")


def spot_of_caller(frame: FrameType | None) -> Spot:
    """Return where the method with this frame was called."""
    above = frame.f_back if frame is not None else None
    return Spot(above.f_code.co_filename, above.f_lineno) if above is not None else Spot("<python>")


def spot_of_function(function: Callable[..., Any]) -> Spot:
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType):
        return Spot("<python>")
    return Spot(inner.__code__.co_filename, inner.__code__.co_firstlineno)
