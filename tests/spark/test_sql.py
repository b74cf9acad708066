"""The sql operator."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from qo.errors import NotFound, UsageError
from qo.spark.engine.error_translation import BadData
from qo.testing.spark import run_operator

pytestmark = pytest.mark.spark

FLIGHTS = [{"flight": 1, "delay": 90}, {"flight": 2, "delay": 0}]


def test_a_query_knows_the_inputs_by_their_names(spark: SparkSession, tmp_path: Path) -> None:
    query = "SELECT flight FROM flights WHERE delay > (SELECT min(least) FROM bounds)"
    inputs = {"flights": FLIGHTS, "bounds": [{"least": 60}]}
    wanted = spark.createDataFrame([(1,)], "flight long")
    assertDataFrameEqual(run_operator("sql", inputs, config={"query": query}, spark=spark), wanted)
    (tmp_path / "late.sql").write_text(query)
    assertDataFrameEqual(
        run_operator("sql", inputs, config={"file": str(tmp_path / "late.sql")}, spark=spark), wanted
    )


def test_a_query_that_cannot_be_read_is_told_with_its_place(spark: SparkSession) -> None:
    with pytest.raises(BadData, match=r"PARSE_SYNTAX_ERROR[\s\S]*line 1, pos 25"):
        run_operator("sql", {"flights": FLIGHTS}, config={"query": "SELECT FROM flights WHERE"}, spark=spark)
    with pytest.raises(BadData, match=r"TABLE_OR_VIEW_NOT_FOUND[\s\S]*`flihgts`"):
        run_operator("sql", {"flights": FLIGHTS}, config={"query": "SELECT * FROM flihgts"}, spark=spark)


def test_a_query_has_one_home(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="either 'query' or 'file'"):
        run_operator("sql", {"flights": FLIGHTS}, spark=spark)
    with pytest.raises(NotFound, match=r"no file gone\.sql"):
        run_operator("sql", {"flights": FLIGHTS}, config={"file": "gone.sql"}, spark=spark)
