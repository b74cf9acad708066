"""A pipeline of SQL files: each is a table, and what it reads follows from its query."""

from __future__ import annotations

from qo.cli.run.projects.orders_data import ORDERS, TEST_HEAD
from qo.cli.run.projects.project import Project

PIPELINE = """\
# yaml-language-server: $schema=pipeline.schema.json
# Orders arrive as one file a day. Each day is cleaned, then totalled: `qo up` runs it.
name: {project}

jobs:
- name: orders
  files:
    path: landing/*.csv
    columns: day date, customer string, product string, quantity int, price double
    poll_seconds: 1
  partitions: {kind: day}  # The * of a file's name is its day: landing/2026-03-01.csv.

- name: clean
  sql: clean.sql
  expectations:
  - not_null: [day, customer]
  - range: {column: quantity, min: 1}

- name: totals
  sql: totals.sql
  expectations:
  - unique: [day, product]

publish:
  daily_sales: totals
"""

CLEAN = """\
-- Each order once, with its amount.
SELECT DISTINCT *, quantity * price AS amount
FROM orders
"""

TOTALS = """\
-- What was sold on a day, by product.
SELECT day, product, sum(quantity) AS sold, sum(amount) AS amount
FROM clean
GROUP BY day, product
"""

TEST = (
    '"""Queries are run as a worker runs them, on small frames."""\n\nfrom pathlib import Path\n\n'
    + TEST_HEAD
    + """\
def run(name, inputs, spark):
    from qo.testing.spark import run_operator

    query = (Path(__file__).parent / f"{name}.sql").read_text()
    return run_operator("sql", inputs, config={"query": query}, spark=spark)


def test_an_order_that_was_sent_twice_counts_once(spark):
    sent = [("2026-03-01", "ada", "tea", 2, 4.5)] * 2 + [("2026-03-01", "eve", "tea", 1, 4.5)]
    orders = spark.createDataFrame(sent, "day string, customer string, product string, quantity int, price double")
    totals = run("totals", {"clean": run("clean", {"orders": orders}, spark)}, spark)
    assert [tuple(row) for row in totals.collect()] == [("2026-03-01", "tea", 3, 13.5)]
"""
)

README = """\
# {project}

A pipeline of qo in SQL. `pipeline.yaml` lists its tables: files of orders in `landing/`
become `orders`, which `clean.sql` and `totals.sql` read, day by day. `totals` is published as `daily_sales`. Editors
that know YAML complete and check `pipeline.yaml` by `pipeline.schema.json`.

    python -m pytest     # test the queries
    qo up                # run it; the dashboard's address is printed. Ctrl-C ends it
    qo up --once         # run it until nothing is left to do
    qo dataset preview daily_sales

While `qo up` runs, copy another day to `landing/`, or save a query: what the change concerns is built anew beside what
serves, and takes over when it is complete.

    qo try totals@2026-03-01     # run one query here, without committing anything
    qo why daily_sales@2026-03-01
    qo dag validate . --full     # everything that follows from pipeline.yaml
"""

SQL_PROJECT = Project(
    summary="a pipeline of SQL files",
    files={
        "pipeline.yaml": PIPELINE,
        "clean.sql": CLEAN,
        "totals.sql": TOTALS,
        "test_queries.py": TEST,
        "README.md": README,
        **ORDERS,
    },
    next_steps=("python -m pytest", "qo up"),
)
