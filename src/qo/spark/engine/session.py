"""How a Spark session is set up: everything that Spark is told, from qo's settings."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.spark.engine import archive
from qo.spark.engine.java import Java, cache_directory
from qo.spark.engine.master import cores
from qo.spark.patches import lean

LOOPBACK = "127.0.0.1"
PARTITIONS_PER_CORE = 2
CLASSES = "256m"  # What Spark's take after some hours of small tasks.

_LOOPBACK_MASTER = re.compile(r"spark://(127\.0\.0\.1|localhost)(:|\Z)")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def conf(settings: SparkSettings, java: Java) -> dict[str, str]:
    """For whichever process holds the driver: this worker, or a server that it looks after."""
    told = {
        "spark.master": settings.master,
        "spark.app.name": "qo",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.defaultJavaOptions": " ".join(map(_quoted, _java_options(settings, java))),
        "spark.log.level": "ERROR",
        # Several tasks side by side: a small one does not wait for a large one that came first.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch() / "warehouse"),
        # Time stamps that every reader of Parquet understands, and no files that are not data.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if not settings.ui:
        # A session lives for weeks; what it remembers of finished jobs nobody looks at.
        told |= {
            "spark.ui.retainedJobs": "200",
            "spark.ui.retainedStages": "400",
            "spark.ui.retainedTasks": "10000",
            "spark.sql.ui.retainedExecutions": "50",
        }
    if settings.python_memory is not None:
        told["spark.executor.pyspark.memory"] = settings.python_memory
    if settings.packages:
        told["spark.jars.packages"] = ",".join(settings.packages)
        # Fetched once, for all workers of a user.
        told["spark.jars.ivy"] = str(cache_directory(os.environ) / "ivy")
    without = lean.conf() if lean.is_lean(settings) else {}
    return told | _placed(settings.master) | without | dict(settings.conf)


def environment(settings: SparkSettings, java: Java, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables to set for the process that starts Spark's JVM."""
    python = sys.executable
    if cores(settings.master) is None:  # Elsewhere, Python may live elsewhere.
        python = dict(settings.conf).get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON") or python
    told = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": python, "PYTHONPATH": import_path()}
    return told | ({"SPARK_LOCAL_IP": LOOPBACK} if _is_here(settings.master) else {})


def _placed(master: str) -> dict[str, str]:
    """What depends on where the work is done."""
    told: dict[str, str] = {}
    if _is_here(master):
        told |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    local = cores(master)
    if local is not None:
        told["spark.sql.shuffle.partitions"] = str(PARTITIONS_PER_CORE * local)
    else:
        told["spark.executorEnv.PYTHONPATH"] = import_path()  # Paths that are not there do no harm.
    return told


def import_path() -> str:
    """Where operators are found by their names: what can be imported here, Spark's Python processes can import too."""
    installed = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    paths = (str(Path(entry).absolute()) for entry in [*sys.path, os.curdir] if os.path.isdir(entry or os.curdir))
    return os.pathsep.join(
        dict.fromkeys(path for path in paths if not any(Path(path).is_relative_to(prefix) for prefix in installed))
    )


def _java_options(settings: SparkSettings, java: Java) -> list[str]:
    told = ["-XX:+ExitOnOutOfMemoryError"]  # A JVM that ran out once cannot be trusted; a new one can.
    # Room from the beginning. A heap that has to grow is cleared three times as often, and all of it whenever there are
    # more classes than Java thought.
    heap = dict(settings.conf).get("spark.driver.memory", settings.driver_memory)
    told += [f"-Xms{heap}", f"-XX:MetaspaceSize={CLASSES}"]
    if not _COLLECTOR.search(dict(settings.conf).get("spark.driver.extraJavaOptions", "")):
        told.append("-XX:+UseSerialGC")  # Starts faster than the default, and takes no threads of its own.
    return told + archive.options(java, settings)


def _quoted(option: str) -> str:
    return f'"{option}"' if " " in option else option


def _is_here(master: str) -> bool:
    return cores(master) is not None or _LOOPBACK_MASTER.match(master) is not None


def scratch() -> Path:
    """Spark makes directories where it is told to keep tables, even if there are none: not where people work."""
    return Path(tempfile.gettempdir()) / f"qo-spark-{os.getuid()}-{os.getpid()}"
