"""Rows by key, through the dispatcher's own functions: whatever arrives in whatever order, the same rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.dispatcher.commits import removals
from qo.dispatcher.state import datasets
from qo.errors import UsageError
from qo.spark.operators import latest, standing_footers
from qo.testing.spark import run_operator
from support.dispatcher.pipelines import dag, deployed, edited, job, loaded, source, staged
from support.dispatcher.states import Clock, opened
from support.spark.keyed_shop import (
    BY_KEY,
    CHANGE,
    COLUMNS,
    SHOP,
    Row,
    change_log,
    check,
    in_order,
)
from support.spark.keyed_site import KeyedSite, site

parquet: Any = import_module("pyarrow.parquet")

pytestmark = pytest.mark.spark

Open = Callable[..., KeyedSite]


@pytest.fixture
def open_site(spark: SparkSession, tmp_path: Path) -> Iterator[Open]:
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        yield lambda wanted, columns=COLUMNS: site(
            state, f"file:{tmp_path / 'data'}", deployed(state, wanted), spark, columns
        )


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_rows_by_key_are_what_a_plain_model_makes_of_all_rows(
    open_site: Open, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, choose = open_site(SHOP), random.Random(seed)
    if seed % 2 == 0:  # As with very many keys at once.
        monkeypatch.setattr(latest, "BROADCAST_KEYS_MAX", 0)
    landed: dict[str, list[dict[str, Any]]] = {}

    def land(day: str, rows: list[dict[str, Any]]) -> None:
        landed[day] = rows
        shop.land("log", day, rows)

    land("day-0", change_log(choose, 12, 60))
    land("day-2", change_log(choose, 12, 30))
    shop.settle()
    check(shop, landed)
    land("day-1", change_log(choose, 12, 30) + choose.sample(landed["day-0"], 5))
    shop.settle()
    check(shop, landed)
    # What was said before changes nothing, and no bucket is written again.
    revisions = [each.revision for each in shop.committed("customers")]
    land("day-3", choose.sample(landed["day-1"], 20))
    again = shop.settle()
    if seed % 2:
        assert [(each["job"], each["outputs"]) for each in again if each["job"] != "versions"] == [
            ("customers", {})
        ]
        assert [each.revision for each in shop.committed("customers")] == revisions
    # What is replaced or removed counts no more.
    land("day-1", change_log(choose, 12, 10))
    with shop.state.write() as tx:
        removals.remove(tx, datasets.resolve(tx, "shop.log"), ["day-2"], by="ann", key="1")
    del landed["day-2"]
    shop.settle()
    check(shop, landed)
    # A rebuild ends where the merges have ended.
    wanted = edited(SHOP, "customers", config={**BY_KEY, "buckets": 5})
    staged(shop.state, edited(wanted, "versions", config={**BY_KEY, "track": ["city"], "buckets": 1}))
    shop.topology = loaded(shop.state)
    shop.settle()
    check(shop, landed, version=2)


def test_a_task_says_what_it_has_written_and_leaves_other_buckets_alone(open_site: Open) -> None:
    plain = {"keys": ["id"], "sequence_by": "at", "deletes": "op = 'D'", "buckets": 8, "keep_deletes": "10"}
    columns = (("id", "string"), ("at", "long"), ("op", "string"))
    wanted = dag(
        "shop",
        source("log", drift="add"),
        job("customers", reads="log", operator="latest", outputs=2, drift="add", config=plain, **CHANGE),
    )
    shop = open_site(wanted, columns)
    shop.land("log", "1", [{"id": f"k{n}", "at": n, "op": "U"} for n in range(40)])
    (first,) = shop.settle()
    assert first["rows_in"] == 40
    before = {each.partition_key: each.revision for each in shop.committed("customers")}
    assert first["buckets_written"] == len(before)
    assert first["largest_bucket"]["rows"] == max(each.rows or 0 for each in shop.committed("customers"))
    shop.land("log", "2", [{"id": "k7", "at": 100, "op": "D"}, {"id": "k7", "at": 99, "op": "U"}])
    (second,) = shop.settle()
    after = {each.partition_key: each.revision for each in shop.committed("customers")}
    assert (second["keys_changed"], second["buckets_touched"], second["buckets_written"]) == (1, 1, 1)
    assert sum(before[key] != after[key] for key in before) == 1
    assert [(row["id"], row["at"]) for row in shop.rows("customers", 1)] == [("k7", 100)]
    # Older than the deletion: it stays deleted. A column that is new is null in the rows before.
    shop.columns = (*columns, ("note", "string"))
    shop.land(
        "log", "3", [{"id": "k7", "at": 95, "op": "U", "note": "old"}, {"id": "k8", "at": 96, "note": "new"}]
    )
    shop.settle()
    assert sorted(row["id"] for row in shop.rows("customers") if row.get("note")) == ["k8"]
    # Once the bucket of the deletion has gone on by more than 10, it is forgotten; what is as old is left out.
    shop.land("log", "4", [{"id": "k7", "at": 200, "op": "D"}])
    shop.settle()
    assert [(row["id"], row["at"]) for row in shop.rows("customers", 1)] == [("k7", 200)]
    other = next(key for key in (f"n{n}" for n in range(500)) if bucket_of(shop, key) == bucket_of(shop, "k7"))
    shop.land("log", "5", [{"id": other, "at": 300, "op": "U"}])
    shop.settle()
    assert shop.rows("customers", 1) == []
    shop.land("log", "6", [{"id": "k7", "at": 150, "op": "U"}])
    (late,) = shop.settle()
    assert late["rows_too_late"] == 1
    assert not [row for row in shop.rows("customers") if row["id"] == "k7"]


def test_a_merge_tries_no_dictionary_where_the_files_before_have_none(
    open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"keys": ["id"], "sequence_by": "at", "buckets": 2}
    wanted = dag("shop", source("log"), job("customers", reads="log", operator="latest", config=config, **CHANGE))
    shop = open_site(wanted, (("id", "string"), ("at", "long"), ("name", "string")))
    landed: dict[str, Row] = {}

    def land(at: int, name: str) -> None:
        rows = [{"id": f"k{n}", "at": at, "name": name.format(n)} for n in range(2_000 * min(at, 1), 4_000)]
        landed.update({row["id"]: row for row in rows})
        shop.land("log", f"{at}", rows)
        shop.settle()
        assert in_order(shop.rows("customers")) == in_order(landed.values())

    monkeypatch.setattr(standing_footers, "RELEARNED_EVERY", 10**9)
    land(0, "name {}")
    assert columns_with_dictionaries(shop) == {"at"}
    land(1, "the same")
    assert columns_with_dictionaries(shop) == {"at"}
    monkeypatch.setattr(standing_footers, "RELEARNED_EVERY", 1)  # The writer finds out again.
    land(2, "the same")
    assert columns_with_dictionaries(shop) == {"at", "name"}


def columns_with_dictionaries(shop: KeyedSite) -> set[str]:
    pieces = shop.committed("customers")
    paths = [f"{piece.location}{name}".removeprefix("file:") for piece in pieces for name in piece.files]
    groups = [parquet.read_metadata(path).row_group(0) for path in paths]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    return {each.path_in_schema for each in chunks if each.has_dictionary_page}


def bucket_of(shop: KeyedSite, key: str) -> int:
    (row,) = shop.spark.sql(f"SELECT pmod(xxhash64('{key}'), 8) AS bucket").collect()
    return row["bucket"]


CUSTOMER = [{"id": 1, "at": 1, "tags": {"a": 1}, "start_at": 1, "change": "x"}]


@pytest.mark.parametrize(
    ("operator", "config", "message"),
    [
        ("latest", {"keys": ["key"], "sequence_by": "at"}, "has no column 'key': its columns are"),
        (
            "latest",
            {"keys": ["tags"], "sequence_by": "at"},
            "'tags' is map<string,bigint>, which cannot be part of a key",
        ),
        ("latest", {"keys": ["id"], "sequence_by": "tags"}, "which cannot be what rows are ordered by"),
        ("latest", {"keys": ["id"], "sequence_by": "at", "deletes": "op = 'D'"}, "'deletes' is not a condition"),
        ("latest", {"keys": ["id"], "sequence_by": "at", "deletes": "id"}, "'deletes' is bigint"),
        (
            "latest",
            {"keys": ["id"], "sequence_by": "at", "deletes": "id = 2", "keep_deletes": "3d"},
            "'keep_deletes' is 3d, and 'at' is bigint: write a number for numbers",
        ),
        ("history", {"keys": ["id"], "sequence_by": "at"}, "has a column start_at, which test adds"),
        ("changes", {"keys": ["id"]}, "has a column 'change', which test adds itself"),
    ],
)
def test_a_config_that_does_not_fit_the_rows_is_refused_in_words(
    spark: SparkSession, operator: str, config: dict[str, Any], message: str
) -> None:
    outputs = 2 if "deletes" in config else 1
    with pytest.raises(UsageError) as caught:
        run_operator(operator, {"log": CUSTOMER}, config=config, outputs=outputs, spark=spark)
    assert message in str(caught.value)


def test_a_key_in_several_rows_has_no_changes(spark: SparkSession) -> None:
    rows = [{"id": 1, "city": "oslo"}, {"id": 1, "city": "rome"}, {"id": 2, "city": "rome"}]
    with pytest.raises(UsageError, match="1 keys are in several rows of the input 'log': name columns in 'keys'"):
        run_operator("changes", {"log": rows}, config={"keys": ["id"]}, spark=spark)
