"""qo config show, qo config paths."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, cast

from qo.cli.invocation import Session, command, new_app, new_group
from qo.config import origins
from qo.config.runtimes import RuntimeSettings
from qo.config.setting import Setting
from qo.config.settings import SETTINGS, Settings
from qo.core.durations import format_duration

app = new_app()
config = new_group(app, "config", "Show the settings, and where each comes from.")


@command(config, "show")
def show(session: Session) -> None:
    """Show every setting, its value, and where the value comes from.

    Of a secret only whether it is set is shown. The credentials of a bucket are not settings: they come from the AWS
    variables and files.
    """
    settings = session.settings()
    if session.json:
        session.output.document(
            {
                row.key: {
                    "value": _public_value(settings, row),
                    "origin": settings.origin(row.key),
                    "env": row.env[0],
                }
                for row in SETTINGS
            }
        )
        return
    rows = [(row.key, _text(_public_value(settings, row)), settings.origin(row.key)) for row in SETTINGS]
    session.output.table(("setting", "value", "from"), rows)


def _public_value(settings: Settings, row: Setting) -> Any:
    value = settings.value(row.key)
    return "(set)" if row.secret and value not in (None, row.default) else value


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_part(part) for part in cast("tuple[Any, ...]", value)) or "-"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return str(value)


def _part(part: Any) -> str:
    """Return one element of a setting that has several; a table of a task type as its variable has it."""
    if isinstance(part, RuntimeSettings):
        set_values = {key: value for key, value in asdict(part).items() if value not in (None, ())}
        return f"{set_values.pop('name')}: {json.dumps(set_values)}"
    if not isinstance(part, tuple) or not isinstance(part[-1], tuple):
        return str(part)  # pyright: ignore[reportUnknownArgumentType]
    name, rows = cast("tuple[str, tuple[tuple[str, float | None], ...]]", part)
    return ",".join(f"{name}.{row}={_duration(value)}" for row, value in rows)


def _duration(seconds: float | None) -> str:
    return "forever" if seconds is None else format_duration(seconds).replace(" ", "")


@command(config, "paths")
def paths(session: Session) -> None:
    """Show which settings files are read, the strongest first."""
    files = [
        {"path": str(source.path), "table": ".".join(source.table), "exists": source.path.is_file()}
        for source in origins.sources(config_path=session.config_path)
    ]
    if session.json:
        session.output.document(files)
        return
    rows = [
        (
            str(place["path"]),
            f"[{place['table']}]" if place["table"] else "",
            "read" if place["exists"] else "none",
        )
        for place in files
    ]
    session.output.table(("file", "table", "state"), rows)
