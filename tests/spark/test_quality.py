"""Expectations on Spark: what is written is looked at while it is written, and what is wrong is said in few words."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from qo.agent.operator_run import Run
from qo.api.contract.task import CheckBody, StandingAnswer, Work, WorkOutput
from qo.core.pipeline.expectation import parse_expectations
from qo.errors import UsageError
from qo.spark.io import writing
from qo.spark.io.native import LocalFiles
from qo.spark.quality import quality
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken

pytestmark = pytest.mark.spark

FILES = LocalFiles()
SCHEMA = "flight long, carrier string, delay double, day date, at timestamp, price decimal(8,2), `odd.name` string"


@pytest.fixture
def flights(spark: SparkSession) -> DataFrame:
    at = datetime(2013, 1, 1, 12, tzinfo=UTC)
    rows = [
        (1, "UA", 2.0, date(2013, 1, 1), at, Decimal("10.50"), "x"),
        (2, "UA", -200.0, date(2013, 1, 2), at, Decimal("20.00"), "x"),
        (2, "DL", 4000.0, date(2013, 1, 3), at, None, "y"),
        (3, None, None, None, None, Decimal("0.01"), None),
        (None, "XX", 5.0, date(2013, 1, 1), at, Decimal("5.00"), "x"),
    ]
    return spark.createDataFrame(rows, SCHEMA)


def run_in(root: Path, **fields: Any) -> Run:
    made = WorkOutput(index=0, dataset_id="d", generation_id="g", prefix=f"file:{root}/d/g/t/1/")
    about: dict[str, Any] = {
        "dag": "p",
        "job": "j",
        "runtime": "spark",
        "operator": "sql",
        "update_strategy": "replace",
    }
    about |= {"partition_key": "a", **fields}
    work = Work(task_id="t", attempt=1, version=1, outputs=[made], **about)

    def unasked(*_: Any) -> Any:
        raise AssertionError

    return Run(
        work,
        BlockingFiles(),
        cancel=CancelToken(),
        progress=unasked,
        emit=unasked,
        wait=unasked,
        more=unasked,
        standing=lambda output, after, revision: StandingAnswer(pieces=[]),
    )


def checked(
    spark: SparkSession, frame: DataFrame, root: Path, *said: dict[str, Any], **inputs: DataFrame
) -> list[CheckBody]:
    """As a task does: measure, write, settle."""
    expectations, run = parse_expectations(said), run_in(root)
    measures = quality.measures(expectations, frame.schema, frame)
    written = writing.write(spark, frame, run.output(), FILES, measures, run.work)
    return quality.check(spark, run, expectations, {0: written}, inputs, FILES)


def test_each_expectation_says_what_was_found_and_what_should_have_been(
    spark: SparkSession, flights: DataFrame, tmp_path: Path
) -> None:
    carriers = spark.createDataFrame([("UA", 1), ("DL", 2)], "code string, n int")
    cases: list[tuple[dict[str, Any], bool, Any]] = [
        (
            {"not_null": ["carrier", "flight", "odd.name"]},
            False,
            {"nulls": {"carrier": 1, "flight": 1, "odd.name": 1}},
        ),
        ({"unique": ["flight", "carrier"]}, True, {"duplicates": 0}),
        ({"unique": ["Flight"]}, False, {"duplicates": 1, "sample": [2]}),
        (
            {"range": {"column": "delay", "min": -120, "max": 3000}},
            False,
            {"outside": 2, "sample": [-200.0, 4000.0]},
        ),
        ({"range": {"column": "day", "min": "2013-01-01", "max": "2013-01-03"}}, True, {"outside": 0}),
        (
            {"range": {"column": "at", "max": "2013-01-01T11:59:59"}},
            False,
            {"outside": 4, "sample": ["2013-01-01 12:00:00"]},
        ),
        ({"range": {"column": "price", "min": 0.01}}, True, {"outside": 0}),
        ({"range": {"column": "carrier", "min": "A"}}, True, {"outside": 0}),
        ({"accepted": {"column": "carrier", "values": ["UA", "DL"]}}, False, {"others": 1, "sample": ["XX"]}),
        ({"accepted": {"column": "odd.name", "values": ["x", "y"]}}, True, {"others": 0}),
        ({"rows": {"min": 1, "max": 4}}, False, {"rows": 5}),
        ({"rows": {"min": 5}}, True, {"rows": 5}),
        (
            {"references": {"columns": ["carrier"], "input": "carriers", "input_columns": ["code"]}},
            False,
            {"missing": 1, "sample": ["XX"]},
        ),
        ({"sql": "delay > -500 and carrier like '__'"}, True, {"rows": 0}),
    ]
    found = checked(spark, flights, tmp_path, *(said for said, _, _ in cases), carriers=carriers)
    for (said, passed, observed), check in zip(cases, found, strict=True):
        if "sample" in (check.observed or {}):
            check.observed["sample"].sort()
        assert (check.passed, check.observed) == (passed, observed), said
        assert check.kind in said
        assert check.expected


def test_a_condition_in_sql_shows_rows_that_break_it(
    spark: SparkSession, flights: DataFrame, tmp_path: Path
) -> None:
    said = {"sql": "delay is null or delay >= 0 -- in minutes", "name": "no early birds", "severity": "warn"}
    [check] = checked(spark, flights, tmp_path, said)
    assert (check.name, check.severity, check.passed) == ("no early birds", "warn", False)
    assert check.observed["rows"] == 1
    [row] = check.observed["sample"]
    assert (row["flight"], row["delay"], row["price"]) == (2, -200.0, "20.00")


def test_how_fresh_it_is_is_counted_from_when_the_task_runs(spark: SparkSession, tmp_path: Path) -> None:
    ages = spark.range(2).select(
        (F.current_timestamp() - F.make_dt_interval(hours=F.col("id").cast("int") + 1)).alias("at"),
        F.current_date().alias("day"),
        F.lit(None).cast("timestamp").alias("never"),
    )
    said = [
        {"freshness": {"column": "at", "within": "2h"}},
        {"freshness": {"column": "at", "within": "59m"}},
        {"freshness": {"column": "day", "within": "2d"}},
        {"freshness": {"column": "never", "within": "1s"}},
    ]
    found = checked(spark, ages, tmp_path, *said)
    assert [each.passed for each in found] == [True, False, True, True]
    assert 3_600 <= found[1].observed["age_s"] < 3_700
    assert found[3].observed == {"latest": None}


def test_an_output_without_rows_meets_all_but_a_number_of_rows(
    spark: SparkSession, flights: DataFrame, tmp_path: Path
) -> None:
    said = [
        {"not_null": ["flight"]},
        {"unique": ["flight"]},
        {"range": {"column": "delay", "min": 0}},
        {"freshness": {"column": "day", "within": "1s"}},
        {"references": {"columns": ["carrier"], "input": "carriers"}},
        {"sql": "false"},
        {"rows": {"min": 1}},
    ]
    found = checked(spark, flights.limit(0), tmp_path, *said, carriers=flights)
    assert [each.passed for each in found] == [True] * 6 + [False]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"not_null": ["carier"]}, "has no column 'carier': it has flight, carrier"),
        ({"unique": ["nobody"]}, "'unique nobody' cannot be checked: the output has no column 'nobody'"),
        ({"references": {"columns": ["nobody"], "input": "carriers"}}, "the output has no column 'nobody'"),
        ({"range": {"column": "carrier", "min": 1}}, "'carrier' is string and cannot be compared with 1"),
        ({"range": {"column": "delay", "min": "a"}}, "'delay' is double and cannot be compared with 'a'"),
        ({"range": {"column": "day", "max": "soon"}}, "'day' is date and cannot be compared with 'soon'"),
        ({"accepted": {"column": "carrier", "values": [True]}}, "cannot be compared with True"),
        ({"freshness": {"column": "carrier", "within": "1d"}}, "neither a date nor a timestamp"),
        ({"sql": "delay >"}, "'sql delay >' cannot be checked: .*PARSE_SYNTAX_ERROR"),
        ({"sql": "missing > 1"}, "UNRESOLVED_COLUMN"),
        ({"sql": "carrier"}, "it is string, and a condition is true or false"),
        ({"sql": "sum(delay) > 1"}, "cannot be checked"),
    ],
)
def test_what_cannot_be_looked_at_is_said_before_anything_is_written(
    flights: DataFrame, said: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=why) as error:
        quality.measures(parse_expectations([said]), flights.schema, flights)
    assert len(str(error.value)) < 1_000
    assert "JVM stacktrace" not in str(error.value)


@pytest.mark.parametrize(
    ("other", "why"),
    [("code string", "the input 'carriers' has no column 'carrier'"), ("carrier int", "they are string and int")],
)
def test_what_is_referred_to_must_be_there_and_comparable(
    spark: SparkSession, flights: DataFrame, tmp_path: Path, other: str, why: str
) -> None:
    said = {"references": {"columns": ["carrier"], "input": "carriers"}}
    with pytest.raises(UsageError, match=why):
        checked(spark, flights, tmp_path, said, carriers=spark.createDataFrame([], other))


def test_samples_are_few_and_small(spark: SparkSession, tmp_path: Path) -> None:
    long = spark.range(100).select(F.repeat(F.col("id").cast("string"), 1_000).alias("text"))
    [check] = checked(spark, long, tmp_path, {"accepted": {"column": "text", "values": ["a"]}})
    assert check.observed["others"] == 100
    assert len(check.observed["sample"]) == quality.SAMPLE_MAX
    assert all(len(each) <= quality.SAMPLE_CHARS_MAX + 1 for each in check.observed["sample"])


def test_rows_of_another_day_than_their_partition_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    berlin_midnight = datetime(2026, 3, 28, 23, tzinfo=UTC)
    rows = [
        (1, date(2026, 3, 29), berlin_midnight, datetime(2026, 3, 29, 0)),  # noqa: DTZ001 - without a zone.
        (2, date(2026, 3, 28), datetime(2026, 3, 28, 22, 59, tzinfo=UTC), datetime(2026, 3, 30, 0)),  # noqa: DTZ001
        (3, None, None, None),
        (4, date(2026, 3, 29), datetime(2026, 3, 29, 22, tzinfo=UTC), datetime(2026, 3, 29, 23, 59)),  # noqa: DTZ001
    ]
    frame = spark.createDataFrame(rows, "id int, day date, at timestamp, wall timestamp_ntz")
    expectations = parse_expectations([{"in_partition": name} for name in ("day", "at", "wall")])
    berlin = {"kind": "day", "timezone": "Europe/Berlin"}
    run = run_in(tmp_path, partitions=berlin, partition_key="2026-03-29")
    measures = quality.measures(expectations, frame.schema, frame, quality.span_of(run.work))
    output = writing.write(spark, frame, run.output(), FILES, measures, run.work)
    checks = quality.check(spark, run, expectations, {0: output}, {}, FILES)
    assert [(each.passed, each.observed["elsewhere"]) for each in checks] == [(False, 1), (False, 2), (False, 1)]
    assert checks[0].expected == {"column": "day", "partition": "2026-03-29"}
    assert checks[0].observed["sample"] == ["2026-03-28"]
    with pytest.raises(UsageError, match="not a date or timestamp as its partition is"):
        quality.measures(
            parse_expectations([{"in_partition": "id"}]), frame.schema, frame, quality.span_of(run.work)
        )
