"""Writes a DAG as a file that reads back as the same DAG."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from qo.core.pipeline.dag import Dag
from qo.pipeline.scalars import is_text

_KEPT_EMPTY = frozenset({"bootstrap"})  # Empty is not the same as absent.


class _Dumper(yaml.SafeDumper):
    """Quotes every text that would be read as something else, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))  # pyright: ignore


def _style(value: str) -> str | None:
    """Return the quotes of a text; None if it needs none."""
    if value.isprintable():
        return None if is_text(value) else '"'
    lines = value.split("\n")
    is_block = all(line.isprintable() and not line.endswith(" ") for line in lines) and not lines[0].startswith(
        " "
    )
    return "|" if is_block and lines[0] else '"'  # Queries stay readable.


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    word = repr(value)
    if "." not in word:
        word = word.replace("e", ".0e")  # YAML needs the point.
    return dumper.represent_scalar("tag:yaml.org,2002:float", word)  # pyright: ignore


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)


def to_yaml(dag: Dag) -> str:
    """Return the YAML of a DAG, without fields that have their default."""
    whole: dict[str, Any] = msgspec.to_builtins(dag)
    jobs = [_without_empty(job) for job in whole["jobs"]]
    ordered = {name: whole[name] for name in ("name", "description", "defaults") if name in whole}
    document = {**_without_empty(ordered), "jobs": jobs, **_without_empty({"publish": whole.get("publish")})}
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=115)  # pyright: ignore


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Drop unset fields, and structs whose fields all have their defaults."""
    return {name: value for name, value in fields.items() if name in _KEPT_EMPTY or value not in ({}, None)}
