"""Limits from the settings: how many tasks may be in flight at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qo.config.dispatcher import DispatcherSettings, PressureSettings
from qo.core.pipeline.pressure import Thresholds
from qo.errors import ConfigError

_FORM = "write operator=number, separated by commas, for example compact=2,ingest=8"


@dataclass(frozen=True, slots=True)
class Limits:
    """``operators``: the most tasks in flight per operator, over all jobs; an operator that is not listed has no limit.

    ``queue_depth``: the most wake-ups that wait in one queue; None: no limit.
    """

    operators: Mapping[str, int] = field(default_factory=dict[str, int])
    queue_depth: int | None = None


def limits(settings: DispatcherSettings) -> Limits:
    """Raises ConfigError for an ``operator_limits`` that cannot be read."""
    # More than the depth that trips the queue, or it would never trip; at least one, or nothing would run.
    return Limits(_parse_operators(settings.operator_limits or ""), max(1, 2 * settings.pressure.depth))


def thresholds(settings: PressureSettings) -> Thresholds:
    return Thresholds(settings.depth, settings.age_s, settings.clear_ratio)


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
