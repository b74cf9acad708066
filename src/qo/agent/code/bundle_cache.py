"""A cache of code bundles on this machine: each is fetched once, verified, unpacked and made importable.

    DIRECTORY/HASH/files/...                   as they were packed
    DIRECTORY/import/qo_code_HASH/...          the same, importing each other by that name
    DIRECTORY/HASH/qo_code_HASH.zip            the latter, to be sent to executors elsewhere

A directory belongs to one worker and is deleted with it, so no other process changes its files.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import shutil
import sys
import tempfile
import threading
import tokenize
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from qo.agent.code.loaded import BundledCode, Code, OwnCode
from qo.agent.code.renaming import Names, rename_imports
from qo.agent.dataset_files import Storage
from qo.api.contract.task import Work, WorkCode
from qo.config.worker import PackageDrift
from qo.core.pipeline.bundle import MANIFEST, Manifest, parse
from qo.errors import QoError, UsageError
from qo.function import archive
from qo.pipeline.code.fingerprint import fingerprint
from qo.pipeline.code.modules import Unresolvable
from qo.pipeline.code.packages import find_differences

log = logging.getLogger(__name__)

DIRECTORY = "qo-code-"  # Prefix of the directory names; the id of the process follows.
PREFIX = "qo_code_"  # Prefix of the package names under which versions are imported.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class CodeUnavailable(QoError):
    """The code of a task's version is not available here. The task waits for another worker, or another time."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A bundle that has been unpacked on this machine."""

    root: Path  # The directory of its files.
    manifest: Manifest
    differences: tuple[str, ...]  # Between the installed packages and the recorded ones.

    @classmethod
    def read(cls, root: Path) -> Unpacked:
        """Read a bundle that a store has unpacked."""
        manifest = parse((root.parent / MANIFEST).read_bytes())
        return cls(root, manifest, tuple(find_differences(manifest.packages)))

    @property
    def own_process(self) -> str | None:
        """Why it needs a process of its own; None if it can share one."""
        return self.manifest.own_process


class Codes(Protocol):
    """Provides the code of tasks."""

    def is_ready(self, work: Work) -> bool:
        """Return whether ``open`` would return at once."""
        ...

    def open(self, work: Work) -> Code:
        """Return the code of a task, to be run in this interpreter; blocking. Raises CodeUnavailable."""
        ...


class CodeStore:
    def __init__(self, storage: Storage, *, packages: PackageDrift = PackageDrift.WARN) -> None:
        self._storage = storage
        self._packages = packages
        _clear_abandoned()
        self._directory = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}-"))
        self._importable = self._directory / "import"
        self._importable.mkdir()
        # Spark's Python processes on this machine get the import path as it is when a session starts.
        sys.path.append(str(self._importable))
        self._unpacked: dict[str, Unpacked] = {}
        self._packaged: dict[str, Path] = {}
        self._fingerprints: dict[tuple[str, str], str] = {}
        # One for each bundle. A cached bundle is opened without a lock: the event loop does that, and a thread that
        # fetches a bundle waits for the event loop.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(self._importable))
        packages = {package_name(sha256) for sha256 in self._packaged}
        for name in [each for each in sys.modules if each.partition(".")[0] in packages]:
            del sys.modules[name]
        shutil.rmtree(self._directory, ignore_errors=True)

    def can_share(self, sha256: str) -> bool:
        """Return whether a bundle is cached and can share an interpreter with others."""
        unpacked = self._unpacked.get(sha256)
        return unpacked is not None and unpacked.own_process is None

    def unpack(self, code: WorkCode) -> Unpacked:
        """Return an unpacked bundle, fetched if it is not cached; blocking. Raises CodeUnavailable."""
        unpacked = self._unpacked.get(code.sha256)
        if unpacked is None:
            with self._locks[code.sha256]:
                unpacked = self._unpacked.get(code.sha256) or self._fetch(code)
                self._unpacked[code.sha256] = unpacked
        if unpacked.differences and self._packages is PackageDrift.REFUSE:
            raise CodeUnavailable(
                f"the packages that are installed here are not those of the version: {'; '.join(unpacked.differences)}"
            )
        return unpacked

    def is_ready(self, work: Work) -> bool:
        return work.code is None or (
            work.code.sha256 in self._packaged and (work.code.sha256, work.operator) in self._fingerprints
        )

    def open(self, work: Work) -> Code:
        if work.code is None:
            return OwnCode()
        unpacked = self.unpack(work.code)
        reported = self.verify(work.operator, work.code)
        sha256 = work.code.sha256
        shipped = self._packaged.get(sha256)
        if shipped is None:
            with self._locks[sha256]:
                shipped = self._packaged.get(sha256) or self._package(work.code, unpacked)
                self._packaged[sha256] = shipped
        return BundledCode(reported, package_name(sha256), unpacked.differences, shipped)

    def verify(self, operator: str, code: WorkCode) -> str:
        """Return the fingerprint of an operator in the unpacked files. Raises CodeUnavailable if it is not that of the
        task."""
        key = (code.sha256, operator)
        unpacked = self.unpack(code)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprint_operator(operator, unpacked)
        actual = self._fingerprints[key]
        if actual != code.fingerprint:
            raise CodeUnavailable(
                f"the bundle {code.sha256[:12]} holds the code {actual} of {operator}, and the task belongs to "
                f"{code.fingerprint}: it was packed by Python {unpacked.manifest.python}, this is "
                f"{sys.version.partition(' ')[0]}; deploy the pipeline again"
            )
        return actual

    def _fetch(self, code: WorkCode) -> Unpacked:
        root = self._directory / code.sha256 / "files"
        try:
            body = self._storage.read(code.location)
            root.mkdir(parents=True)
            manifest = archive.unpack(body, code.sha256, root)
            (root.parent / MANIFEST).write_bytes(msgspec.json.encode(manifest))
        except (QoError, OSError) as error:
            shutil.rmtree(root.parent, ignore_errors=True)
            raise CodeUnavailable(
                f"the code of its version cannot be read from {code.location}: {error}; if it is gone, deploy the "
                "pipeline again"
            ) from error
        unpacked = Unpacked.read(root)
        for each in unpacked.differences:
            log.warning("the code %s was deployed with other packages: %s", code.sha256[:12], each)
        return unpacked

    def _package(self, code: WorkCode, unpacked: Unpacked) -> Path:
        """Make a bundle importable under a name of its own, and return the zip of that package."""
        name = package_name(code.sha256)
        target = self._importable / name
        draft = Path(tempfile.mkdtemp(dir=self._directory))
        shutil.copytree(unpacked.root, draft, dirs_exist_ok=True)
        names = Names.of(each.path for each in unpacked.manifest.files)
        for path in sorted(draft.rglob("*.py")):
            try:
                _rename(path, name, names)
            except (SyntaxError, UnicodeError) as error:
                raise UsageError(f"{path.relative_to(draft)} cannot be read as Python: {error}") from error
        init = draft / "__init__.py"
        if not init.exists():
            init.write_text("")
        zipped = unpacked.root.parent / f"{name}.zip"
        _zip(draft, name, zipped)
        draft.rename(target)  # Atomic: the package is complete or absent.
        importlib.invalidate_caches()  # Python looks again only into directories whose time differs, by ticks of 4 ms.
        return zipped


def _clear_abandoned() -> None:
    """Remove directories of killed workers of this user."""
    for each in Path(tempfile.gettempdir()).glob(f"{DIRECTORY}*"):
        owner = each.name.removeprefix(DIRECTORY).partition("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdecimal() and each.stat().st_uid == os.getuid() and not _is_alive(int(owner)):
                shutil.rmtree(each, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # A process of another user.
    return True


def package_name(sha256: str) -> str:
    return f"{PREFIX}{sha256[:16]}"


def _rename(path: Path, package: str, names: Names) -> None:
    with path.open("rb") as file:
        encoding, _ = tokenize.detect_encoding(file.readline)
    source = io.TextIOWrapper(io.BytesIO(path.read_bytes()), encoding, newline=None).read()
    path.write_text(rename_imports(source, package, names), encoding)


def fingerprint_operator(operator: str, unpacked: Unpacked) -> str:
    """Return the fingerprint of an operator from the unpacked files. Raises UsageError if they do not contain it."""
    included = {name: (unpacked.root / name).read_bytes() for name in unpacked.manifest.included}
    try:
        return fingerprint(operator, [unpacked.root], included)
    except Unresolvable as error:
        raise UsageError(f"the code that was deployed does not hold {operator}: {error}") from error


def _zip(directory: Path, name: str, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive_:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                place = f"{name}/{path.relative_to(directory).as_posix()}"
                archive_.writestr(zipfile.ZipInfo(place, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)
