"""The settings of sinks: tables and files outside that follow published datasets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from qo.config import kinds
from qo.config.kinds import InvalidValue, Kind
from qo.config.setting import setting


def _places_from_text(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise InvalidValue("it is not JSON") from None
    pairs = [each.partition("=") for each in text.split()]
    if not all(sign for _, sign, _ in pairs):
        raise InvalidValue
    return {name: url for name, _, url in pairs}


def _accept_directories(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValue
    directories = cast("dict[str, Any]", value)
    for name, location in directories.items():
        if not isinstance(location, str) or not location.startswith(("file:", "s3://")):
            raise InvalidValue(f"{name} is neither file:PATH nor s3://BUCKET/PREFIX")
    return tuple(directories.items())


def _accept_databases(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValue
    databases = cast("dict[str, Any]", value)
    for name, url in databases.items():
        # Without the URL in the message: it may have a password.
        if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
            raise InvalidValue(f"{name} is no postgresql:// URL")
    return tuple(databases.items())


DATABASES = Kind(
    "databases by name, such as data=postgresql://USER@HOST/NAME, or a table",
    _places_from_text,
    _accept_databases,
)

DIRECTORIES = Kind(
    "directories by name, such as files=s3://BUCKET/PREFIX or files=file:PATH, or a table",
    _places_from_text,
    _accept_directories,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    databases: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_SINK_DATABASES",
        kind=DATABASES,
        secret=True,
        help="The databases that pipelines copy published datasets to, by the names that pipelines have for them. "
        "A password belongs into PGPASSFILE or ~/.pgpass.",
    )
    directories: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_SINK_DIRECTORIES",
        kind=DIRECTORIES,
        help="The directories and buckets that pipelines write files for others to, by the names that pipelines have "
        "for them.",
    )
    poll_ms: int = setting(
        500,
        "QO_SINK_POLL_MS",
        kind=kinds.whole(10, 60_000),
        help="Milliseconds between questions of qo sink whether something was committed.",
    )
