"""The lineage of columns: stored once for all commits that report the same, and followed across jobs."""

from __future__ import annotations

from typing import Any

import pytest

from qo.api.contract.column_origins import LineageBody
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.views import column_tracing
from qo.errors import NotFound
from support.dispatcher.pipeline_tasks import all_of, claimed, feed, partition_task, succeed
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag(
    "shop",
    source("orders"),
    source("rates"),
    job("priced", reads=["orders", {"job": "rates", "trigger": False}]),
    job("daily", reads="priced"),
    publish={"daily": "daily"},
)
COLUMN = {"type": "long", "nullable": True}
PRICED = {
    "columns": {
        "id": [{"input": "orders", "column": "id", "how": "identity"}],
        "total": [
            {"input": "orders", "column": "amount", "how": "transformation"},
            {"input": "rates", "column": "rate", "how": "transformation"},
        ],
    },
    "rows": [{"input": "orders", "column": "paid", "how": "filter"}],
}
DAILY = {"columns": {"sum": [{"input": "priced", "column": "total", "how": "aggregation"}], "n": []}}


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def commit(
    state: State, shop: Topology, name: str, key: str, lineage: dict[str, Any] | None, *columns: str
) -> None:
    held = claimed(state, partition_task(state, live(shop, f"shop.{name}"), key))
    body = None if lineage is None else LineageBody.model_validate(lineage)
    succeed(state, held, lineage=body, columns=[{"name": each, **COLUMN} for each in columns])


def shown(state: State, name: str, column: str | None = None, depth: int = 32) -> Any:
    with state.read() as tx:
        return column_tracing.show(tx, name, column, depth)


def edges(listed: Any) -> list[str]:
    return [f"{each.depth} {each.dataset}.{each.column or '*'} {each.how}" for each in listed]


def test_commits_that_report_the_same_lineage_share_one_row(state: State, shop: Topology) -> None:
    for key in ("a", "b", "c"):
        feed(state, live(shop, "shop.orders"), key)
        commit(state, shop, "priced", key, PRICED if key != "b" else None, "id", "total")
    assert len(all_of(state, schema.column_lineage)) == 1


def test_columns_are_followed_up_and_down_across_jobs(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "a")
    commit(state, shop, "priced", "a", PRICED, "id", "total")
    commit(state, shop, "daily", "a", DAILY, "sum", "n")
    (total,) = shown(state, "daily", "SUM").columns
    assert edges(total.upstream) == [
        "1 shop.priced.total aggregation",
        "2 shop.orders.amount transformation",
        "2 shop.rates.rate transformation",
    ]
    assert edges(shown(state, "daily", "sum", depth=1).columns[0].upstream) == edges(total.upstream)[:1]
    constant = shown(state, "daily").columns[1]
    assert (constant.column, constant.is_known, constant.upstream) == ("n", True, [])
    (amount,) = shown(state, "shop.orders", "amount").columns
    assert (amount.is_known, edges(amount.downstream)) == (
        False,
        ["1 shop.priced.total transformation", "2 daily.sum aggregation"],
    )
    assert edges(shown(state, "shop.orders", "paid").columns[0].downstream) == ["1 shop.priced.* filter"]
    assert edges(shown(state, "shop.priced").rows) == ["1 shop.orders.paid filter"]
    with pytest.raises(NotFound, match="no column 'x': it has sum, n"):
        shown(state, "daily", "x")


def test_what_nobody_reported_is_unknown(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "a")
    commit(state, shop, "priced", "a", None, "id")
    answer = shown(state, "shop.priced")
    assert [(each.column, each.is_known) for each in answer.columns] == [("id", False)]
    assert "no commit has reported it" in answer.unknown[0]


def test_lineages_of_one_generation_count_together(state: State, shop: Topology) -> None:
    for key, column in (("a", "amount"), ("b", "price")):
        feed(state, live(shop, "shop.orders"), key)
        lineage = {"columns": {"total": [{"input": "orders", "column": column, "how": "identity"}]}}
        commit(state, shop, "priced", key, lineage, "total")
    assert len(all_of(state, schema.column_lineage)) == 2
    (total,) = shown(state, "shop.priced").columns
    assert edges(total.upstream) == ["1 shop.orders.amount identity", "1 shop.orders.price identity"]
