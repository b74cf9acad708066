"""One Spark session for all tests of a process. Started when the first test asks for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qo.config.spark import SparkSettings

# To write Java for each query and compile it takes longer than a query of a test; clusters and make prove do it.
INTERPRETED = (
    ()
    if os.environ.get("PROVE")
    else (("spark.sql.codegen.wholeStage", "false"), ("spark.sql.codegen.factoryMode", "NO_CODEGEN"))
)
# A session that starts quickly, for work that is small: Java compiles little and keeps house with one thread.
SETTINGS = SparkSettings(
    master="local[2]",
    driver_memory="1g",
    conf=(
        ("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1"),
        ("spark.sql.shuffle.partitions", "2"),
        *INTERPRETED,
    ),
)

# The same for a process that the tests start.
ENVIRONMENT = {
    "QO_SPARK_MASTER": SETTINGS.master,
    "QO_SPARK_DRIVER_MEMORY": SETTINGS.driver_memory,
    "QO_SPARK_CONF": ",".join(f"{key}={value}" for key, value in SETTINGS.conf),
}


def settings(**chosen: Any) -> SparkSettings:
    return replace(SETTINGS, **chosen)


def pretend(home: Path, version: str) -> Path:
    """The home of a Java that says no more than which one it is."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\nprintf '    java.home = {home}\\n    java.specification.version = {version}\\n"
        f"    java.vm.version = {version}.0.1\\n' >&2\n"
    )
    command.chmod(0o755)
    return home


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from pyspark.sql import SparkSession

    from qo.spark.engine import class_archive, java, session

    found = java.find(SETTINGS, os.environ)
    os.environ.update(session.environment(SETTINGS, found))
    class_archive.build_in_background(found, SETTINGS)  # For those that start later.
    builder = SparkSession.builder
    for key, value in session.conf(SETTINGS, found).items():
        builder = builder.config(key, value)
    started = builder.getOrCreate()
    yield started
    started.stop()
    shutil.rmtree(session.scratch(), ignore_errors=True)
