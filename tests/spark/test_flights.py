"""The pipeline in examples/flights: its operators as functions, and all of it against the same done in pandas."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.testing import assertDataFrameEqual

from qo.dispatcher.state.database import open_state
from qo.dispatcher.views.pipeline_progress import version_plan
from qo.dispatcher.views.published import tables
from support.cli.command import Qo
from support.spark import session

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "flights"
# The last day is out of the ordinary by those before it: a week in the example, and less where time is short.
USUAL_DAYS = 7 if os.environ.get("PROVE") else 3
LAST = date(2013, 1, 13)
FIRST = LAST - timedelta(days=USUAL_DAYS)
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def flights() -> Iterator[ModuleType]:
    with imported("flights") as module:
        yield module


@contextlib.contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """A module of the example."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop(name, None)


# Operators


HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
RAW = "date date, dep_time int, sched_dep_time int, dep_delay int, arr_delay int, carrier string, flight int, "
RAW += "tailnum string, origin string, dest string, air_time int, distance int, time_hour timestamp"
CLEAN = (
    "day date, scheduled_hour timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
)
CLEAN += "distance int, dep_delay int, arr_delay int, air_time int, cancelled boolean, late boolean"


def departure(**changed: Any) -> dict[str, Any]:
    usual = {
        "date": date(2013, 1, 1),
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "time_hour": HOUR,
    }
    return usual | changed


def test_a_flight_that_never_left_is_cancelled_and_neither_late_nor_on_time(
    spark: SparkSession, flights: ModuleType
) -> None:
    rows = [
        departure(),
        departure(flight=2, dep_delay=16),
        departure(flight=3, dep_time=None, dep_delay=None, arr_delay=None, air_time=None, tailnum=" "),
    ]
    done: DataFrame = flights.clean(spark.createDataFrame(rows, RAW), {"late_minutes": 15})
    same = {"day": date(2013, 1, 1), "scheduled_hour": HOUR, "carrier": "UA", "origin": "EWR", "dest": "IAH"}
    same["distance"] = 1400
    went = {**same, "tailnum": "N14228", "arr_delay": 11, "air_time": 227, "cancelled": False}
    gone = {**same, "tailnum": None, "arr_delay": None, "air_time": None, "dep_delay": None}
    wanted = [
        {**went, "flight": 1545, "dep_delay": 2, "late": False},
        {**went, "flight": 2, "dep_delay": 16, "late": True},
        {**gone, "flight": 3, "cancelled": True, "late": None},
    ]
    assertDataFrameEqual(done, spark.createDataFrame(wanted, CLEAN), ignoreNullable=True)


def test_what_is_not_known_of_a_flight_stays_empty_and_loses_no_flight(
    spark: SparkSession, flights: ModuleType
) -> None:
    clean = flights.clean(
        spark.createDataFrame([departure(), departure(flight=2, tailnum=None, dest="XXX")], RAW),
        {"late_minutes": 15},
    )
    weather = spark.createDataFrame([Row(origin="EWR", time_hour=HOUR, temp=39.0)])
    planes = spark.createDataFrame(
        [Row(tailnum="N14228", built=1999, manufacturer="BOEING", model="737", seats=149)]
    )
    airports = spark.createDataFrame([Row(faa="IAH", name="George Bush", lat=29.9, lon=-95.3)])
    done = flights.enriched(clean, weather, planes, airports).select("flight", "temp", "seats", "destination")
    wanted = [Row(flight=1545, temp=39.0, seats=149, destination="George Bush")]
    wanted += [Row(flight=2, temp=39.0, seats=None, destination=None)]
    schema = "flight int, temp double, seats long, destination string"
    assertDataFrameEqual(done, spark.createDataFrame(wanted, schema))


# All of it


def landed(directory: Path) -> None:
    """The example's own files, of a few days."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        import prepare

        prepare.prepare(LAST.day, directory)
    finally:
        sys.path.remove(str(EXAMPLE))
        sys.modules.pop("prepare", None)
    for day in range(1, FIRST.day):
        (directory / "flights" / f"2013-01-{day:02}.csv").unlink()


def published(directory: Path, version: int) -> dict[str, list[str]]:
    """Of every published table the files that are committed."""
    state = open_state(f"sqlite:{directory / '.qo' / 'state.db'}")
    try:
        with state.read() as tx:
            found = tables(tx, version_plan(tx, "flights", version), sys.maxsize)
    finally:
        state.close()
    return {
        each.name: [
            f"{piece.location}{name}".removeprefix("file:") for piece in each.sample for name in piece.files
        ]
        for each in found
    }


def frame(files: list[str]) -> pd.DataFrame:
    return pa.concat_tables(map(parquet.read_table, files)).to_pandas()


def expected() -> dict[str, pd.DataFrame]:
    """The same tables, worked out from the package's own files."""
    with imported("prepare") as prepare:
        source: dict[str, Any] = {
            name: prepare.read_table(name) for name in ("flights", "weather", "planes", "airports")
        }
    all_flights = source["flights"]
    day = pd.to_datetime(all_flights[["year", "month", "day"]])
    some = all_flights.assign(day=day.dt.date)[day.dt.date.between(FIRST, LAST)]
    some = some.assign(cancelled=some["dep_time"].isna(), late=some["dep_delay"] > 15)
    weather = source["weather"].drop_duplicates(["origin", "time_hour"])
    joined = some.merge(weather[["origin", "time_hour", "temp", "precip"]], how="left", on=["origin", "time_hour"])
    joined = joined.merge(source["planes"][["tailnum", "seats"]], how="left", on="tailnum")
    named = source["airports"].rename(columns={"faa": "dest", "name": "destination"})
    joined = joined.merge(named[["dest", "destination"]], how="left", on="dest")
    grouped = joined.groupby(["day", "origin", "carrier"], as_index=False)
    daily = grouped.agg(
        flights=("flight", "size"),
        cancelled=("cancelled", "sum"),
        late=("late", "sum"),
        mean_delay=("dep_delay", "mean"),
        max_precip=("precip", "max"),
    )
    left = joined[~joined["cancelled"]]
    means = left.groupby(["origin", "day"])["dep_delay"].mean().unstack("origin").sort_index()
    before = means.shift(1).rolling(14, min_periods=USUAL_DAYS)
    z = ((means - before.mean()) / before.std()).stack()
    return {"flights": joined, "daily": daily, "alerts": z[z > 3]}


def same(ours: pd.DataFrame, theirs: pd.DataFrame, columns: list[str], keys: list[str]) -> None:
    """Row for row, in any order."""

    def plain(frame: pd.DataFrame) -> pd.DataFrame:
        shown = frame[columns].astype({name: "float64" for name in columns if name not in TEXT})
        shown = shown.astype({name: "object" for name in columns if name in TEXT}).replace({None: np.nan})
        return shown.sort_values(keys).reset_index(drop=True)

    pd.testing.assert_frame_equal(plain(ours), plain(theirs), check_dtype=False)


TEXT = {"day", "origin", "carrier", "dest", "tailnum", "destination"}


COLUMNS = ["day", "origin", "carrier", "flights", "cancelled", "late", "mean_delay", "max_precip"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Qo:
    """Where the pipeline has run to its end, from ``example``."""
    place = tmp_path_factory.mktemp("flights")
    landed(place / ".qo" / "landing")
    shutil.copytree(EXAMPLE, place / "example", ignore=shutil.ignore_patterns("__pycache__"))
    query = place / "example" / "alerts.sql"
    text = query.read_text()
    assert text.count("days >= 7") == 1
    query.write_text(text.replace("days >= 7", f"days >= {USUAL_DAYS}"))
    # The month ends with these days.
    others = [f"2013-01-{day:02}" for day in range(LAST.day + 1, 32)]
    pipeline = place / "example" / "pipeline.yaml"
    text = pipeline.read_text()
    assert text.count('start: "2013-01-01"') == 1
    pipeline.write_text(text.replace('start: "2013-01-01"', f'start: "{FIRST}", without: {json.dumps(others)}'))
    qo = Qo(place, session.ENVIRONMENT)
    ran = qo("up", "example", "--once", timeout_s=LIMIT_S)
    assert ran.code == 0, ran
    return qo


def as_in_pandas(built: Qo) -> None:
    files, theirs = published(built.cwd, 1), expected()
    ours = {name: frame(some) for name, some in files.items()}
    assert len(files["monthly_delays"]) == 1
    columns = ["day", "origin", "dest", "carrier", "flight", "tailnum", "dep_delay", "cancelled", "temp", "seats"]
    keys = ["day", "origin", "carrier", "flight", "tailnum", "dep_delay"]
    same(ours["flights"], theirs["flights"], [*columns, "destination"], keys)
    for name in ("daily_delays", "monthly_delays"):
        same(ours[name], theirs["daily"], COLUMNS, COLUMNS[:3])
    alerts = ours["delay_alerts"]
    assert len(alerts) == len(theirs["alerts"]) > 0
    for row in alerts.itertuples():
        assert row.z_score == pytest.approx(theirs["alerts"][row.day, row.origin], abs=0.051)


@pytest.mark.timeout(LIMIT_S)
def test_the_pipeline_makes_what_pandas_makes(built: Qo) -> None:
    as_in_pandas(built)


@contextlib.contextmanager
def edited(qo: Qo, carrier: str) -> Iterator[None]:
    """One line of the pipeline is another one: the months leave a carrier out."""
    pipeline = qo.cwd / "example" / "pipeline.yaml"
    before = pipeline.read_text()
    after = before.replace("SELECT * FROM daily", f"SELECT * FROM daily WHERE carrier <> '{carrier}'")
    assert after != before
    pipeline.write_text(after)
    try:
        yield
    finally:
        pipeline.write_text(before)


@contextlib.contextmanager
def running(qo: Qo) -> Iterator[Qo]:
    """``qo up`` runs; the answer is the command, for its dispatcher."""
    with qo.start("up", "--no-watch", "example") as up:
        try:
            assert up.stdout is not None
            told = next(line for line in up.stdout if line.startswith("the dispatcher is at "))
            url = told.removeprefix("the dispatcher is at ").strip()
            # What it says further must not fill the pipe.
            threading.Thread(target=up.stdout.read, daemon=True).start()
            yield Qo(qo.cwd, {**qo.environ, "QO_DISPATCHER_URL": url})
        finally:
            up.terminate()
            up.wait(60)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S)
def test_an_edit_of_one_line_shows_with_a_running_qo_up_and_a_rollback_takes_it_back(built: Qo) -> None:
    daily = expected()["daily"]
    with running(built) as qo, edited(built, "UA"):
        deployed = qo("--json", "dag", "deploy", "example/pipeline.yaml", "--activate", timeout_s=LIMIT_S)
        assert deployed.code == 0, deployed
        assert "monthly" in {each["job"] for each in deployed.document["deployed"]["diff"]["rebuilt"]}
        now = published(built.cwd, deployed.document["deployed"]["version"])
        same(frame(now["monthly_delays"]), daily[daily["carrier"] != "UA"], COLUMNS, COLUMNS[:3])
        assert now["daily_delays"] == published(built.cwd, 1)["daily_delays"]
        back = qo("--json", "dag", "rollback", "flights")
        assert (back.code, back.document["active"]) == (0, 1), back
    same(frame(published(built.cwd, 1)["monthly_delays"]), daily, COLUMNS, COLUMNS[:3])


@pytest.mark.long  # As without Spark, whose session takes its time to start twice more.
@pytest.mark.timeout(LIMIT_S)
def test_then_nothing_more_is_made_and_then_what_an_edit_is_upstream_of(built: Qo) -> None:
    as_in_pandas(built)
    before = published(built.cwd, 1)
    again = built("up", "example", "--once", timeout_s=LIMIT_S)
    assert (again.code, "nothing to do" in again.out) == (0, True), again
    with edited(built, "AA"):
        changed = built("--json", "up", "example", "--once", timeout_s=LIMIT_S)
    assert changed.code == 0, changed
    assert changed.document["activated"]["replaced"] == 1
    ran_again = {each["job"]: each["tasks"] for each in changed.document["jobs"]}
    assert ran_again == {"monthly": 1, "compacted": 1, "alerts": 1}
    now, daily = published(built.cwd, changed.document["version"]), expected()["daily"]
    same(frame(now["monthly_delays"]), daily[daily["carrier"] != "AA"], COLUMNS, COLUMNS[:3])
    assert now["daily_delays"] == before["daily_delays"]
    built.ok("dag", "rollback", "flights")  # As it was, for whoever comes next.
