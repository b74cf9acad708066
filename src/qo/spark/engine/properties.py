"""Spark's settings in a file that only its owner can read: every user can see the arguments of a process.

Options of the JVM itself (``spark.driver.extraJavaOptions``) become arguments all the same: keep secrets out of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = "spark.properties"
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"} | {each: f"\\{each}" for each in "\\=:#! "}


def arguments(directory: Path, conf: Mapping[str, str]) -> list[str]:
    """Write the settings to a file in the directory, and return the arguments of spark-submit that name it."""
    path = directory / FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text(conf))
    # A properties file replaces spark-defaults.conf, unless that is asked for, too.
    return ["--properties-file", str(path), "--load-spark-defaults"]


def move_to_file(command: Sequence[str], directory: Path) -> list[str]:
    """Return a command of spark-submit with its settings in a file. One that names a file itself stays as it is."""
    if "--properties-file" in command:
        return list(command)
    conf: dict[str, str] = {}
    rest = list(command[1:])
    while len(rest) >= 2 and rest[0] == "--conf":
        key, _, value = rest[1].partition("=")
        conf[key] = value
        del rest[:2]
    return [command[0], *arguments(directory, conf), *rest] if conf else list(command)


def text(conf: Mapping[str, str]) -> str:
    """Return the settings in the format of Java's ``Properties``."""
    return "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in conf.items())


def _escape(value: str) -> str:
    return "".join(_ESCAPED.get(each) or _ascii(each) for each in value)


def _ascii(character: str) -> str:
    if " " < character < "\x7f":
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
