"""The code of the one version that this process runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from qo.agent.code.bundle_cache import Unpacked, fingerprint_operator
from qo.agent.code.loaded import BundledCode, Code
from qo.api.contract.task import Work


class VersionCode:
    """Provides the code of the version, with the modules' own names, to all attempts of this process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unpacked = Unpacked.read(root)
        self._fingerprints: dict[str, str] = {}

    def is_ready(self, work: Work) -> bool:
        return work.operator in self._fingerprints

    def open(self, work: Work) -> Code:
        if work.operator not in self._fingerprints:
            self._fingerprints[work.operator] = fingerprint_operator(work.operator, self._unpacked)
        return BundledCode(self._fingerprints[work.operator], "", self._unpacked.differences)


def enter(root: Path) -> None:
    """Import from the version's files, and from no other directory with modules of the same names: the working
    directory holds what is being edited, not what was deployed."""
    tops = {each.name.removesuffix(".py") for each in root.iterdir()}
    others = [entry for entry in sys.path if not _has_same_modules(entry or os.curdir, tops)]
    sys.path[:] = [str(root), *others]


def _has_same_modules(entry: str, tops: set[str]) -> bool:
    here = Path(entry)
    if not here.is_dir() or "site-packages" in here.parts or "dist-packages" in here.parts:
        return False
    if here.samefile(os.curdir):
        return True
    return any((here / f"{top}.py").is_file() or (here / top / "__init__.py").is_file() for top in tops)
