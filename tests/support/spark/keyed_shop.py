"""A pipeline of rows by key, changes of its rows, and a comparison of all that it makes with a plain model."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from support.dispatcher.pipelines import dag, job, source
from support.spark import keyed_model
from support.spark.keyed_site import KeyedSite

Row = Mapping[str, Any]
COLUMNS = (
    ("shop", "long"),
    ("id", "string"),
    ("at", "long"),
    ("op", "string"),
    ("name", "string"),
    ("city", "string"),
)
KEYS = ("shop", "id")
BY_KEY: dict[str, Any] = {
    "keys": list(KEYS),
    "sequence_by": "at",
    "deletes": "op = 'D'",
    "leave_out": ["op"],
    "buckets": 3,
}
CHANGE: dict[str, Any] = {"runtime": "spark", "execution_strategy": "PerChange"}
MIRROR: dict[str, Any] = {
    "keys": list(KEYS),
    "sequence_by": "change_revision",
    "deletes": "change = 'removed'",
    "leave_out": ["change", "before"],
    "buckets": 2,
}
SHOP = dag(
    "shop",
    source("log"),
    job(
        "customers",
        reads="log",
        operator="latest",
        outputs=2,
        config=BY_KEY,
        expectations=[{"unique": list(KEYS)}, {"rows": {"min": 1}}],
        **CHANGE,
    ),
    job("versions", reads="log", operator="history", config={**BY_KEY, "track": ["city"]}, **CHANGE),
    job("feed", reads="customers", operator="changes", config={"keys": list(KEYS)}, **CHANGE),
    job("mirror", reads="feed", operator="latest", outputs=2, config=MIRROR, **CHANGE),
)


def is_delete(row: Row) -> bool:
    return row["op"] == "D"


def change_log(choose: random.Random, shops: int, rows: int) -> list[dict[str, Any]]:
    """Changes of a few keys of many shops, so that there are many cases: repeated, with equal and with null sequences,
    with null keys."""
    return [
        {
            "shop": choose.randrange(shops),
            "id": choose.choice(["a", "b", None]),
            "at": choose.choice([None, *range(8)]),
            "op": choose.choice(["U", "U", "U", "D", None]),
            "name": choose.choice(["ann", "bob", None]),
            "city": choose.choice(["oslo", "rome", None]),
        }
        for _ in range(rows)
    ]


def in_order(rows: Iterable[Row]) -> list[Any]:
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


def check(shop: KeyedSite, landed: Mapping[str, list[dict[str, Any]]], version: int | None = None) -> None:
    rows = [row for own in landed.values() for row in own]
    kept, deleted = keyed_model.latest(rows, KEYS, "at", is_delete, {"op"})
    assert in_order(shop.rows("customers", version=version)) == in_order(kept.values())
    deletions = [(keyed_model.key_of(row, KEYS), row["at"]) for row in shop.rows("customers", 1, version)]
    assert sorted(deletions, key=repr) == sorted(deleted.items(), key=repr)
    versions = keyed_model.history(rows, KEYS, "at", is_delete, {"op"}, ["city"])
    assert in_order(shop.rows("versions", version=version)) == in_order(
        row for own in versions.values() for row in own
    )
    mirrored = [
        {name: value for name, value in row.items() if name != "change_revision"}
        for row in shop.rows("mirror", version=version)
    ]
    assert in_order(mirrored) == in_order(kept.values())
