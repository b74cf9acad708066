"""Load the settings: flag > environment > qo.toml > [tool.qo] in pyproject.toml > default.

Each value keeps the name of its source. An unknown name is an error: a misspelt setting that is ignored silently
costs more than one that stops the program.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from qo.config.kinds import InvalidValue
from qo.config.setting import Setting
from qo.config.settings import BY_KEY, SETTINGS, Settings, assemble
from qo.errors import ConfigError

CONFIG_VARIABLE = "QO_CONFIG"
BUCKET_VARIABLE = "S3_BUCKET"
FILE_NAME = "qo.toml"
_GROUPS = {
    setting.key.rsplit(".", depth)[0] for setting in SETTINGS for depth in range(1, setting.key.count(".") + 1)
}
# Tables within these groups have names that users choose; together they are the value of one setting.
_NAMED_TABLES = {"retention": "retention.types"}
_VARIABLES = {name for setting in SETTINGS for name in setting.env} | {CONFIG_VARIABLE}


class RawValue(NamedTuple):
    """The value of a setting before it is validated."""

    key: str
    raw: Any
    origin: str
    text: bool  # Whether it is plain text, so that "16" may stand for 16.


class Source(NamedTuple):
    """A file that may hold settings."""

    path: Path
    table: tuple[str, ...]  # The path of their table in the file.
    must_exist: bool
    name: str  # For messages.


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config_path: Path | None = None,
) -> Settings:
    """Load the settings. ``flags`` go by full name ("worker.concurrency"); None means not given.

    Raises ConfigError for an unknown name or an invalid value; it names the source.
    """
    variables = os.environ if environ is None else environ
    set_flags = {key: value for key, value in (flags or {}).items() if value is not None}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    # From the weakest source to the strongest, which overwrites. All values are validated, even overridden ones.
    for source in reversed(sources(variables, cwd, config_path)):
        _merge(_from_file(source), values, origins)
    _merge(_from_environment(variables), values, origins)
    _merge(_from_flags(set_flags), values, origins)
    return assemble(values, origins)


def sources(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None, config_path: Path | None = None
) -> list[Source]:
    """Return the files that may hold settings, the strongest first."""
    here = Path.cwd() if cwd is None else cwd
    config_name = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if config_path is not None:
        main_source = Source(config_path, (), True, str(config_path))
    elif config_name:
        main_source = Source(here / config_name, (), True, config_name)
    else:
        main_source = Source(here / FILE_NAME, (), False, FILE_NAME)
    return [main_source, Source(here / "pyproject.toml", ("tool", "qo"), False, "[tool.qo] in pyproject.toml")]


def _merge(raw_values: Iterable[RawValue], values: dict[str, Any], origins: dict[str, str]) -> None:
    for item in raw_values:
        values[item.key] = _validate(BY_KEY[item.key], item)
        origins[item.key] = item.origin


def _validate(setting: Setting, item: RawValue) -> Any:
    try:
        raw = setting.kind.from_text(item.raw) if item.text and isinstance(item.raw, str) else item.raw
        return setting.kind.accept(raw)
    except InvalidValue as invalid:
        rejected = _describe_rejected(setting, item, invalid)
        raise ConfigError(f"{setting.key} must be {setting.kind.description}; {item.origin} {rejected}") from None


def _describe_rejected(setting: Setting, item: RawValue, invalid: InvalidValue) -> str:
    """Return the rejected value in words, unless it is a secret or may contain one, such as a password in a URL."""
    detail = f" ({invalid})" if invalid.args else ""
    if setting.secret or any(mark in str(item.raw) for mark in "@?"):
        return "is not" + (detail if "@" not in detail else "")
    return f"says {item.raw!r}{detail}"


def _from_flags(flags: Mapping[str, Any]) -> Iterator[RawValue]:
    for key, raw in flags.items():
        if key not in BY_KEY:
            raise ConfigError(f"there is no setting {key!r}{_suggestion(key, BY_KEY)}")
        yield RawValue(key, raw, f"flag {BY_KEY[key].flag}", True)


def _from_environment(environ: Mapping[str, str]) -> Iterator[RawValue]:
    for name in sorted(environ):
        if name.startswith("QO_") and name not in _VARIABLES:
            raise ConfigError(
                f"unknown environment variable {name}{_suggestion(name, _VARIABLES)}; unset it or fix it"
            )
    for setting in SETTINGS:
        name = next((name for name in setting.env if environ.get(name)), None)
        if name is not None:
            yield RawValue(setting.key, environ[name], f"environment {name}", True)
    # A common variable of other tools: it counts if QO_STORE is not set.
    if (bucket := environ.get(BUCKET_VARIABLE)) and not environ.get("QO_STORE"):
        yield RawValue("store", f"s3://{bucket}", f"environment {BUCKET_VARIABLE}", True)


def _from_file(source: Source) -> Iterator[RawValue]:
    table = _read_toml(source)
    for name in source.table:
        inner = table.get(name, {})
        table = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
    yield from _from_table(table, "", source)


def _from_table(table: dict[str, Any], within: str, source: Source) -> Iterator[RawValue]:
    if (table_setting := _NAMED_TABLES.get(within.removesuffix("."))) is not None:
        table, tables = _split_tables(table, table_setting.rpartition(".")[2])
        if tables:
            yield RawValue(table_setting, tables, source.name, False)
    for name, value in table.items():
        key = f"{within}{name}"
        if key in _GROUPS and isinstance(value, dict):
            yield from _from_table(cast("dict[str, Any]", value), f"{key}.", source)
        else:
            yield _check_name(key, value, source)


def _split_tables(table: dict[str, Any], collected: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the plain values of a table, and the tables within it, also those in one that is named ``collected``."""
    plain = {name: value for name, value in table.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in table.items() if name not in plain}
    inner = cast("dict[str, Any]", tables.get(collected, {}))
    if inner and all(isinstance(value, dict) for value in inner.values()):
        tables = {name: value for name, value in tables.items() if name != collected} | inner
    return plain, tables


def _read_toml(source: Source) -> dict[str, Any]:
    try:
        text = source.path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        if source.must_exist:
            raise ConfigError(f"there is no settings file {source.path}") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source.path} cannot be read: {error}") from error
    import tomllib  # Slow to import, and most commands find no file.

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source.path} is not valid TOML: {error}") from error


def _check_name(key: str, raw: Any, source: Source) -> RawValue:
    if key in _GROUPS:
        raise ConfigError(f"{key!r} in {source.name} must be a table of settings, not {raw!r}")
    if key not in BY_KEY:
        raise ConfigError(f"unknown setting {key!r} in {source.name}{_suggestion(key, BY_KEY)}")
    return RawValue(key, raw, source.name, False)


def _suggestion(name: str, names: Iterable[str]) -> str:
    # A setting in the wrong table is as likely as a misspelt one.
    candidates = {option: option for option in names} | {option.rpartition(".")[2]: option for option in names}
    match = difflib.get_close_matches(name, candidates, n=1, cutoff=0.5)
    return f"; did you mean {candidates[match[0]]!r}?" if match else ""
