"""A local session without the parts of Hadoop that it does not need, so that small tasks take half the time.

Spark sends all settings of Hadoop to its tasks with every job, each compressed by itself: more than a thousand, most of
them of YARN and MapReduce. And Hadoop starts a process for every file and directory that it makes on a local disk. A
jar at the head of the class path replaces the files of default settings by almost empty ones, and the local file system
by one that needs no such process.

A session with a Hadoop configuration, with other jars, or on a cluster uses Hadoop as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.spark.engine.master import local_cores
from qo.spark.patches.table import LEAN_JAR

JAR = Path(__file__).with_name("lean.jar")
CLASS_PATH = "spark.driver.extraClassPath"
FILE_SYSTEM = "spark.hadoop.fs.file.impl"

_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "SPARK_DIST_CLASSPATH")
# These bring code that may rely on Hadoop's defaults.
_OTHER_CODE = ("spark.jars", CLASS_PATH, FILE_SYSTEM)


def is_lean(settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a session with these settings uses the jar: it needs no more of Hadoop than local files."""
    return (
        settings.lean
        and local_cores(settings.master) is not None
        and not settings.packages
        and not any(key.startswith(_OTHER_CODE) for key, _ in settings.conf)
        and not any(environ.get(name) for name in _HADOOP)
        and LEAN_JAR.is_enabled(settings)
    )


def conf() -> dict[str, str]:
    """Return the settings of Spark that put the jar to use."""
    return {CLASS_PATH: str(JAR), FILE_SYSTEM: "qo.spark.LocalFiles"}
