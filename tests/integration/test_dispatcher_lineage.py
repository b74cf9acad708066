"""Lineage of inputs that a task reads whole, or a range of: it names who committed what was read, and nobody else."""

from __future__ import annotations

import pytest

from qo.api.contract.dataset import LineageEdge
from qo.core.pipeline.topology import Topology
from qo.dispatcher.state.database import State
from qo.dispatcher.views.lineage import lineage
from support.dispatcher.pipeline_tasks import (
    append,
    claimed,
    cursor_task,
    feed,
    finish,
    output,
    partition_task,
    succeed,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag(
    "shop",
    source("orders"),
    source("rates"),
    source("noise"),
    source("log", update_strategy="append"),
    job("report", reads=["orders", {"job": "rates", "trigger": False}]),
    job("sums", reads="log", execution_strategy="PerUpdate"),
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def upstream(state: State, name: str, key: str, depth: int = 1) -> dict[str, LineageEdge]:
    """By name of the dataset."""
    with state.read() as tx:
        return {edge.dataset: edge for edge in lineage(tx, name, key, depth).upstream}


def test_an_input_read_whole_names_the_run_that_committed_it_last(state: State, shop: Topology) -> None:
    rates, noise, report = (live(shop, f"shop.{name}") for name in ("rates", "noise", "report"))
    feed(state, rates, "eur")
    last = feed(state, rates, "usd")
    feed(state, live(shop, "shop.orders"), "d1")
    other = feed(state, noise, "x")  # The latest revision of all is of a dataset that nobody reads.
    succeed(state, claimed(state, partition_task(state, report, "d1")))
    edge = upstream(state, "shop.report", "d1")["shop.rates"]
    assert edge.task_id == last.work.task_id != other.work.task_id
    assert (edge.partition_key, edge.mode, edge.pieces) == (None, "whole", 2)
    assert edge.revision is not None
    assert edge.as_of is not None
    assert edge.revision < edge.as_of


def test_what_is_committed_to_it_later_changes_nothing(state: State, shop: Topology) -> None:
    rates, report = live(shop, "shop.rates"), live(shop, "shop.report")
    read = feed(state, rates, "eur")
    feed(state, live(shop, "shop.orders"), "d1")
    feed(state, live(shop, "shop.noise"), "x")
    succeed(state, claimed(state, partition_task(state, report, "d1")))
    before = upstream(state, "shop.report", "d1")["shop.rates"]
    feed(state, rates, "eur", "2")
    feed(state, rates, "usd")
    after = upstream(state, "shop.report", "d1")["shop.rates"]
    assert after.task_id == before.task_id == read.work.task_id
    assert (after.revision, after.as_of) == (before.revision, before.as_of)


def test_an_input_that_was_empty_then_names_nobody(state: State, shop: Topology) -> None:
    feed(state, live(shop, "shop.orders"), "d1")
    succeed(state, claimed(state, partition_task(state, live(shop, "shop.report"), "d1")))
    feed(state, live(shop, "shop.rates"), "eur")
    edge = upstream(state, "shop.report", "d1")["shop.rates"]
    assert (edge.task_id, edge.revision, edge.mode) == ("", None, "whole")


def test_a_range_of_cursors_names_the_run_that_committed_its_end(state: State, shop: Topology) -> None:
    log, sums = live(shop, "shop.log"), live(shop, "shop.sums")
    append(state, log, 1)
    last = append(state, log, 2)
    feed(state, live(shop, "shop.noise"), "x")
    held = claimed(state, cursor_task(state, sums, 2))
    finish(state, held, outputs=[output(held, partition_key="all")])
    append(state, log, 3)
    edge = upstream(state, "shop.sums", "all")["shop.log"]
    assert (edge.task_id, edge.mode, edge.cursor_upto) == (last.work.task_id, "cursor", 2)


def test_a_partition_is_named_with_the_run_that_made_it(state: State, shop: Topology) -> None:
    made = feed(state, live(shop, "shop.orders"), "d1")
    succeed(state, claimed(state, partition_task(state, live(shop, "shop.report"), "d1")))
    edge = upstream(state, "shop.report", "d1")["shop.orders"]
    assert (edge.task_id, edge.mode, edge.as_of, edge.pieces) == (made.work.task_id, "partition", None, None)
