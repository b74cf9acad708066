"""Sends the user's code to where Spark runs Python functions, if that is another machine or directory.

The Python workers of a local session start in the same directory with the same interpreter, and import it as it is.
``addArtifacts`` works in classic sessions and in Spark Connect.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from qo.agent.code.loaded import Code
from qo.errors import UsageError

BYTES_MAX = 50 * 1024 * 1024
_SKIPPED = frozenset({"__pycache__", "node_modules", "build", "dist"})
_EPOCH = (1980, 1, 1, 0, 0, 0)  # A fixed time: the same files give the same zip.


class Shipper:
    """Packs each directory once, and sends it once to each session."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="qo-code-")
        self._packed: dict[Path, Path] = {}
        self._shipped: set[tuple[str, Path]] = set()
        self._lock = threading.Lock()

    def ship(self, spark: SparkSession, code: Code, operator: str) -> None:
        """Send the code that the operator needs.

        Modules of a version have unique names, so that two versions do not collide in one of Spark's Python processes.
        """
        function = code.load(operator)
        root = code.shipped or import_root(function)
        if root is None:
            return
        with self._lock:
            if root not in self._packed:
                self._packed[root] = code.shipped or pack(root, Path(self._directory.name))
            package = self._packed[root]
            application = _application(spark)
            if (application, package) not in self._shipped:
                spark.addArtifacts(str(package), pyfile=True)
            if application is not None:
                self._shipped.add((application, package))

    def close(self) -> None:
        self._directory.cleanup()


def import_root(function: Callable[..., Any]) -> Path | None:
    """Return the directory from which the function's module is imported; None if it is an installed package."""
    name: str | None = getattr(function, "__module__", None)
    file: str | None = getattr(sys.modules.get(name or ""), "__file__", None)
    if name is None or file is None:
        return None
    here = Path(file).resolve()
    if any(here.is_relative_to(each) for each in _installed()):
        return None
    levels = name.count(".") + (1 if here.name == "__init__.py" else 0)
    return here.parents[levels]


def pack(root: Path, directory: Path) -> Path:
    """Make a zip of the Python files below a directory, named by their content."""
    files = sorted(_python_files(root))
    size = sum(each.stat().st_size for each in files)
    if size > BYTES_MAX:
        raise UsageError(
            f"{root} has {size:,} bytes of Python files: too many to send to Spark. Keep the pipeline's code in a "
            "directory of its own, or install it where Spark runs"
        )
    digest = hashlib.sha256()
    bodies = [(str(each.relative_to(root)), each.read_bytes()) for each in files]
    for name, body in bodies:
        digest.update(f"{name}\0{len(body)}\0".encode() + body)
    path = directory / f"code-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in bodies:
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), body, zipfile.ZIP_DEFLATED)
    return path


def _python_files(directory: Path) -> Iterator[Path]:
    for each in directory.iterdir():
        if each.name.startswith(".") or each.name in _SKIPPED:
            continue
        if each.is_dir() and not (each / "pyvenv.cfg").exists():
            yield from _python_files(each)
        elif each.suffix == ".py":
            yield each


def _installed() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths[key]).resolve() for key in ("purelib", "platlib", "stdlib")]


def _application(spark: SparkSession) -> str | None:
    """Return the application, which keeps artifacts for all its sessions; None for Connect, where each session does."""
    if getattr(spark, "session_id", None) is not None:
        return None
    return spark.conf.get("spark.app.id", "")
