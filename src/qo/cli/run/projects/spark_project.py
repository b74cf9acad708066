"""A pipeline on Spark, declared in Python: files of orders, cleaned and totalled by day."""

from __future__ import annotations

from qo.cli.run.projects.orders_data import ORDERS, TEST_HEAD
from qo.cli.run.projects.project import Project

PIPELINE = '''\
"""Orders arrive as one file a day. Each day is cleaned, then totalled: `qo up` runs it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import qo

pipeline = qo.Pipeline("{project}")

orders = pipeline.files(
    "landing/*.csv",
    partition="day",  # The * of a file's name is its day: landing/2026-03-01.csv.
    columns="day date, customer string, product string, quantity int, price double",
    poll_seconds=1,
)


@pipeline.table(expect=[qo.not_null("day", "customer"), qo.range("quantity", min=1)])
def clean(orders: DataFrame) -> DataFrame:
    """Each order once, with its amount. A parameter names what is read."""
    return orders.dropDuplicates().withColumn("amount", F.col("quantity") * F.col("price"))


@pipeline.table(expect=[qo.unique("day", "product")], publish="daily_sales")
def totals(clean: DataFrame) -> DataFrame:
    """What was sold on a day, by product."""
    return clean.groupBy("day", "product").agg(F.sum("quantity").alias("sold"), F.sum("amount").alias("amount"))
'''

TEST = (
    '"""Declared functions are plain functions: tests call them with small frames."""\n\n'
    + TEST_HEAD
    + """\
def test_an_order_that_was_sent_twice_counts_once(spark):
    from pipeline import clean, totals

    sent = [("2026-03-01", "ada", "tea", 2, 4.5)] * 2 + [("2026-03-01", "eve", "tea", 1, 4.5)]
    orders = spark.createDataFrame(sent, "day string, customer string, product string, quantity int, price double")
    assert [tuple(row) for row in totals(clean(orders)).collect()] == [("2026-03-01", "tea", 3, 13.5)]
"""
)

README = """\
# {project}

A pipeline of qo on Spark. `pipeline.py` declares it: files of orders in `landing/` become
the table `orders`, which `clean` and `totals` read, day by day. `totals` is published as `daily_sales`.

    python -m pytest     # test the functions
    qo up                # run it; the dashboard's address is printed. Ctrl-C ends it
    qo up --once         # run it until nothing is left to do
    qo dataset preview daily_sales

While `qo up` runs, copy another day to `landing/`, or save `pipeline.py`: what the change concerns is built anew beside
what serves, and takes over when it is complete.

    qo try totals@2026-03-01     # run one function here, without committing anything
    qo why daily_sales@2026-03-01
    qo dag validate . --full     # everything that follows from pipeline.py
"""

SPARK_PROJECT = Project(
    summary="a pipeline on Spark, declared in Python",
    files={"pipeline.py": PIPELINE, "test_pipeline.py": TEST, "README.md": README, **ORDERS},
    next_steps=("python -m pytest", "qo up"),
    has_pipeline=False,
)
