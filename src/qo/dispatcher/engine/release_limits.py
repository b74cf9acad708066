"""Limits from the settings: how many tasks may be in flight at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qo.config.dispatcher import DispatcherSettings, PressureSettings
from qo.core.pipeline.gates import Cap
from qo.core.pipeline.pressure import Thresholds
from qo.errors import ConfigError
from qo.pipeline.registry import DEFAULT, Registry

_THRESHOLDS = re.compile(r"([1-9][0-9]{0,6})/([1-9][0-9]{0,6}(?:\.[0-9]{1,3})?)\Z", re.ASCII)
_FORM = "write operator=number, separated by commas, for example compact=2,ingest=8"


@dataclass(frozen=True, slots=True)
class Limits:
    """``operators``: the most tasks in flight per operator, over all jobs; an operator that is not listed has no limit.

    ``queue_depth``: the most wake-ups that wait in one queue; None: no limit.
    """

    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    queue_depth: int | None = None
    caps: tuple[Cap, ...] = ()  # Those of the registry: of runtimes, their queues and their operators.


def limits(settings: DispatcherSettings, registry: Registry = DEFAULT) -> Limits:
    """Raises ConfigError for an ``operator_limits`` that cannot be read."""
    # More than the depth that trips the queue, or it would never trip; at least one, or nothing would run.
    pressure = thresholds(settings.pressure)
    deepest = max(each.depth or 0 for each in (pressure, *pressure.queues.values()))
    return Limits(_parse_operators(settings.operator_limits or ""), max(1, 2 * deepest), caps_of(registry))


def caps_of(registry: Registry) -> tuple[Cap, ...]:
    """Return the limits that a registry sets."""
    caps: list[Cap] = []
    for runtime in registry.runtimes.values():
        name, queues = f"runtime {runtime.name}", frozenset(runtime.queues)
        if runtime.max_in_flight is not None:
            caps.append(Cap(name, runtime.max_in_flight, queues))
        caps += [Cap(f"queue {queue}", most, frozenset({queue})) for queue, most in runtime.queue_limits.items()]
        caps += [
            Cap(f"operator {operator} in {name}", most, queues, operator)
            for operator, most in runtime.operator_limits.items()
        ]
    return tuple(caps)


def thresholds(settings: PressureSettings) -> Thresholds:
    """Raises ConfigError for ``pressure.queues`` that cannot be read."""
    common = Thresholds(settings.depth, settings.age_s, settings.clear_ratio)
    return replace(common, queues={name: _parse_queue(name, text, common) for name, text in settings.queues})


def _parse_queue(name: str, text: str, common: Thresholds) -> Thresholds:
    match = _THRESHOLDS.match(text.strip())
    if match is None:
        raise ConfigError(
            f"QO_PRESSURE_QUEUES: {name}={text} has no thresholds: write {name}=depth/seconds, such as {name}=200/60"
        )
    return replace(common, depth=int(match[1]), age_s=float(match[2]))


def _parse_operators(text: str) -> dict[str, int]:
    by_operator: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        # An operator may be module:function, but never has an equals sign in it.
        name, equals, number = (each.strip() for each in part.rpartition("="))
        if not name or not equals or not number.isascii() or not number.isdigit() or int(number) < 1:
            raise ConfigError(f"QO_OPERATOR_LIMITS: {part!r} is no limit: {_FORM}")
        if name in by_operator:
            raise ConfigError(f"QO_OPERATOR_LIMITS: {name!r} is limited twice: {_FORM}")
        by_operator[name] = int(number)
    return by_operator
