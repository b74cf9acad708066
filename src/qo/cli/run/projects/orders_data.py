"""The files of two days of orders, with which the projects on Spark begin."""

from __future__ import annotations

ORDERS = {
    "landing/2026-03-01.csv": """\
day,customer,product,quantity,price
2026-03-01,ada,tea,2,4.50
2026-03-01,ada,tea,2,4.50
2026-03-01,bob,coffee,1,7.00
2026-03-01,eve,tea,3,4.50
""",
    "landing/2026-03-02.csv": """\
day,customer,product,quantity,price
2026-03-02,bob,tea,1,4.50
2026-03-02,eve,coffee,2,7.00
2026-03-02,eve,mug,1,12.00
""",
}

# With qo's session for tests; each project has its own tests below it.
TEST_HEAD = """\
import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark():
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


"""
