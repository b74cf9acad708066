"""The installed packages that a pipeline's modules import, with their versions, and how another machine differs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

from qo.pipeline.code.modules import Module


def record_packages(modules: Iterable[Module], own: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution that the modules import. ``own``: names of the modules themselves."""
    excluded = {name.partition(".")[0] for name in own} | sys.stdlib_module_names | {"qo"}
    imported = {name.partition(".")[0] for each in modules for name in each.imports(each.tree)} - excluded
    if not imported:
        return {}
    provided = metadata.packages_distributions()
    names = {distribution for top in imported for distribution in provided.get(top, ())}
    return {name: metadata.version(name) for name in sorted(names)}


def find_differences(recorded: Mapping[str, str]) -> list[str]:
    """Return, in words, where the installed packages differ from the recorded ones."""
    differences: list[str] = []
    for name, version in recorded.items():
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            differences.append(f"{name} {version} is not installed")
            continue
        if installed != version:
            differences.append(f"{name} is {installed}, was {version}")
    return differences
