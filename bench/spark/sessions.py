"""The Spark sessions of the sides: told what qo tells its own, or only what anybody would."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from qo.config.spark import SparkSettings


def opened(conf: Mapping[str, str], environment: Mapping[str, str]) -> SparkSession:
    """A new session. This runs where qo need not be installed, so whoever asks says everything."""
    os.environ.update(environment)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.range(1).count()
    return spark


def told() -> dict[str, Any]:
    """The arguments for ``opened``: a session as qo's workers have it, with qo's defaults."""
    from qo.config.spark import SparkSettings

    return _told(SparkSettings())


def ordinary() -> dict[str, Any]:
    """The same without what qo does for Spark: all of Hadoop, and a JVM that is told nothing of its own."""
    from qo.config.spark import SparkSettings

    found = _told(SparkSettings(lean=False, class_archive=False))
    del found["conf"]["spark.driver.defaultJavaOptions"]
    return found


def _told(settings: SparkSettings) -> dict[str, Any]:
    from qo.spark.engine import java, session

    found = java.find(settings, os.environ)
    environment = session.environment(settings, found)
    environment.pop("PYTHONPATH")
    return {"conf": session.conf(settings, found), "environment": environment}


def described() -> dict[str, Any]:
    """For the record."""
    import pyspark

    from qo.config.spark import SparkSettings
    from qo.spark.engine import java

    settings = SparkSettings()
    found = java.find(settings, os.environ)
    return {
        "spark": pyspark.__version__,
        "java": found.version,
        "master": settings.master,
        "cores": os.cpu_count(),
    }
