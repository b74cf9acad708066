"""An archive of Spark's classes, ready to be mapped into memory: a session starts in half the time.

There is one for each Java and Spark, in the cache directory, made by a separate run (``archive_training``). A session
that finds none starts without. Java itself ignores an archive that does not fit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.errors import Unavailable
from qo.spark.engine.java import Java, cache_directory
from qo.spark.patches import lean

ARCHIVES_MAX = 4  # For several environments; each takes some 200 MB.
BUILD_S = 300.0
# So long one that is needed now waits for a process that makes it: that may have the lowest priority of a busy machine.
WAIT_S = 30.0
_TRY_AGAIN_S = 0.2
# Java would warn about an archive that it does not use, which is of no interest to anyone.
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Each changes the class path, which must be the same when the archive is used.
_CLASSPATH = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


@dataclass(frozen=True, slots=True)
class Archive:
    path: Path

    @property
    def exists(self) -> bool:
        return self.path.is_file()

    @property
    def failure_path(self) -> Path:
        """The file with the reason why the archive could not be made. While it exists, no worker tries again."""
        return self.path.with_suffix(".failed")

    @property
    def failure(self) -> str | None:
        """Why the archive could not be made; None if that was not tried."""
        try:
            return self.failure_path.read_text().strip() or "the reason is not known"
        except OSError:
            return None

    @property
    def base(self) -> Path:
        """The archive of Java's own classes, for a Java that comes without one. This archive refers to its path."""
        return self.path.with_suffix(".base")

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")


def spark_version() -> str | None:
    """Return the version of Spark, without loading it; None if it is not installed."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def archive_of(java: Java, settings: SparkSettings, environ: Mapping[str, str]) -> Archive | None:
    """Return the archive for this Java and Spark, be it made or not; None if Spark is not installed."""
    version, package = spark_version(), importlib.util.find_spec("pyspark")
    if version is None or package is None or package.origin is None:
        return None
    jars = Path(package.origin).parent / "jars"
    about = [
        str(java.home),
        java.release,
        version,
        str(jars),
        jars.stat().st_mtime_ns if jars.is_dir() else 0,  # After a new installation Java would ignore the archive.
        *(environ.get(name) for name in _CLASSPATH),
        *([str(lean.JAR), lean.JAR.stat().st_mtime_ns] if lean.is_lean(settings, environ) else []),
    ]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return Archive(cache_directory(environ) / "spark" / f"{version}-java{java.version}-{key}.jsa")


def options(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the flags that make a JVM use the archive; none if there is no archive yet."""
    archive = archive_of(java, settings, environ) if settings.class_archive else None
    if archive is None or not archive.exists:
        return []
    with contextlib.suppress(OSError):
        os.utime(archive.path)  # Marks it as used: ``prune`` drops others first.
    return [f"-XX:SharedArchiveFile={archive.path}", "-Xshare:auto", *QUIET]


def build(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Make the archive now, or wait for a process that makes it. Raises Unavailable that says why it cannot be made."""
    archive = archive_of(java, settings, environ)
    if archive is None:
        raise Unavailable("Spark is not installed")
    try:
        process = subprocess.run(
            _training_command(java, settings, environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_S,
            check=False,
            env=dict(environ),
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"making it took longer than {BUILD_S:.0f} s") from None
    if process.returncode != 0 or not archive.exists:
        raise Unavailable(archive.failure or (process.stderr.strip().splitlines() or ["it printed nothing"])[-1])


def build_in_background(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Start to make the archive if there is none, in a process of the lowest priority that nobody waits for."""
    archive = archive_of(java, settings, environ) if settings.class_archive else None
    if archive is None or archive.exists or archive.failure_path.exists():
        return
    process = subprocess.Popen(
        [*_training_command(java, settings, environ), "--beside"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        start_new_session=True,  # Keeps Ctrl-C in the worker's terminal from ending it.
    )
    threading.Thread(target=process.wait, name="qo-spark-archive", daemon=True).start()


def _training_command(java: Java, settings: SparkSettings, environ: Mapping[str, str]) -> list[str]:
    whole = [] if lean.is_lean(settings, environ) else ["--whole"]
    return [sys.executable, "-m", "qo.spark.engine.class_archive_training", "--java-home", str(java.home), *whole]


@contextlib.contextmanager
def locked(archive: Archive, *, wait_s: float) -> Generator[bool]:
    """Hold the lock to make an archive. Yields False if another process has it for longer than ``wait_s``."""
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with archive.lock.open("w") as file:
        yield _acquire(file.fileno(), time.monotonic() + wait_s)


def _acquire(lock: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TRY_AGAIN_S)
        else:
            return True


def prune(archive: Archive) -> None:
    """Delete the archives that were used least recently. A JVM that has one open can go on with it."""
    paths = sorted(archive.path.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths[ARCHIVES_MAX:]:
        dropped = Archive(path)
        for each in (dropped.path, dropped.base, dropped.failure_path, dropped.lock):
            each.unlink(missing_ok=True)
