"""The settings of retention: the table [retention], and a table [retention.TYPE] for each type that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, cast

from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.config.setting import setting
from qo.core.retention import Keep, Policy
from qo.core.timespan import SPAN_S_MAX, parse_timespan_s

FOREVER = "forever"
KEEP_MIN_S = 3600.0  # A submission with an idempotency key may be repeated that long after its reply was lost.
_NAMES = tuple(f"keep_{status}" for status in Keep.__slots__)

TypeKeeps = tuple[tuple[str, tuple[tuple[str, float | None], ...]], ...]


def _accept_keep(value: Any) -> float | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == FOREVER):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidValue
    seconds = parse_timespan_s(value) if isinstance(value, str) else float(min(value, 2 * SPAN_S_MAX))
    if seconds is None or seconds > SPAN_S_MAX:
        raise InvalidValue
    if not seconds >= KEEP_MIN_S:  # Also catches NaN.
        raise InvalidValue("less than 1h: a submission that is repeated with its idempotency key would run again")
    return seconds


KEEP = Kind("a time of at least 1h such as 12h or 30d, or forever", lambda text: text, _accept_keep)


def _types_from_text(text: str) -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        place, sign, value = part.partition("=")
        task_type, dot, name = place.strip().rpartition(".")
        if not sign or not dot:
            raise InvalidValue
        tables.setdefault(task_type, {})[name] = value.strip()
    return tables


def _accept_types(value: Any) -> TypeKeeps:
    if not isinstance(value, dict):
        raise InvalidValue
    return tuple((name, _accept_table(name, table)) for name, table in cast("dict[str, Any]", value).items())


def _accept_table(task_type: str, table: Any) -> tuple[tuple[str, float | None], ...]:
    if not task_type or not isinstance(table, dict):
        raise InvalidValue
    rows: list[tuple[str, float | None]] = []
    for name, value in cast("dict[str, Any]", table).items():
        if name not in _NAMES:
            raise InvalidValue(f"[retention.{task_type}] has {name!r}; it takes {', '.join(_NAMES)}")
        try:
            rows.append((name, _accept_keep(value)))
        except InvalidValue as invalid:
            detail = f" ({invalid})" if invalid.args else ""
            raise InvalidValue(f"{task_type}.{name} must be {KEEP.description}{detail}") from None
    return tuple(rows)


TYPES = Kind(
    "TYPE.keep_completed=30d,TYPE.keep_failed=90d, or tables [retention.TYPE]", _types_from_text, _accept_types
)


def _keep(status: str) -> Any:
    return setting(
        None,
        f"QO_RETENTION_KEEP_{status.upper()}",
        kind=KEEP,
        help=f"How long {status} tasks are kept after their last change, as 30d; unset or forever: never purged.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    keep_completed: float | None = _keep("completed")
    keep_failed: float | None = _keep("failed")
    keep_cancelled: float | None = _keep("cancelled")
    keep_expired: float | None = _keep("expired")
    keep_archived: float | None = _keep("archived")
    requests_per_minute: int = setting(
        600,
        "QO_RETENTION_REQUESTS_PER_MINUTE",
        kind=kinds.whole(1, 1_000_000),
        help="The most requests a minute that a monitor makes to purge tasks, on average.",
    )
    types: TypeKeeps = setting(  # noqa: RUF009 - an immutable value, made once.
        (),
        "QO_RETENTION_TYPES",
        kind=TYPES,
        help="How long tasks of single types are kept; what is not set for a type is as for all others.",
    )

    @property
    def policy(self) -> Policy:
        default = Keep(**{name.removeprefix("keep_"): _timespan(getattr(self, name)) for name in _NAMES})
        return Policy(default, {task_type: _override(default, rows) for task_type, rows in self.types})


def _override(default: Keep, rows: tuple[tuple[str, float | None], ...]) -> Keep:
    changes: Mapping[str, Any] = {name.removeprefix("keep_"): _timespan(value) for name, value in rows}
    return replace(default, **changes)


def _timespan(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
