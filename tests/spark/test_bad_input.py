"""Bad input: what is wrong is said on the task in Spark's own words, and what was there before stays.

A pipeline that has run well once is given everything that can go wrong at the same time, with one worker. What is
retried and what is not, ``BROKEN`` says. Of each kind one is always tried; the others are long: each of their words is
looked for by quicker tests of the part that says them.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import pytest_asyncio

from qo.api.contract.task import Piece
from qo.config.location import local_path
from qo.core.pipeline.plan import dataset_id
from qo.errors import Refused
from qo.spark.io.appending import uris_of
from support.spark.sites import WITHIN_S, Flow, Plant, feed, job, pipeline, planted, rows_of
from support.stores.queues import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

DAG, DAY = "shop", "2024-03-01"
ATTEMPTS = 2
DISK_KB = 256
COLUMNS = [{"name": "id", "type": "long"}, {"name": "amount", "type": "int"}]
GOOD_CSV = "id,amount\n1,10\n2,20\n"


@dataclass(frozen=True)
class Case:
    """What a job meets in its second run, and how the task ends."""

    says: Sequence[str]
    retried: bool = False
    long: bool = False


BROKEN = {
    # The data
    "missing_column": Case(
        ["2024-03-01.csv has no column 'amount'", "columns that the job does not declare: 'price'"], long=True
    ),
    "missing_column_in_parquet": Case(["has no column 'amount'"], long=True),
    "wrong_type": Case(["rows do not fit the columns", "1 row, in column 'amount' (int), such as '2,twenty'"]),
    "not_parquet": Case(
        ["not_parquet/2024-03-01.parquet cannot be read", "please check if it is corrupt"], long=True
    ),
    "damaged_input": Case(["of 'kept' cannot be read", "Checksum", "make the partition again"]),
    "lost_input": Case(["of 'lost' is committed but not there"], retried=True),
    "lost_file": Case(["is gone", "lost_file"], retried=True, long=True),
    # The operator
    "raising": Case(["the other side hung up"], retried=True),
    "rows_failing": Case(["DIVIDE_BY_ZERO"], long=True),
    "function_raising": Case(["a Python function raised ValueError: no such number: 1"], retried=True, long=True),
    "nothing": Case(["nothing(spark, config) returned nothing, but nothing has one output"], long=True),
    "column_less": Case(["column 'id' is missing"], long=True),
    # The machine
    "disk_full": Case(["no space is left on the disk", "No space left on device"], retried=True),
}
FINE = ("empty", "only_a_header")
EDITED = {
    "syntax": Case(["PARSE_SYNTAX_ERROR"]),
    "column": Case(["UNRESOLVED_COLUMN", "nope"]),
    "module": Case(["there is no module 'no_such_module'"]),
    "function": Case(["spark_site_operators", "no_such_function"]),
}


@cache
def has_small_disks() -> bool:
    """Whether a worker can be given a disk of its own, which is gone with it."""
    if shutil.which("unshare") is None:
        return False
    trial = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
    asked = subprocess.run(trial, capture_output=True, check=False)
    return asked.returncode == 0


# The pipeline

STANDING = {"kept": "damaged_input", "lost": "lost_input"}  # Made once, by the job that reads them.
CSV = ("missing_column", "wrong_type", "lost_file", "empty", "only_a_header")
PARQUET = ("missing_column_in_parquet", "not_parquet")
CALLED = ("raising", "rows_failing", "function_raising", "nothing", "column_less")


def source(landing: Path, tried: Collection[str], *, edited: bool = False) -> str:
    """With a job for each that is tried, and those that are edited."""

    def ingest(name: str, format_: str) -> dict[str, Any]:
        path = f"file:{landing}/{name}/{{partition_key}}.{format_}"
        options = {"options": {"header": True}} if format_ == "csv" else {}
        return job(name, "ingest", config={"format": format_, "path": path, "columns": COLUMNS, **options})

    def calls(name: str, function: str) -> dict[str, Any]:
        return job(name, f"spark_site_operators:{function}", config={"broken": str(landing / "broken")})

    def reads(of: str, name: str) -> dict[str, Any]:
        beside = [{"from": {"job": "feed"}}, {"from": {"job": of}, "trigger": False}]
        return job(name, "sql", inputs=beside, config={"query": f"SELECT * FROM {of}"})

    broken = [
        *(ingest(name, "csv") for name in CSV),
        *(ingest(name, "parquet") for name in PARQUET),
        *(calls(name, name) for name in CALLED),
        *(reads(*both) for both in STANDING.items()),
        calls("disk_full", "large"),
    ]

    jobs = [
        feed(),
        feed("once"),
        *(job(name, "spark_site_operators:three", "once") for name in standing(tried)),
        *(each for each in broken if each["name"] in tried),
        job("syntax", "sql", "base", config={"query": "SELECT id FORM base" if edited else "SELECT id FROM base"}),
        job("column", "sql", "base", config={"query": f"SELECT {'nope' if edited else 'id'} FROM base"}),
        job("module", f"{'no_such_module' if edited else 'spark_site_operators'}:three", "once"),
        job("function", f"spark_site_operators:{'no_such_function' if edited else 'three'}", "once"),
    ]
    return pipeline(DAG, jobs, max_attempts=ATTEMPTS)


def standing(tried: Collection[str]) -> list[str]:
    return ["base", *(name for name, reader in STANDING.items() if reader in tried)]


def write_files(landing: Path, *, good: bool) -> None:
    for name in (*CSV, *PARQUET):
        (landing / name).mkdir(parents=True, exist_ok=True)
    bad = {
        "missing_column": "id,price\n1,10\n",
        "wrong_type": "id,amount\n1,10\n2,twenty\n",
        "lost_file": None,
        "empty": "",
        "only_a_header": "id,amount\n",
    }
    for name in CSV:
        text = GOOD_CSV if good else bad[name]
        path = landing / name / f"{DAY}.csv"
        if text is None:
            path.unlink()
        else:
            path.write_text(text)
    whole = pa.table({"id": pa.array([1, 2], pa.int64()), "amount": pa.array([10, 20], pa.int32())})
    parquet.write_table(whole if good else whole.drop(["amount"]), landing / PARQUET[0] / f"{DAY}.parquet")
    if good:
        parquet.write_table(whole, landing / PARQUET[1] / f"{DAY}.parquet")
    else:
        (landing / PARQUET[1] / f"{DAY}.parquet").write_bytes(b"PAR1 is not all there is to it" * 10)
        (landing / "broken").touch()


@dataclass(frozen=True)
class Place:
    """A pipeline that ran well, and then was given what is bad."""

    flow: Flow
    tried: Collection[str]
    before: Mapping[str, list[Piece]]
    rows: Mapping[str, list[Any]]

    def second(self, name: str) -> Mapping[str, Any]:
        _, task = self.flow.tasks(name)
        return task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    tried = chosen(request)
    async with planted(tmp_path_factory.mktemp("bad") / "site") as plant:
        flow = Flow(plant.site, DAG)
        write_files(flow.landing, good=True)
        await plant.workers("w1", wrapper=small_disk(plant, "disk_full"))
        await flow.deploy(source(flow.landing, tried))
        await flow.emit(DAY, source="once")
        await flow.completed({name: 1 for name in (*standing(tried), *EDITED)})
        await flow.emit(DAY)
        await flow.completed({name: 1 for name in tried})
        before = {name: flow.pieces(name) for name in (*tried, *EDITED)}
        rows = {name: rows_of(pieces) for name, pieces in before.items() if name != "disk_full"}
        write_files(flow.landing, good=False)
        damage(tried, flow)
        await flow.emit(DAY, run="2")
        await ended(flow, dict.fromkeys(tried, 2))
        yield Place(flow, tried, before, rows)


def chosen(request: pytest.FixtureRequest) -> list[str]:
    """The cases that are to be looked at in this run; nothing else has to happen."""
    here = [item for item in request.session.items if item.path == request.path]
    names = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    return sorted(names - (set() if has_small_disks() else {"disk_full"}))


def small_disk(plant: Plant, name: str) -> tuple[str, ...]:
    """A worker whose output of this job lies on a disk that is soon full. The disk is gone with the worker."""
    if not has_small_disks():
        return ()
    directory = plant.site.data / dataset_id(DAG, name, 0)
    directory.mkdir(parents=True)
    mounted = f'mount -t tmpfs -o size={DISK_KB}k tmpfs "$0" && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", mounted, str(directory))


def damage(tried: Collection[str], flow: Flow) -> None:
    kept, lost = ([] if reader not in tried else uris_of(flow.pieces(name)) for name, reader in STANDING.items())
    for uri in kept:
        local_path(uri).write_bytes(b"not what it was" * 100)
    for uri in lost:
        local_path(uri).unlink()


async def ended(flow: Flow, wanted: Mapping[str, int]) -> None:
    """There are as many tasks of these jobs, and all have come to an end, good or bad."""

    async def all_ended() -> bool:
        await asyncio.to_thread(flow.site.hasten)
        rows = await asyncio.to_thread(flow.tasks)
        over = [row["job"] for row in rows if row["status"] in ("completed", "failed")]
        return all(over.count(name) == number for name, number in wanted.items())

    await until(all_ended, within_s=WITHIN_S, every_s=0.2)


# What is promised


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * case.long) for name, case in BROKEN.items()]
)
async def test_what_cannot_be_made_says_why_and_changes_nothing(place: Place, name: str) -> None:
    if name == "disk_full" and not has_small_disks():
        pytest.skip("no file system can be mounted here, not even in a name space of one's own")
    case, task = BROKEN[name], place.second(name)
    assert_failed(task, case)
    assert place.flow.pieces(name) == place.before[name]
    if name in place.rows:
        assert place.flow.table(name) == place.rows[name]


def assert_failed(task: Mapping[str, Any], case: Case) -> None:
    assert (task["status"], task["attempt"]) == ("failed", ATTEMPTS if case.retried else 1), task["last_error"]
    for words in case.says:
        assert words in task["last_error"]
    assert "\tat " not in task["last_error"]  # Spark's words, and not the pages of Java below them.
    assert len(task["last_error"]) < 2_000


@pytest.mark.parametrize("name", [FINE[0], pytest.param(FINE[1], marks=pytest.mark.long)])
async def test_a_partition_without_rows_is_a_partition(place: Place, name: str) -> None:
    """It replaces what was there, and who reads it finds the columns."""
    assert place.second(name)["status"] == "completed"
    assert place.rows[name] == [(1, 10), (2, 20)]
    assert place.flow.table(name) == []
    answer = await place.flow.site.client.get(f"/v1/datasets/{DAG}.{name}/pieces")
    assert [each["name"] for each in answer["columns"]] == ["id", "amount"]
    assert [(each["partition_key"], each["rows"]) for each in answer["pieces"]] == [(DAY, 0)]


async def test_a_version_that_cannot_run_never_takes_over(place: Place) -> None:
    flow, client = place.flow, place.flow.site.client
    number = (await flow.deploy(source(flow.landing, place.tried, edited=True)))["version"]
    await ended(flow, dict.fromkeys(EDITED, 2))
    for name, case in EDITED.items():
        assert_failed(place.second(name), case)
        assert flow.table(name) == [(0,), (1,), (2,)]
    for move in (
        client.post(f"/v1/dags/{DAG}/versions/{number}/ready"),
        client.put(f"/v1/dags/{DAG}/active", {"version": number}),
    ):
        with pytest.raises(Refused):
            await move
    assert (await client.get(f"/v1/dags/{DAG}"))["version"] == number - 1
