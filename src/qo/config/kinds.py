"""The kinds of settings: how their text is parsed, and which values they accept."""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlsplit

from qo.config import location

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_SHARD = re.compile(r"[0-9a-f]{1,4}\Z")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


class InvalidValue(Exception):
    """The setting does not accept the value. The text, if any, says more than ``Kind.description``."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a setting.

    ``from_text`` parses the text of a variable or flag. ``accept`` validates a value, as TOML or Python has it, and
    returns it in its normal form. Both raise InvalidValue.
    """

    description: str  # Of the values that are accepted.
    from_text: Callable[[str], Any]
    accept: Callable[[Any], Any]
    repeatable: bool = False  # Whether a flag may be given several times; the texts are joined by commas.


def _same(text: str) -> str:
    return text


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue
    return value


def whole(low: int, high: int | None = None) -> Kind:
    def accept(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidValue
        return cast("int", _within(value, low, high))

    return Kind(f"a whole number {_range(low, high)}", _whole_from_text, accept)


def _whole_from_text(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise InvalidValue  # int() would also take "1_000" and Arabic-Indic digits.
    return int(text)


def number(low: float, high: float | None = None) -> Kind:
    def accept(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidValue
        return float(_within(value, low, high))

    return Kind(f"a number {_range(low, high)}", _number_from_text, accept)


def _number_from_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue from None


def _within(value: float, low: float, high: float | None) -> float:
    # Also False for NaN, and for whole numbers that no float can hold.
    if not low <= value <= (sys.float_info.max if high is None else high):
        raise InvalidValue
    return value


def _range(low: float, high: float | None) -> str:
    return f"of at least {low}" if high is None else f"from {low} to {high}"


def _accept_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue
    return value


def _flag_from_text(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE | _FALSE:
        raise InvalidValue
    return lowered in _TRUE


FLAG = Kind("true or false", _flag_from_text, _accept_flag)


def choice(members: type[StrEnum], aliases: dict[str, str] | None = None) -> Kind:
    def accept(value: Any) -> StrEnum:
        name = _text(value).strip().lower()
        name = (aliases or {}).get(name, name)
        if name not in names:
            raise InvalidValue
        return members(name)

    names = [str(member) for member in members]
    return Kind(f"one of {', '.join(names)}", _same, accept)


def _accept_text(value: Any) -> str:
    if not _text(value):
        raise InvalidValue
    return value


TEXT = Kind("a non-empty text", _same, _accept_text)


def _accept_function(value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", _text(value)):
        raise InvalidValue
    return value


FUNCTION = Kind("module:function", _same, _accept_function)


def _accept_name(value: Any) -> str:
    if not _NAME.match(_text(value)):
        raise InvalidValue
    return value


NAME = Kind("1 to 100 letters, digits, dots, hyphens and underscores", _same, _accept_name)


def _shards_from_text(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _accept_shards(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValue
    shards = tuple(_text(shard).lower() for shard in cast("list[Any]", value))
    if any(not _SHARD.match(shard) for shard in shards):
        raise InvalidValue
    return shards


SHARDS = Kind("shards such as 0,1,a", _shards_from_text, _accept_shards)


def _accept_store(value: Any) -> str:
    try:
        location.parse(_text(value))
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    return value


STORE = Kind(location.FORMS, _same, _accept_store)


def endpoint(instead: str) -> Kind:
    """Return the kind of a URL without credentials; ``instead`` names the settings to use for those."""

    def accept(value: Any) -> str:
        try:
            parts = urlsplit(_text(value))
        except ValueError:
            raise InvalidValue from None  # For example an unclosed IPv6 bracket.
        if parts.username or parts.password:
            raise InvalidValue(f"credentials do not belong in the URL; set {instead}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise InvalidValue
        return value.rstrip("/")

    return Kind("a URL such as http://127.0.0.1:9000", _same, accept)


ENDPOINT = endpoint("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


_NONE = {"none", "never", "off"}


def optional(kind: Kind) -> Kind:
    """Return the kind that also accepts ``none``, a word because TOML has no null."""

    def from_text(text: str) -> Any:
        return None if text.strip().lower() in _NONE else kind.from_text(text)

    def accept(value: Any) -> Any:
        return None if value is None or str(value).strip().lower() in _NONE else kind.accept(value)

    return Kind(f"{kind.description}, or none", from_text, accept)


def _accept_listen(value: Any) -> str:
    if (text := _text(value).strip()).lower() in _NONE:
        return "off"
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise InvalidValue
    return text


LISTEN = Kind("an address such as 127.0.0.1:8090 (port 0: any free one), or off", _same, _accept_listen)


def _accept_address(value: Any) -> str:
    if (text := _accept_listen(value)) == "off":
        raise InvalidValue
    return text


ADDRESS = Kind("an address such as 127.0.0.1:8470 (port 0: any free one)", _same, _accept_address)


def _accept_state(value: Any) -> str:
    scheme, _, rest = _text(value).partition(":")
    if scheme == "postgres":
        scheme = "postgresql"  # Both are in use; this is the normal form.
    if scheme not in ("sqlite", "postgresql") or not rest or (scheme != "sqlite" and not rest.startswith("//")):
        raise InvalidValue
    return f"{scheme}:{rest}"


STATE = Kind("sqlite:PATH or postgresql://USER@HOST/NAME", _same, _accept_state)


def _accept_data(value: Any) -> str:
    scheme, _, rest = _text(value).partition(":")
    if scheme == "file" and rest:
        return value.rstrip("/") or value
    if scheme != "s3":
        raise InvalidValue
    try:
        location.parse(value)
    except ValueError as error:
        raise InvalidValue(str(error)) from None
    return value.rstrip("/")


DATA = Kind("file:PATH or s3://BUCKET/PREFIX", _same, _accept_data)


def _words_from_text(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _accept_words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValue
    return tuple(_accept_text(each) for each in cast("list[Any]", value))


WORDS = Kind("words separated by commas, or a list", _words_from_text, _accept_words)


_RATE = re.compile(r"([1-9][0-9]{0,6})(?:/([0-9]+(?:\.[0-9]+)?))?\Z")


def parse_rate(text: str) -> tuple[int, float]:
    """Return how many starts a rate allows, and in how many seconds. Raises InvalidValue."""
    match = _RATE.match(text.strip())
    if match is None or (per_s := float(match[2] or 1)) < 0.001:
        raise InvalidValue
    return int(match[1]), per_s


def _accept_rate(value: Any) -> str:
    starts, per_s = parse_rate(_text(value))
    return f"{starts}/{per_s:g}"


RATE = Kind("starts and seconds, such as 10/60 for ten starts in a minute", _same, _accept_rate)


def parse_queues(queues: Iterable[str]) -> dict[str, int]:
    """Return the weights of queues by name, in their order. Raises InvalidValue."""
    weights: dict[str, int] = {}
    for each in queues:
        weighted = re.fullmatch(r"(.+)=([0-9]{1,4})", each)
        name, weight = (weighted[1], weighted[2]) if weighted else (each, "1")
        if not _QUEUE.match(name) or not 1 <= int(weight) <= 1_000 or name in weights:
            raise InvalidValue
        weights[name] = int(weight)
    return weights


# A name below the store, or a store of its own.
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z|(?:local:|s3://)\S+\Z")


def _accept_queues(value: Any) -> tuple[str, ...]:
    queues = _accept_words(value)
    return tuple(f"{name}={weight}" for name, weight in parse_queues(queues).items())


QUEUES = Kind(
    "queues with their weights, such as high=3,low=1",
    _words_from_text,
    _accept_queues,
    repeatable=True,
)


def _pairs_from_text(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",") if each.strip()]
    if not all(sign for _, sign, _ in pairs):
        raise InvalidValue
    return {key.strip(): value.strip() for key, _, value in pairs}


def _accept_pairs(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise InvalidValue
    pairs = cast("dict[str, Any]", value)
    return tuple((key, _text(each)) for key, each in pairs.items())


PAIRS = Kind("name=value,name=value, or a table", _pairs_from_text, _accept_pairs)


_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z")


def _accept_origins(value: Any) -> tuple[str, ...]:
    origins = tuple(each.lower() for each in _accept_words(value))
    if not all(_ORIGIN.match(each) for each in origins):
        raise InvalidValue  # Not even a wildcard: any page could then use the token of the user who visits it.
    return origins


ORIGINS = Kind(
    "origins such as https://bucket.example.com, separated by commas", _words_from_text, _accept_origins
)


def _accept_networks(value: Any) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(each)) for each in _accept_words(value))
    except ValueError as error:
        raise InvalidValue(str(error)) from None


NETWORKS = Kind("networks such as 10.0.0.0/8, separated by commas", _words_from_text, _accept_networks)
