"""Functions of users and what becomes of their mistakes; what an error of Spark means."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import spark_operators
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, udf
from pyspark.testing import assertDataFrameEqual

from qo.agent.code.loaded import OwnCode
from qo.errors import NotFound, UsageError
from qo.spark.engine.error_translation import BadData, SessionLost, SparkFailed, explain
from qo.spark.operators import shipping
from qo.testing.spark import run_operator

pytestmark = pytest.mark.spark

SPARK_RAISES = (PySparkException, Py4JError)

FLIGHTS = [{"flight": 1, "plane": "a"}, {"flight": 2, "plane": "b"}]
PLANES = [{"plane": "a", "seats": 100}]


def joined(flights: DataFrame, planes: DataFrame, config: Mapping[str, Any]) -> DataFrame:
    return flights.join(planes, "plane", config["how"])


def test_inputs_and_config_are_bound_by_their_names(spark: SparkSession) -> None:
    made = run_operator(
        joined, {"planes": PLANES, "flights": FLIGHTS, "unread": []}, config={"how": "inner"}, spark=spark
    )
    assertDataFrameEqual(made, spark.createDataFrame([("a", 1, 100)], "plane string, flight long, seats long"))


def test_several_outputs_are_a_tuple_or_go_by_number(spark: SparkSession) -> None:
    def split(flights: DataFrame) -> tuple[DataFrame, DataFrame]:
        return flights.where("flight = 1"), flights.where("flight = 2")

    def numbered(flights: DataFrame) -> dict[int, DataFrame]:
        one, two = split(flights)
        return {1: two, 0: one}

    for function in (split, numbered):
        one, two = run_operator(function, {"flights": FLIGHTS}, spark=spark, outputs=2)
        assert [row.flight for row in (*one.collect(), *two.collect())] == [1, 2]


def test_an_output_that_the_function_settles_itself_needs_no_frame(spark: SparkSession) -> None:
    def quiet(flights: DataFrame, run: Any) -> None:
        run.output().skip()

    assert run_operator(quiet, {"flights": FLIGHTS}, spark=spark) is None


def unknown(flights: DataFrame, plains: DataFrame) -> DataFrame: ...


def nothing(flights: DataFrame) -> None: ...


def number(flights: DataFrame) -> int:
    return flights.count()


def in_pandas(flights: DataFrame) -> object:
    return flights.toPandas()


def two(flights: DataFrame) -> tuple[DataFrame, DataFrame]:
    return flights, flights


def third(flights: DataFrame) -> dict[int, DataFrame]:
    return {3: flights}


def named(flights: DataFrame) -> dict[str, DataFrame]:
    return {"clean": flights}


def starred(*flights: DataFrame) -> DataFrame: ...


async def waiting(flights: DataFrame) -> DataFrame: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unknown, r"unknown\(flights, plains\) has a parameter 'plains'.* inputs are flights"),
        (nothing, r"nothing\(flights\) returned nothing, but test has one output: return a DataFrame"),
        (number, "returned a int for output 0: return a Spark DataFrame"),
        (in_pandas, r"returned a pandas\.\S*DataFrame for output 0: return a Spark DataFrame"),
        (two, "returned 2 frames, but test has one output: return a DataFrame"),
        (third, "returned frames for the outputs 3"),
        (named, "keys 'clean': outputs go by number"),
        (starred, r"takes \*flights.* write \*\*flights"),
        (waiting, "is an async def"),
    ],
)
def test_a_function_that_does_not_fit_its_job_is_told_what_to_write(
    spark: SparkSession, function: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run_operator(function, {"flights": FLIGHTS}, spark=spark)


def test_an_operator_that_there_is_not_is_not_found(spark: SparkSession) -> None:
    with pytest.raises(NotFound, match="no operator 'sqll'"):
        run_operator("sqll", {"flights": FLIGHTS}, spark=spark)
    with pytest.raises(NotFound, match="no function 'nope'"):
        run_operator("qo.errors:nope", {"flights": FLIGHTS}, spark=spark)


def test_check_lets_its_input_through(spark: SparkSession) -> None:
    assertDataFrameEqual(run_operator("check", {"flights": FLIGHTS}, spark=spark), spark.createDataFrame(FLIGHTS))


# What an error means


def raised(frame: DataFrame) -> BaseException:
    with pytest.raises(SPARK_RAISES) as caught:
        frame.write.format("noop").mode("overwrite").save()
    return explain(caught.value)


def test_wrong_data_is_fatal_and_says_so_in_few_words(spark: SparkSession) -> None:
    texts = spark.createDataFrame([("x",)], "text string")
    cast_error = raised(texts.select(col("text").cast("int")))
    assert isinstance(cast_error, BadData)
    assert "CAST_INVALID_INPUT" in str(cast_error)
    assert "'x'" in str(cast_error)
    division = raised(texts.selectExpr("1 / (length(text) - 1)"))
    assert isinstance(division, BadData)
    assert "DIVIDE_BY_ZERO" in str(division)
    for error in (cast_error, division):
        assert "\tat " not in str(error)
        assert len(str(error)) <= 1500


def test_a_missing_column_is_fatal_and_names_those_there_are(spark: SparkSession) -> None:
    with pytest.raises(BadData, match=r"UNRESOLVED_COLUMN[\s\S]*`fligth`[\s\S]*`flight`") as caught:
        run_operator(lambda flights: flights.select("fligth"), {"flights": FLIGHTS}, spark=spark)
    assert "Project" not in str(caught.value)  # The plan is for Spark.


def test_a_python_function_that_fails_is_retried_and_tells_its_own_words(spark: SparkSession) -> None:
    @udf("int")
    def broken(flight):  # PySpark cannot resolve annotations in here.
        raise ConnectionError(f"no answer for {flight}")

    error = raised(spark.createDataFrame(FLIGHTS[:1]).select(broken("flight")))
    assert isinstance(error, SparkFailed)
    assert not isinstance(error, UsageError)
    assert str(error) == "a Python function raised ConnectionError: no answer for 1"


def test_a_file_that_is_gone_is_retried_and_a_broken_one_is_not(spark: SparkSession, tmp_path: Any) -> None:
    with pytest.raises(SPARK_RAISES) as caught:
        spark.read.schema("a int").parquet(f"file:{tmp_path}/gone.parquet").collect()
    gone = explain(caught.value)
    assert isinstance(gone, SparkFailed)
    assert "gone.parquet is missing" in str(gone)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    broken = raised(spark.read.schema("a int").parquet(f"file:{tmp_path}/broken.parquet"))
    assert isinstance(broken, BadData)
    assert "broken.parquet cannot be read" in str(broken)


def said(text: str) -> BaseException:
    return explain(Py4JError(text))


def test_trouble_of_the_machine_is_retried_and_named() -> None:
    disk = said(
        "An error occurred while calling o65.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage 3.0 (TID 3) "
        "(localhost executor driver): org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while "
        "writing rows.\n\tat org.apache.spark.X(Y.scala:1)\nCaused by: java.io.IOException: No space left on "
        "device\n\tat java.base/a.b(C.java:1)\n"
    )
    assert type(disk) is SparkFailed
    assert str(disk).startswith("no space is left on the disk")
    assert "No space left on device" in str(disk)
    assert "\tat" not in str(disk)
    assert "stage 3.0" not in str(disk)
    assert "ran out of memory" in str(said("java.lang.OutOfMemoryError: Java heap space"))
    assert isinstance(said("Answer from Java side is empty"), SessionLost)
    assert isinstance(said("[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid"), SessionLost)
    assert "cancelled" in str(said("[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job tag"))
    mine = ValueError("my own")
    assert explain(mine) is mine


# Code on its way to another machine


def test_code_is_packed_by_its_content_and_installed_code_is_not(tmp_path: Path) -> None:
    root = tmp_path / "shop"
    for name in ("jobs/__init__.py", "jobs/late.py", ".venv/x.py", "env/lib/y.py", "data.csv", "build/z.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}\n")
    (root / "env" / "pyvenv.cfg").touch()
    first = shipping.pack(root, tmp_path)
    assert zipfile.ZipFile(first).namelist() == ["jobs/__init__.py", "jobs/late.py"]
    assert shipping.pack(root, tmp_path) == first
    (root / "jobs/late.py").write_text("# changed\n")
    assert shipping.pack(root, tmp_path) != first
    assert shipping.import_root(pytest.fixture) is None
    assert shipping.import_root(spark_operators.late) == Path(spark_operators.__file__).parent


def test_code_is_sent_once_to_a_session_and_found_there(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "elsewhere_jobs.py").write_text("def double(value):\n    return 2 * value\n")
    sys.path.insert(0, str(tmp_path))
    try:
        double = OwnCode().load("elsewhere_jobs:double")
    finally:
        sys.path.remove(str(tmp_path))
    shipper = shipping.Shipper()
    for _ in range(2):
        shipper.ship(spark, OwnCode(), "elsewhere_jobs:double")
    # The function goes by its name: a Python worker must import it.
    made = spark.range(3).select(udf(double, "long")("id").alias("twice"))
    assert [row.twice for row in made.collect()] == [0, 2, 4]
    shipper.close()


def test_sessions_that_end_with_their_attempt_are_not_remembered() -> None:
    class Remote:
        def __init__(self, number: int) -> None:
            self.session_id, self.got = f"session-{number}", 0

        def addArtifacts(self, *paths: str, pyfile: bool) -> None:  # noqa: N802 - as Spark calls it.
            self.got += len(paths)

    shipper, sessions = shipping.Shipper(), [Remote(number) for number in range(3)]
    for each in sessions:
        shipper.ship(cast("SparkSession", each), OwnCode(), "spark_operators:late")
    assert [each.got for each in sessions] == [1, 1, 1]
    assert not shipper._shipped
    shipper.close()
