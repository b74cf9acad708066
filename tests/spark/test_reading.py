"""Inputs: exactly the committed files, whatever else lies there, and clear words for what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.agent.run_input import RunInput
from qo.api.contract.task import ColumnBody, InputMode, Piece, PiecesAnswer, WorkInput
from qo.errors import QoError, UsageError
from qo.spark.io import input_frames
from qo.spark.io.input_frames import FileMissing
from qo.spark.io.native import LocalFiles
from qo.store.blocking_files import BlockingFiles
from qo.worker.api.signals import Reschedule

pytestmark = pytest.mark.spark

FILES = LocalFiles()
ORDERS = [ColumnBody(name="id", type="long"), ColumnBody(name="shop", type="string")]


def given(*pieces: Piece, pages: list[PiecesAnswer] | None = None, **about: Any) -> RunInput:
    waiting = list(pages or ())
    told = {"columns": ORDERS, "more": bool(waiting), "after": "p/1/x" if waiting else None} | about
    work = WorkInput(
        position=0,
        name="orders",
        dataset_id="orders-id",
        generation_id="g",
        pieces=list(pieces),
        **{"mode": InputMode.WHOLE, **told},
    )
    return RunInput(work, BlockingFiles(), lambda given, after: waiting.pop(0))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a dataset lies. Its name means something to Spark, if nobody takes care."""
    made = tmp_path / "[a] {b} *?" / "day=x %20" / "orders-id"
    made.mkdir(parents=True)
    return made


def piece(place: Path, *names: str) -> Piece:
    return Piece(revision=1, location=f"file:{place}/", files=list(names))


def parquet(spark: SparkSession, place: Path, name: str, *ids: int) -> Piece:
    """One file with these ids."""
    made = place / f"{name}-made"
    rows = spark.createDataFrame([(each, f"s{each}") for each in ids], "id long, shop string")
    rows.coalesce(1).write.parquet(f"file:{made}")
    next(made.glob("part-*")).rename(place / f"{name}.parquet")
    return piece(place, f"{name}.parquet")


def ids(spark: SparkSession, chosen: RunInput) -> list[int]:
    return sorted(row.id for row in input_frames.read_input(spark, chosen, FILES).collect())


def test_exactly_the_committed_files_are_read_over_all_pages(spark: SparkSession, place: Path) -> None:
    first, second = parquet(spark, place, "a", 1, 2), parquet(spark, place, "b", 3)
    parquet(spark, place, "of-a-lost-attempt", 99)
    pages = [PiecesAnswer(pieces=[second], after="p/2/y"), PiecesAnswer(pieces=[piece(place)], after=None)]
    assert ids(spark, given(first, pages=pages)) == [1, 2, 3]
    assert input_frames.read_input(spark, given(first), FILES).columns == ["id", "shop"]  # And none from the path.


def test_where_takes_a_value_or_one_of_several_and_null_only_for_null(spark: SparkSession, place: Path) -> None:
    (place / "a.jsonl").write_text('{"id": 1, "shop": "a"}\n{"id": 2}\n{"id": 3, "shop": "b"}\n')
    rows = piece(place, "a.jsonl")
    for where, found in (
        ({"shop": "a"}, [1]),
        ({"shop": ["a", "b"]}, [1, 3]),
        ({"SHOP": ["a", None]}, [1, 2]),
        ({"shop": None, "id": [2, 3]}, [2]),
        ({"shop": []}, []),
        ({"id": "3"}, [3]),
    ):
        assert ids(spark, given(rows, where=where)) == found, where
    with pytest.raises(UsageError, match="where: 'orders' has no column 'colour': it has id, shop"):
        ids(spark, given(rows, where={"colour": "red"}))
    with pytest.raises(UsageError, match="must be a scalar or a list of scalars"):
        ids(spark, given(rows, where={"shop": {"from": "a"}}))


def test_files_of_plain_operators_are_read_too(spark: SparkSession, place: Path) -> None:
    (place / "a.jsonl").write_text('{"id": 1, "shop": "a", "more": true}\n{"id": 2}\n')
    (place / "a.csv").write_text("shop,id\na,3\n,4\n")
    assert ids(spark, given(piece(place, "a.jsonl"))) == [1, 2]
    assert ids(spark, given(piece(place, "a.csv"), columns=[ORDERS[1], ORDERS[0]])) == [3, 4]
    unknown = input_frames.read_input(spark, given(piece(place, "a.jsonl"), columns=None), FILES)
    assert set(unknown.columns) == {"id", "shop", "more"}
    with pytest.raises(UsageError, match=r"'orders' cannot be read: files of several formats .* json .* csv"):
        ids(spark, given(piece(place, "a.jsonl", "a.csv")))
    with pytest.raises(UsageError, match="its name ends with none of"):
        ids(spark, given(piece(place, "a.xlsx")))


def test_an_input_without_files_is_empty_and_one_that_never_had_any_is_waited_for(spark: SparkSession) -> None:
    nested = ColumnBody(name="at", type={"type": "array", "elementType": "timestamp", "containsNull": True})
    empty = input_frames.read_input(spark, given(columns=[*ORDERS, nested]), FILES)
    assert (empty.collect(), empty.dtypes[2]) == ([], ("at", "array<timestamp>"))
    for waited_for in ({}, {"mode": InputMode.PARTITION, "revision": None}):
        with pytest.raises(Reschedule):
            input_frames.read_input(spark, given(columns=None, **waited_for), FILES)


def test_an_input_that_started_the_task_and_is_empty_is_not_waited_for(spark: SparkSession, place: Path) -> None:
    """Another attempt would find the same: a partition without files, or the cursor of a source that has no data."""
    partition = given(piece(place), columns=None, mode=InputMode.PARTITION, revision=4)
    for empty in (partition, given(columns=None, mode=InputMode.CURSOR, revision=4, cursor_upto=7)):
        with pytest.raises(UsageError, match="'orders' is there without files, so its columns are not known"):
            input_frames.read_input(spark, empty, FILES)


def failure(spark: SparkSession, chosen: RunInput) -> QoError:
    """What an operator that reads it ends with."""
    with pytest.raises(Exception, match="orders-id") as raised:
        input_frames.read_input(spark, chosen, FILES).write.format("noop").mode("overwrite").save()
    if isinstance(raised.value, QoError):
        return raised.value  # What is not there at all is found out at once.
    found = input_frames.input_error(raised.value, {"orders-id": "orders"})
    assert found is not None, raised.value
    return found


def test_a_file_that_is_gone_or_corrupt_is_named_with_its_dataset(spark: SparkSession, place: Path) -> None:
    good = parquet(spark, place, "good", 1)
    (place / "bad.parquet").write_bytes(b"this is not a table" * 10)
    (place / "bad.jsonl").write_text('{"id": 1}\n{"id": \n')
    gone = failure(spark, given(good, piece(place, "gone.parquet")))
    assert isinstance(gone, FileMissing)  # It is tried again.
    assert f"{place}/gone.parquet of 'orders' is committed but not there" in str(gone)
    bad = failure(spark, given(good, piece(place, "bad.parquet")))
    assert isinstance(bad, UsageError)
    assert "bad.parquet of 'orders' cannot be read" in str(bad)
    assert "is not a Parquet file" in str(bad)
    assert isinstance(failure(spark, given(piece(place, "bad.jsonl"))), UsageError)
    recorded = given(good, columns=[ColumnBody(name="shop", type="long")])
    assert "mismatch" in str(failure(spark, recorded))
    assert input_frames.input_error(ValueError("something else"), {}) is None


def test_a_file_that_vanishes_while_it_is_read_is_named(spark: SparkSession, place: Path) -> None:
    chosen = given(parquet(spark, place, "a", 1))
    frame = input_frames.read_input(spark, chosen, FILES)
    (place / "a.parquet").unlink()
    with pytest.raises(Exception, match="FILE_NOT_EXIST") as raised:
        frame.collect()
    assert isinstance(input_frames.input_error(raised.value, {"orders-id": "orders"}), FileMissing)
