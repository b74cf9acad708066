"""The settings of scaling: a table [runtimes.NAME.scaling] for each runtime whose workers come and go, and [scaler]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.config.setting import setting

WORKERS_MAX = 1000
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


class LauncherKind(StrEnum):
    """What starts and ends the workers of a runtime."""

    LOCAL = "local"  # Processes on the scaler's machine.
    KUBERNETES = "kubernetes"  # Jobs.
    COMMAND = "command"  # Programs of the user's.


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    max: int
    min: int = 0
    target_wait_s: float = 10.0
    idle_s: float = 60.0
    slots: int | None = None  # None: worker.concurrency, or the slots of Spark.
    start_s: float = 10.0  # How long a worker takes to start, where its launcher cannot tell.
    drain_s: float = 600.0  # How long a worker that is drained may take for what it runs.
    launcher: LauncherKind = LauncherKind.LOCAL
    start: tuple[str, ...] = ()  # The commands of launcher = command, as lists of arguments.
    list: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    namespace: str = "default"  # This and all that follow: of launcher = kubernetes.
    service_account: str | None = None
    config_map: str | None = None  # Its entries become variables of the workers, as do those of the secret.
    secret: str | None = None
    api_url: str | None = None  # None: the cluster that the scaler runs in.
    token_file: str | None = None
    ca_file: str | None = None


def _accept_command(value: Any) -> tuple[str, ...]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    if not items or not all(isinstance(each, str) and each for each in items):
        raise InvalidValue
    return tuple(cast("list[str]", items))


def _accept_kubernetes_name(value: Any) -> str:
    if not isinstance(value, str) or not _KUBERNETES_NAME.match(value):
        raise InvalidValue
    return value


_COMMAND = Kind('a list of arguments, such as ["./start-worker", "--fast"]', lambda text: text, _accept_command)
_NAME = Kind("a name as Kubernetes has them, such as qo-workers", lambda text: text, _accept_kubernetes_name)

_FIELDS: Mapping[str, Kind] = {
    "min": kinds.whole(0, WORKERS_MAX),
    "max": kinds.whole(1, WORKERS_MAX),
    "target_wait_s": kinds.number(0, 86_400),
    "idle_s": kinds.number(0, 86_400),
    "slots": kinds.whole(1, 10_000),
    "start_s": kinds.number(0, 3_600),
    "drain_s": kinds.number(0, 86_400),
    "launcher": kinds.choice(LauncherKind),
    "start": _COMMAND,
    "list": _COMMAND,
    "drain": _COMMAND,
    "kill": _COMMAND,
    "namespace": _NAME,
    "service_account": _NAME,
    "config_map": _NAME,
    "secret": _NAME,
    "api_url": kinds.ENDPOINT,
    "token_file": kinds.TEXT,
    "ca_file": kinds.TEXT,
}
_COMMANDS = ("start", "list", "drain", "kill")
_OF_KUBERNETES = ("namespace", "service_account", "config_map", "secret", "api_url", "token_file", "ca_file")


def _accept_scaling(value: Any) -> ScalingSettings:
    if not isinstance(value, dict):
        raise InvalidValue
    table = cast("dict[str, Any]", value)
    unknown = [key for key in table if key not in _FIELDS]
    if unknown:
        raise InvalidValue(f"it has {unknown[0]!r}, and takes {', '.join(_FIELDS)}")
    if "max" not in table:
        raise InvalidValue("it has no max: write how many workers there may be at most")
    values = {key: _accept_field(key, raw) for key, raw in table.items()}
    scaling = ScalingSettings(**values)
    _check(scaling, values)
    return scaling


def _accept_field(key: str, raw: Any) -> Any:
    try:
        return _FIELDS[key].accept(raw)
    except InvalidValue as invalid:
        detail = f" ({invalid})" if invalid.args else ""
        raise InvalidValue(f"{key} must be {_FIELDS[key].description}{detail}") from None


def _check(scaling: ScalingSettings, values: Mapping[str, Any]) -> None:
    if scaling.min > scaling.max:
        raise InvalidValue(f"min ({scaling.min}) is more than max ({scaling.max})")
    is_command = scaling.launcher is LauncherKind.COMMAND
    missing = [key for key in _COMMANDS if key not in values]
    if is_command and missing:
        raise InvalidValue(
            f"launcher = command needs the commands {', '.join(_COMMANDS)}: {missing[0]} is missing"
        )
    foreign = [
        *(key for key in _COMMANDS if not is_command),
        *(key for key in _OF_KUBERNETES if scaling.launcher is not LauncherKind.KUBERNETES),
    ]
    if wrong := [key for key in foreign if key in values]:
        owner = LauncherKind.COMMAND if wrong[0] in _COMMANDS else LauncherKind.KUBERNETES
        raise InvalidValue(
            f"{wrong[0]} is for launcher = {owner}, and the launcher is {scaling.launcher}: leave it out, or set that"
        )


SCALING = Kind(
    "a table with max, and if wanted min, target_wait_s, idle_s and others", lambda text: text, _accept_scaling
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSettings:
    interval_s: float = setting(
        5.0, "QO_SCALER_INTERVAL_S", kind=kinds.number(0.05, 3_600), help="Seconds between two turns of a scaler."
    )
    lease_s: float = setting(
        30.0,
        "QO_SCALER_LEASE_S",
        kind=kinds.number(0.5, 3_600),
        help="Seconds after which another scaler takes over the runtimes of one that is silent.",
    )
    id: str | None = setting(
        None, "QO_SCALER_ID", kind=kinds.NAME, help="The id of this scaler; unset: a new one at each start."
    )
    directory: str = setting(
        ".qo/scaler",
        "QO_SCALER_DIR",
        kind=kinds.TEXT,
        help="Where the scaler keeps the places and logs of workers that are processes of this machine.",
    )
