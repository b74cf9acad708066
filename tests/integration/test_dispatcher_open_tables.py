"""Which published datasets are tables, as the catalogue finds them."""

from __future__ import annotations

from typing import Any

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.views import open_tables
from support.dispatcher.pipelines import dag, deployed, source

SHOP = dag("shop", source("orders"), source("hidden"), publish={"orders": "orders", "again": "orders"})


def store_record(state: State, name: str, **values: Any) -> None:
    with state.write() as tx:
        tx.insert(
            schema.open_tables,
            [
                {
                    "dag": "shop",
                    "name": name,
                    "dataset_id": "d",
                    "table_uuid": "u",
                    "metadata_location": None,
                    "metadata_version": 0,
                    "revision": None,
                    "updated_at": tx.now,
                    "problem": None,
                }
                | values
            ],
        )


async def test_a_published_dataset_is_found_by_pipeline_and_name(state: State) -> None:
    deployed(state, SHOP)
    store_record(state, "orders", metadata_location="/data/v1.metadata.json", metadata_version=1, revision=7)
    store_record(state, "again", problem="its files are JSON")
    store_record(state, "withdrawn")
    with state.read() as tx:
        assert open_tables.list_namespaces(tx) == ["shop"]
        assert [each.name for each in open_tables.list_tables(tx)] == ["again", "orders"]
        orders = open_tables.find_table(tx, "shop", "orders")
        assert orders is not None
        assert (orders.metadata_location, orders.metadata_version) == ("/data/v1.metadata.json", 1)
        assert (orders.revision, orders.problem) == (7, None)
        again = open_tables.find_table(tx, "shop", "again")
        assert again is not None
        assert again.problem == "its files are JSON"
        assert open_tables.find_table(tx, "shop", "withdrawn") is None  # No version publishes it.
        assert open_tables.find_table(tx, "store", "orders") is None
