"""Rows by key in a process of its own, where Spark is set up in another way than in the session of the tests.

    python -m support.spark.keyed_child connect|s3a DIRECTORY ROOT ENDPOINT REGION [JARS IVY]

Prints a line for each check that held, and at the end how Spark reached the files.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from qo.config.settings import S3Settings, Settings
from qo.config.spark import SparkSettings
from qo.dispatcher.commits import removals
from qo.dispatcher.state import datasets
from qo.spark.engine.engine import Attempt, open_engine
from qo.spark.io.bucket import spark_settings
from qo.spark.io.files import files_for
from support.dispatcher.pipelines import deployed
from support.dispatcher.states import Clock, opened
from support.spark import session
from support.spark.keyed_shop import COLUMNS, SHOP, change_log, check
from support.spark.keyed_site import site


def main(how: str, directory: str, root: str, endpoint: str, region: str, *jars: str) -> None:
    settings = Settings(s3=S3Settings(endpoint=endpoint, region=region), spark=_spark(how, jars))
    engine = open_engine(spark_settings(settings))
    with engine.session(Attempt("keyed", 1)) as spark:
        _check_rows(spark, Path(directory), root, settings)
        print("READ BY", type(files_for(settings, root)).__name__, type(spark).__module__, flush=True)
    engine.close()


def _spark(how: str, jars: tuple[str, ...]) -> SparkSettings:
    if how == "connect":
        return session.settings(remote="local")
    packages, ivy = jars
    conf = (*session.SETTINGS.conf, ("spark.jars.ivy", ivy))
    return session.settings(packages=(packages,), conf=conf)


def _check_rows(spark: SparkSession, directory: Path, root: str, settings: Settings) -> None:
    choose, landed = random.Random(1), dict[str, list[dict[str, Any]]]()
    with opened(f"sqlite:{directory / 'state.db'}", Clock()) as state:
        shop = site(state, root, deployed(state, SHOP), spark, COLUMNS, settings)

        def land(day: str, rows: list[dict[str, Any]]) -> None:
            landed[day] = rows
            shop.land("log", day, rows)

        def settle(what: str) -> None:
            shop.settle()
            check(shop, landed)
            print("SAME", what, flush=True)

        land("day-0", change_log(choose, 6, 40))
        settle("first")
        land("day-1", change_log(choose, 6, 20))
        settle("more")
        land("day-1", change_log(choose, 6, 10))
        with state.write() as tx:
            removals.remove(tx, datasets.resolve(tx, "shop.log"), ["day-0"], by="ann", key="1")
        del landed["day-0"]
        settle("less")


if __name__ == "__main__":
    main(*sys.argv[1:])
