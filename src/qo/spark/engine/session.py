"""Spark's settings and environment, made from qo's settings."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.spark.engine import class_archive
from qo.spark.engine.java import Java, cache_directory
from qo.spark.engine.master import local_cores
from qo.spark.patches import lean

LOOPBACK = "127.0.0.1"
PARTITIONS_PER_CORE = 2
CLASSES = "256m"  # The size of Spark's classes after some hours of small tasks.

_LOOPBACK_MASTER = re.compile(r"spark://(127\.0\.0\.1|localhost)(:|\Z)")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def conf(settings: SparkSettings, java: Java) -> dict[str, str]:
    """Return Spark's settings for the process of the driver: this worker, or a server that it starts."""
    conf = {
        "spark.master": settings.master,
        "spark.app.name": "qo",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.defaultJavaOptions": " ".join(map(_quote, _java_options(settings, java))),
        "spark.log.level": "ERROR",
        # A small task does not wait for a large one that came first.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch() / "warehouse"),
        # Timestamps that every reader of Parquet understands, and only files with data.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if not settings.ui:
        # A session lives for weeks, and nobody looks at its records of finished jobs.
        conf |= {
            "spark.ui.retainedJobs": "200",
            "spark.ui.retainedStages": "400",
            "spark.ui.retainedTasks": "10000",
            "spark.sql.ui.retainedExecutions": "50",
        }
    if settings.python_memory is not None:
        conf["spark.executor.pyspark.memory"] = settings.python_memory
    if settings.packages:
        conf["spark.jars.packages"] = ",".join(settings.packages)
        # Fetched once for all workers of a user.
        conf["spark.jars.ivy"] = str(cache_directory(os.environ) / "ivy")
    lean_conf = lean.conf() if lean.is_lean(settings) else {}
    return conf | _conf_of_master(settings.master) | lean_conf | dict(settings.conf)


def environment(settings: SparkSettings, java: Java, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to set for the process that starts Spark's JVM."""
    python = sys.executable
    if local_cores(settings.master) is None:  # Another machine may have its Python elsewhere.
        python = dict(settings.conf).get("spark.pyspark.python") or environ.get("PYSPARK_PYTHON") or python
    variables = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": python, "PYTHONPATH": import_path()}
    return variables | ({"SPARK_LOCAL_IP": LOOPBACK} if _is_on_this_machine(settings.master) else {})


def _conf_of_master(master: str) -> dict[str, str]:
    """Return the settings that depend on where Spark runs."""
    conf: dict[str, str] = {}
    if _is_on_this_machine(master):
        conf |= {"spark.driver.bindAddress": LOOPBACK, "spark.driver.host": LOOPBACK}
    local = local_cores(master)
    if local is not None:
        conf["spark.sql.shuffle.partitions"] = str(PARTITIONS_PER_CORE * local)
    else:
        conf["spark.executorEnv.PYTHONPATH"] = import_path()  # Paths that do not exist do no harm.
    return conf


def import_path() -> str:
    """Return the import path for Spark's Python processes, so that they can import what this process can."""
    installed = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    paths = (str(Path(entry).absolute()) for entry in [*sys.path, os.curdir] if os.path.isdir(entry or os.curdir))
    return os.pathsep.join(
        dict.fromkeys(path for path in paths if not any(Path(path).is_relative_to(prefix) for prefix in installed))
    )


def _java_options(settings: SparkSettings, java: Java) -> list[str]:
    options = ["-XX:+ExitOnOutOfMemoryError"]  # A JVM that ran out of memory once cannot be trusted.
    # The full size from the start: a heap that has to grow is collected three times as often, and completely whenever
    # there are more classes than Java expected.
    heap = dict(settings.conf).get("spark.driver.memory", settings.driver_memory)
    options += [f"-Xms{heap}", f"-XX:MetaspaceSize={CLASSES}"]
    if not _COLLECTOR.search(dict(settings.conf).get("spark.driver.extraJavaOptions", "")):
        options.append("-XX:+UseSerialGC")  # Starts faster than the default, and needs no threads of its own.
    return options + class_archive.options(java, settings)


def _quote(option: str) -> str:
    return f'"{option}"' if " " in option else option


def _is_on_this_machine(master: str) -> bool:
    return local_cores(master) is not None or _LOOPBACK_MASTER.match(master) is not None


def scratch() -> Path:
    """Return where Spark may make its directory of tables, which it does even without any: not where people work."""
    return Path(tempfile.gettempdir()) / f"qo-spark-{os.getuid()}-{os.getpid()}"
