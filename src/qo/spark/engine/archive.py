"""An archive of Spark's classes, ready to be mapped into memory: a session starts in half the time.

There is one per Java and Spark, in the cache directory. It is made by a run of its own (``archive_training``), and
whoever finds none goes without. Java itself refuses an archive that does not fit, and then does without too.
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
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.errors import Unavailable
from qo.spark.engine.java import Java, cache_directory
from qo.spark.patches import lean

KEPT = 4  # Archives of other environments; each takes some 200 MB.
BUILD_S = 300.0
# What Java would say of an archive that it does not use is of no interest to anyone.
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
# Each puts something on the path of classes, which must be the same when the archive is used.
_CLASSPATH = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "HADOOP_CONF_DIR", "YARN_CONF_DIR")


@dataclass(frozen=True, slots=True)
class Archive:
    path: Path

    @property
    def there(self) -> bool:
        return self.path.is_file()

    @property
    def failed(self) -> Path:
        """Says that it could not be made, and why: nobody tries again by themselves."""
        return self.path.with_suffix(".failed")

    @property
    def why_not(self) -> str | None:
        """Why it could not be made, if that was tried."""
        try:
            return self.failed.read_text().strip() or "nobody knows why"
        except OSError:
            return None

    @property
    def base(self) -> Path:
        """What it builds on, where Java comes without an archive of its own classes. It knows where that is."""
        return self.path.with_suffix(".base")

    @property
    def lock(self) -> Path:
        return self.path.with_suffix(".lock")


def spark_version() -> str | None:
    """None: Spark is not installed. Spark itself is not loaded for this."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def archive_of(java: Java, settings: SparkSettings, environ: Mapping[str, str]) -> Archive | None:
    """Where the archive for this Java and this Spark is, or would be. None: there is no Spark."""
    version, package = spark_version(), importlib.util.find_spec("pyspark")
    if version is None or package is None or package.origin is None:
        return None
    jars = Path(package.origin).parent / "jars"
    about = [
        str(java.home),
        java.release,
        version,
        str(jars),
        jars.stat().st_mtime_ns if jars.is_dir() else 0,  # Installed anew: Java would refuse the old archive.
        *(environ.get(name) for name in _CLASSPATH),
        *([str(lean.JAR), lean.JAR.stat().st_mtime_ns] if lean.is_lean(settings, environ) else []),
    ]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    return Archive(cache_directory(environ) / "spark" / f"{version}-java{java.version}-{key}.jsa")


def options(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The flags that make a JVM use the archive; none where there is no archive yet."""
    archive = archive_of(java, settings, environ) if settings.class_archive else None
    if archive is None or not archive.there:
        return []
    with contextlib.suppress(OSError):
        os.utime(archive.path)  # In use: not the one to be dropped.
    return [f"-XX:SharedArchiveFile={archive.path}", "-Xshare:auto", *QUIET]


def build(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Make the archive now, or wait for whoever is making it. Raises Unavailable that says why it cannot be made."""
    archive = archive_of(java, settings, environ)
    if archive is None:
        raise Unavailable("Spark is not installed")
    try:
        process = subprocess.run(
            _rehearsal(java, settings, environ),
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
    if process.returncode != 0 or not archive.there:
        raise Unavailable(archive.why_not or (process.stderr.strip().splitlines() or ["it said nothing"])[-1])


def build_in_background(java: Java, settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Begin to make the archive if there is none. Nobody waits for it, and it takes only time that is left over."""
    archive = archive_of(java, settings, environ) if settings.class_archive else None
    if archive is None or archive.there or archive.failed.exists():
        return
    process = subprocess.Popen(
        [*_rehearsal(java, settings, environ), "--beside"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(environ),
        start_new_session=True,  # A key pressed in the worker's terminal is not meant for it.
    )
    threading.Thread(target=process.wait, name="qo-spark-archive", daemon=True).start()


def _rehearsal(java: Java, settings: SparkSettings, environ: Mapping[str, str]) -> list[str]:
    whole = [] if lean.is_lean(settings, environ) else ["--whole"]
    return [sys.executable, "-m", "qo.spark.engine.archive_training", "--java-home", str(java.home), *whole]


@contextlib.contextmanager
def alone(archive: Archive, *, wait: bool) -> Generator[bool]:
    """One process at a time makes an archive. False: another is at it, and ``wait`` was not wanted."""
    archive.path.parent.mkdir(parents=True, exist_ok=True)
    with archive.lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def prune(archive: Archive) -> None:
    """Drop what has not been used for longest. A JVM that has an archive open keeps it."""
    kept = sorted(archive.path.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[KEPT:]:
        dropped = Archive(path)
        for each in (dropped.path, dropped.base, dropped.failed, dropped.lock):
            each.unlink(missing_ok=True)
