"""What a patch of somebody else's code is, and whether it may be applied here."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from qo.config.spark import SparkSettings

log = logging.getLogger(__name__)

_warned: set[str] = set()  # Names of patches.


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of a package, from ``lowest`` up to but not including ``below``."""

    lowest: str
    below: str

    def __contains__(self, version: str) -> bool:
        return _numbers(self.lowest) <= _numbers(version) < _numbers(self.below)

    def __str__(self) -> str:
        return f">={self.lowest},<{self.below}"


@dataclass(frozen=True, slots=True)
class Patch:
    name: str
    changes: str  # What of others' code.
    why: str
    gain: str  # As measured; "" for a patch that is not for speed.
    without: str  # What happens where it is not applied; completes "so …".
    made_for: Mapping[str, Versions]  # By package.
    function: str  # What applies it, as module:function; by name, so that the table does not load PySpark.

    def is_enabled(self, settings: SparkSettings) -> bool:
        """Whether the patch may be applied. Warns once about a version that it was not made for."""
        if not settings.patches:
            return False
        for package, versions in self.made_for.items():
            version = installed_version(package)
            if version is None or version not in versions:
                self._warn(package, version, versions)
                return False
        return True

    def apply(self, *arguments: Any) -> Any:
        module, _, name = self.function.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)

    def apply_if_enabled(self, settings: SparkSettings, *arguments: Any) -> None:
        if self.is_enabled(settings):
            self.apply(*arguments)

    def _warn(self, package: str, version: str | None, versions: Versions) -> None:
        if self.name in _warned:
            return
        _warned.add(self.name)
        log.warning(
            "qo's patch %r was made for %s %s and is not applied to version %s, so %s; install a version in that "
            "range, or set spark.patches = false to work without any patch and without this warning",
            self.name,
            package,
            versions,
            version or "unknown",
            self.without,
        )


@cache
def installed_version(package: str) -> str | None:
    """Return the version of ``pyspark`` or ``py4j``, without importing it where the installer has recorded it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        return importlib.import_module(
            f"{package}.version"
        ).__version__  # As in a Spark that was unpacked by hand.
    except ImportError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers: (4, 3, 0) of ``4.3.0.dev1``."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return () if leading is None else tuple(map(int, leading[0].split(".")))
