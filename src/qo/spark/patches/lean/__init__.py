"""What a local session does without, so that small tasks take half the time.

With every job Spark sends all settings of Hadoop to its tasks, each compressed by itself: more than a thousand, most
of them YARN's and MapReduce's. And for every file and directory that it makes on a local disk, Hadoop starts a process.
A jar at the head of the class path holds files of settings with next to nothing in them, and a file system that needs
no such process.

Whoever has Hadoop set up, brings jars, or uses a cluster gets Hadoop as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from qo.config.spark import SparkSettings
from qo.spark.engine.master import cores

JAR = Path(__file__).with_name("lean.jar")
CLASS_PATH = "spark.driver.extraClassPath"
FILES = "spark.hadoop.fs.file.impl"

_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "SPARK_DIST_CLASSPATH")
# What brings code that may count on what Hadoop says by default.
_BROUGHT = ("spark.jars", CLASS_PATH, FILES)


def fits(settings: SparkSettings, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing that was asked for needs more of Hadoop than local files."""
    told = dict(settings.conf)
    return (
        settings.lean
        and cores(settings.master) is not None
        and not settings.packages
        and not any(key.startswith(_BROUGHT) for key in told)
        and not any(environ.get(name) for name in _HADOOP)
    )


def conf() -> dict[str, str]:
    return {CLASS_PATH: str(JAR), FILES: "qo.spark.LocalFiles"}
