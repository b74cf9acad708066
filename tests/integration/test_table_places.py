"""Where the files of a table lie, and so what a reader of it may open."""

from __future__ import annotations

import pytest

from qo.api.contract.task import EventBody
from qo.core.pipeline.policy import Prefix
from qo.dispatcher.sources.emission import emit
from qo.dispatcher.state.database import State
from qo.dispatcher.views import open_tables
from qo.dispatcher.views.table_places import ELSEWHERE_MAX, find_table_reach
from qo.errors import UsageError
from support.catalog.records import store_record
from support.dispatcher.pipelines import dag, deployed, live, source

SHOP = dag("shop", source("orders"), publish={"orders": "orders"})
ROOT = "s3://bucket/root"


def announce(state: State, *locations: str) -> None:
    with state.write() as tx:
        for at, location in enumerate(locations):
            event = EventBody(partition_key=f"p{at}", attributes={"location": location, "files": ["a.parquet"]})
            emit(tx, "shop", "orders", key=f"{at} {location}", events=[event], by="tests")


def readings(state: State, dataset_id: str) -> tuple[tuple[Prefix, ...], ...]:
    store_record(state, "shop", "orders", f"{ROOT}/{dataset_id}/metadata/v1.json", dataset_id=dataset_id)
    with state.read() as tx:
        record = open_tables.find_table(tx, "shop", "orders")
        assert record is not None
        return find_table_reach(tx, record, [f"{ROOT}/{dataset_id}"], ROOT).readings


def test_a_table_lies_in_its_dataset_and_where_its_pieces_lie_elsewhere(state: State) -> None:
    dataset = live(deployed(state, SHOP), "shop.orders").outputs[0].dataset_id
    home = Prefix("bucket", f"root/{dataset}/")
    announce(state, f"{ROOT}/{dataset}/g/t/1/")
    assert readings(state, dataset)[0] == (home,)
    announce(state, f"{ROOT}/{dataset}/g/t/1/", "s3://landing/orders/2026/", f"{ROOT}/other/g2/t/7/")
    exact, wider = readings(state, dataset)
    assert exact == (home, Prefix("bucket", "root/other/g2/t/7/"), Prefix("landing", "orders/2026/"))
    assert wider == (home, Prefix("bucket", "root/other/g2/"), Prefix("landing", "orders/2026/"))


def test_a_table_that_would_open_all_data_opens_nothing(state: State) -> None:
    dataset = live(deployed(state, SHOP), "shop.orders").outputs[0].dataset_id
    announce(state, *(f"s3://bucket/landing-{at}/" for at in range(10)))
    with pytest.raises(UsageError, match="would open all data"):
        readings(state, dataset)
    announce(state, *(f"s3://landing/{at}/" for at in range(ELSEWHERE_MAX + 12)))
    with pytest.raises(UsageError, match="more than 100 places"):
        readings(state, dataset)
