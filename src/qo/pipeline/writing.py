"""A DAG as a file that reads back as the same DAG."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from qo.core.pipeline.dag import Dag
from qo.pipeline.scalars import is_text

_MEANS = frozenset({"bootstrap"})  # Empty is not the same as left out.


class _Dumper(yaml.SafeDumper):
    """Quotes every text that this package would read as something else, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))  # pyright: ignore


def _style(value: str) -> str | None:
    """None: the writer may leave the quotes out."""
    if value.isprintable():
        return None if is_text(value) else '"'
    lines = value.split("\n")
    is_block = all(line.isprintable() and not line.endswith(" ") for line in lines) and not lines[0].startswith(
        " "
    )
    return "|" if is_block and lines[0] else '"'  # Queries are for reading.


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    word = repr(value)
    if "." not in word:
        word = word.replace("e", ".0e")  # The writer knows no other floats.
    return dumper.represent_scalar("tag:yaml.org,2002:float", word)  # pyright: ignore


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _float)


def to_yaml(dag: Dag) -> str:
    """YAML of a DAG; fields that have their default are left out."""
    whole: dict[str, Any] = msgspec.to_builtins(dag)
    jobs = [_without_empty(job) for job in whole["jobs"]]
    ordered = {name: whole[name] for name in ("name", "description", "defaults") if name in whole}
    document = {**_without_empty(ordered), "jobs": jobs, **_without_empty({"publish": whole.get("publish")})}
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=115)  # pyright: ignore


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a struct whose own fields all have their defaults are such too."""
    return {name: value for name, value in fields.items() if name in _MEANS or value not in ({}, None)}
