"""Compares rows with Spark: for more data than one machine should read."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from qo.config.settings import Settings
from qo.core.pipeline.row_diff import AFTER, BEFORE, SPARK
from qo.spark.engine.engine import Attempt, open_engine
from qo.spark.io.bucket import spark_settings
from qo.spark.io.files import files_for


class SparkRows:
    def __init__(self, spark: SparkSession) -> None:
        self.dialect = SPARK
        self._spark = spark

    def types(self, relation: str) -> Mapping[str, str]:
        return dict(self._spark.table(relation).dtypes)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._spark.sql(query).collect()]


@contextmanager
def open_spark(settings: Settings, before: Sequence[str], after: Sequence[str]) -> Generator[SparkRows]:
    """Open the Spark of the settings over the files of two versions."""
    engine = open_engine(spark_settings(settings))
    try:
        with engine.session(Attempt("diff", 1)) as spark:
            frames = {name: _read(spark, settings, uris) for name, uris in ((BEFORE, before), (AFTER, after))}
            for name, other in ((BEFORE, AFTER), (AFTER, BEFORE)):
                frame = frames[name]
                empty = frames[other]
                if frame is None and empty is not None:
                    frame = empty.limit(0)
                if frame is not None:
                    frame.createOrReplaceTempView(name)
            yield SparkRows(spark)
    finally:
        engine.close()


def _read(spark: SparkSession, settings: Settings, uris: Sequence[str]) -> DataFrame | None:
    return files_for(settings, uris[0]).read(spark, uris, None) if uris else None
