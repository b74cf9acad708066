"""Jars from Maven Central, by the Ivy that comes with Spark: there need be no Maven. They are kept for later runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pyspark

from qo.config.spark import SparkSettings
from qo.spark.engine import java

CACHE = Path("~/.cache/qo/ivy-tests").expanduser()
WITHIN_S = 600.0
SPARK_JARS = Path(pyspark.__file__).parent / "jars"


class NotFetched(Exception):
    """The jars are not here, and cannot be fetched."""


def fetch_jars(coordinates: str, *, alone: bool = False) -> list[Path]:
    """Return the jars of ``group:artifact:version`` and all that it needs; ``alone``: without what it needs."""
    listed = CACHE / hashlib.sha256(f"{coordinates} {alone}".encode()).hexdigest()[:16]
    if not listed.exists():
        _resolve(coordinates, listed, alone)
    jars = [Path(each) for each in listed.read_text().strip().split(os.pathsep)]
    if all(each.exists() for each in jars):
        return jars
    listed.unlink()
    return fetch_jars(coordinates, alone=alone)


def _resolve(coordinates: str, listed: Path, alone: bool) -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (ivy,) = SPARK_JARS.glob("ivy-*.jar")
    beside = listed.with_name(f"{listed.name}.{os.getpid()}")
    command = [str(java.find(SparkSettings(), os.environ).command), "-jar", str(ivy), "-warn", "-m2compatible"]
    command += ["-cache", str(CACHE / "cache"), "-confs", "default", "-cachepath", str(beside)]
    command += ["-dependency", *coordinates.split(":"), *(["-notransitive"] if alone else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, stdin=subprocess.DEVNULL)
    if not beside.exists():
        raise NotFetched(f"{coordinates} cannot be fetched: {(done.stdout + done.stderr)[-2_000:]}")
    beside.replace(listed)
