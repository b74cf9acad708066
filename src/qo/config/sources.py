"""Where settings come from: flag > environment > qo.toml > [tool.qo] in pyproject.toml > default.

Each value keeps the name of its source. An unknown name is an error, because a misspelt setting that is
silently ignored costs more than one that stops the program.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from qo.config.kinds import Unfit
from qo.config.setting import Setting
from qo.config.settings import BY_KEY, SETTINGS, Settings, assemble
from qo.errors import ConfigError

CONFIG_VARIABLE = "QO_CONFIG"
BUCKET_VARIABLE = "S3_BUCKET"
FILE_NAME = "qo.toml"
_GROUPS = {
    setting.key.rsplit(".", depth)[0] for setting in SETTINGS for depth in range(1, setting.key.count(".") + 1)
}
_VARIABLES = {name for setting in SETTINGS for name in setting.env} | {CONFIG_VARIABLE}


class Found(NamedTuple):
    """A value as somebody wrote it."""

    key: str
    raw: Any
    origin: str
    text: bool  # Written as plain text, so that "16" may stand for 16.


class Source(NamedTuple):
    """A file that may hold settings."""

    path: Path
    table: tuple[str, ...]  # Where in the file they are.
    must_exist: bool
    name: str  # What to call it in a message.


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_path: Path | None = None,
) -> Settings:
    """The settings that apply here. ``flags`` go by full name ("worker.concurrency"); None means not given.

    Raises ConfigError for an unknown name or a value that does not fit, naming where it was written.
    """
    variables = os.environ if environ is None else environ
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    # From the weakest source to the strongest, which overwrites. All are checked, also the overruled.
    for source in reversed(sources(variables, cwd, config_path)):
        _take(_from_file(source), values, origins)
    _take(_from_environment(variables), values, origins)
    _take(_from_flags(given), values, origins)
    return assemble(values, origins)


def sources(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None, config_path: Path | None = None
) -> list[Source]:
    """The files that are looked at, the strongest first."""
    here = Path.cwd() if cwd is None else cwd
    named = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if config_path is not None:
        own = Source(config_path, (), True, str(config_path))
    elif named:
        own = Source(here / named, (), True, named)
    else:
        own = Source(here / FILE_NAME, (), False, FILE_NAME)
    return [own, Source(here / "pyproject.toml", ("tool", "qo"), False, "[tool.qo] in pyproject.toml")]


def _take(found: Iterable[Found], values: dict[str, Any], origins: dict[str, str]) -> None:
    for item in found:
        values[item.key] = _read(BY_KEY[item.key], item)
        origins[item.key] = item.origin


def _read(setting: Setting, item: Found) -> Any:
    try:
        raw = setting.kind.from_text(item.raw) if item.text and isinstance(item.raw, str) else item.raw
        return setting.kind.accept(raw)
    except Unfit as unfit:
        said = _said(setting, item, unfit)
        raise ConfigError(f"{setting.key} must be {setting.kind.wanted}; {item.origin} {said}") from None


def _said(setting: Setting, item: Found, unfit: Unfit) -> str:
    """What was written, unless it is a secret or may hold one, as the password in a URL."""
    detail = f" ({unfit})" if unfit.args else ""
    if setting.secret or any(mark in str(item.raw) for mark in "@?"):
        return "is not" + (detail if "@" not in detail else "")
    return f"says {item.raw!r}{detail}"


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Found]:
    for key, raw in flags.items():
        if key not in BY_KEY:
            raise ConfigError(f"there is no setting {key!r}{_suggestion(key, BY_KEY)}")
        yield Found(key, raw, f"flag {BY_KEY[key].flag}", True)


def _from_environment(environ: Mapping[str, str]) -> Iterator[Found]:
    for name in sorted(environ):
        if name.startswith("QO_") and name not in _VARIABLES:
            raise ConfigError(
                f"unknown environment variable {name}{_suggestion(name, _VARIABLES)}; unset it or fix it"
            )
    for setting in SETTINGS:
        name = next((name for name in setting.env if environ.get(name)), None)
        if name is not None:
            yield Found(setting.key, environ[name], f"environment {name}", True)
    # The common name of a bucket variable: it counts where qo's own variable is silent.
    if (bucket := environ.get(BUCKET_VARIABLE)) and not environ.get("QO_STORE"):
        yield Found("store", f"s3://{bucket}", f"environment {BUCKET_VARIABLE}", True)


def _from_file(source: Source) -> Iterator[Found]:
    table = _parse(source)
    for name in source.table:
        inner = table.get(name, {})
        table = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    yield from _from_table(table, "", source)


def _from_table(table: dict[str, Any], within: str, source: Source) -> Iterator[Found]:
    for name, value in table.items():
        key = f"{within}{name}"
        if key in _GROUPS and isinstance(value, dict):
            yield from _from_table(cast("dict[str, Any]", value), f"{key}.", source)
        else:
            yield _known(key, value, source)


def _parse(source: Source) -> dict[str, Any]:
    try:
        text = source.path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if source.must_exist:
            raise ConfigError(f"there is no settings file {source.path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source.path} cannot be read: {error}") from error
    import tomllib  # Most commands find no file, and need not wait for its reader.

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source.path} is not valid TOML: {error}") from error


def _known(key: str, raw: Any, source: Source) -> Found:
    if key in _GROUPS:
        raise ConfigError(f"{key!r} in {source.name} must be a table of settings, not {raw!r}")
    if key not in BY_KEY:
        raise ConfigError(f"unknown setting {key!r} in {source.name}{_suggestion(key, BY_KEY)}")
    return Found(key, raw, source.name, False)


def _suggestion(name: str, known: Iterable[str]) -> str:
    # A name in the wrong table is as likely a slip as a misspelt one.
    candidates = {option: option for option in known} | {option.rpartition(".")[2]: option for option in known}
    match = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    return f"; did you mean {candidates[match[0]]!r}?" if match else ""
