"""The settings of runtimes: a table [runtimes.NAME] for each that is added, or that differs from what is built in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.config.scaling import SCALING, ScalingSettings
from qo.core.idleness import parse_idle_s
from qo.core.pipeline.bundle import check_variable
from qo.errors import UsageError

# A name of a runtime or a queue is a part of keys in the bucket.
RUNTIME_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}\Z")
_MEMORY = re.compile(r"[1-9][0-9]{0,8}(?:[KMGT]i?)?\Z")

Counts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """One table; None and empty: as the kind has it."""

    name: str
    kind: str | None = None
    image: str | None = None
    memory: str | None = None
    cpu: float | None = None
    queues: tuple[str, ...] = ()  # As name=weight; the first is for jobs that name none.
    timeout_seconds: float | None = None
    idle_timeout: str | None = None
    max_in_flight: int | None = None
    parallel: int | None = None
    env: tuple[str, ...] = ()
    network: bool | None = None
    engine: tuple[str, ...] = ()
    queue_limits: Counts = ()
    operator_limits: Counts = ()
    scaling: ScalingSettings | None = None  # None: whoever runs qo starts its workers.


RuntimeTables = tuple[RuntimeSettings, ...]


def _accept_memory(value: Any) -> str:
    if not isinstance(value, str) or not _MEMORY.match(value):
        raise InvalidValue
    return value


def _accept_idle(value: Any) -> str:
    if type(value) is int and value == 0:
        return "0"  # TOML reads a number there.
    if not isinstance(value, str) or not _is_idle(value):
        raise InvalidValue
    return value.strip()


def _is_idle(text: str) -> bool:
    try:
        parse_idle_s(text)
    except ValueError:
        return False
    return True


IDLE = Kind("never, 0, or a time such as 30s, 5m or 2h", lambda text: text, _accept_idle)


def _accept_jobs_or_idle(value: Any) -> str:
    return "jobs" if isinstance(value, str) and value.strip().lower() == "jobs" else _accept_idle(value)


IDLE_OR_JOBS = Kind(f"{IDLE.description}, or jobs", lambda text: text, _accept_jobs_or_idle)


def _accept_queues(value: Any) -> tuple[str, ...]:
    queues = cast("tuple[str, ...]", kinds.QUEUES.accept(value))
    if not queues or not all(RUNTIME_NAME.match(each.rpartition("=")[0]) for each in queues):
        raise InvalidValue
    return queues


_QUEUES = Kind(
    'a list of queues, with weights if they differ, such as ["quick=3", "slow"]', lambda text: text, _accept_queues
)


def _accept_counts(value: Any) -> Counts:
    if not isinstance(value, dict):
        raise InvalidValue
    accept = kinds.whole(1).accept
    return tuple((name, accept(each)) for name, each in cast("dict[str, Any]", value).items())


_COUNTS = Kind("a table of whole numbers of at least 1", lambda text: text, _accept_counts)


def _accept_variables(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast("list[Any]", value)):
        raise InvalidValue
    names = cast("list[str]", value)
    for each in names:
        try:
            check_variable(each)
        except UsageError as error:
            raise InvalidValue(str(error)) from None
    return tuple(names)


def _accept_engine(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue
    try:
        return tuple(shlex.split(value))
    except ValueError as error:
        raise InvalidValue(str(error)) from None


_FIELDS: Mapping[str, Kind] = {
    "kind": kinds.NAME,
    "image": kinds.TEXT,
    "memory": Kind("an amount such as 512Mi or 4Gi", lambda text: text, _accept_memory),
    "cpu": kinds.number(0.001),
    "queues": _QUEUES,
    "timeout_seconds": kinds.number(1, 86_400),
    "idle_timeout": IDLE,
    "max_in_flight": kinds.whole(1),
    "parallel": kinds.whole(1, 1000),
    "env": Kind("a list of names of environment variables", lambda text: text, _accept_variables),
    "network": kinds.FLAG,
    "engine": Kind("a command line such as docker, or podman --remote", lambda text: text, _accept_engine),
    "queue_limits": _COUNTS,
    "operator_limits": _COUNTS,
    "scaling": SCALING,
}


def _from_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidValue("it is not JSON") from None


def _accept_runtimes(value: Any) -> RuntimeTables:
    if not isinstance(value, dict):
        raise InvalidValue
    return tuple(_accept_table(name, table) for name, table in cast("dict[str, Any]", value).items())


def _accept_table(name: str, table: Any) -> RuntimeSettings:
    if not RUNTIME_NAME.match(name):
        raise InvalidValue(
            f"{name!r} is no name: take lower-case letters, digits, _ and -, beginning with a letter"
        )
    if not isinstance(table, dict):
        raise InvalidValue(f"{name} is no table of settings")
    values: dict[str, Any] = {}
    for key, raw in cast("dict[str, Any]", table).items():
        if key not in _FIELDS:
            raise InvalidValue(f"[runtimes.{name}] has {key!r}; it takes {', '.join(_FIELDS)}")
        values[key] = _accept_field(name, key, raw, _FIELDS[key].accept)
    return RuntimeSettings(name=name, **values)


def _accept_field(name: str, key: str, raw: Any, accept: Callable[[Any], Any]) -> Any:
    try:
        return accept(raw)
    except InvalidValue as invalid:
        detail = f" ({invalid})" if invalid.args else ""
        raise InvalidValue(f"{name}.{key} must be {_FIELDS[key].description}{detail}") from None


RUNTIMES = Kind("tables [runtimes.NAME], or the same as JSON", _from_text, _accept_runtimes)
