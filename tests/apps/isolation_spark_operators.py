"""Operators on Spark that work on data of their own, and some that try others'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import qo
from qo.agent.operators import Executor
from qo.config.settings import Settings
from qo.spark.engine.classic import ClassicEngine
from qo.spark.executor import SparkExecutor
from qo.spark.io.files import files_for
from qo.spark.io.objects import Bucket, bucket_path, register
from qo.spark.io.parquet_source import NAME

PLACES: dict[str, list[str]] = {"read": [], "write": []}  # That ``reach_out`` tries.
REFUSED: list[str] = []
READ: list[int] = []  # How many rows each place had.


def open_executor(settings: Settings, on_ui: Callable[[str], None] | None) -> Executor:
    """Around the session of the tests."""
    del on_ui
    SETTINGS["of the worker"] = settings
    return SparkExecutor(settings, ClassicEngine(settings.spark))


SETTINGS: dict[str, Settings] = {}


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(3)


def double(clean: DataFrame) -> DataFrame:
    return clean.selectExpr("id * 2 AS id")


def reach_out(spark: SparkSession, run: qo.Run) -> DataFrame:
    """Try the places with the credentials of the attempt, in the processes of Spark."""
    REFUSED.clear()
    READ.clear()
    files = files_for(SETTINGS["of the worker"], run.output().prefix, run.credentials)
    frame = spark.range(1)
    for uri in PLACES["read"]:
        _note(f"read {uri}", lambda uri=uri: READ.append(files.read(spark, [uri], frame.schema).count()))
    for uri in PLACES["write"]:
        _note(f"write {uri}", lambda uri=uri: files.write(frame, uri))
    return frame


def read_late(spark: SparkSession, run: qo.Run) -> DataFrame:
    """Read the input with credentials that have ended meanwhile: the processes of Spark renew them."""
    access = Bucket(SETTINGS["of the worker"].s3, run.credentials).access()
    ended = {**access, "expires": "2020-01-01T00:00:00+00:00", "accesskey": "ended", "sessiontoken": "ended"}
    register(spark)
    paths = "[" + ",".join(f'"{bucket_path(uri)}"' for uri in run.input().files) + "]"
    return spark.read.format(NAME).schema("id long").options(**ended, files=paths, kind="parquet").load()


def _note(name: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except Exception as error:
        if (
            "ACCESS_DENIED" not in str(error)
            and "Access Denied" not in str(error)
            and "AccessDenied" not in str(error)
        ):
            raise
        REFUSED.append(name)
