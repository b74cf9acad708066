"""What a dataset was at each of its versions, and what changed between two of them."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.dataset import ChangesPage
from qo.core.pipeline.columns import describe_type
from qo.core.pipeline.topology import Topology
from qo.dispatcher.engine.loops import invalidation, router
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.views import dataset_schema, datasets, history, reading
from qo.errors import NotFound, UsageError
from support.dispatcher.pipeline_tasks import (
    all_of,
    append,
    claimed,
    feed,
    finish,
    manual_task,
    output,
    succeed,
    tasks_of,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag(
    "shop",
    source("orders"),
    source("log", update_strategy="append"),
    job("clean", reads="orders"),
    publish={"orders": "orders"},
)


@pytest.fixture
def shop(state: State) -> Topology:
    return deployed(state, SHOP)


def latest(state: State) -> int:
    return max((each["revision"] for each in all_of(state, schema.commits)), default=0)


def changes(state: State, low: int, high: int, name: str = "orders", **how: Any) -> ChangesPage:
    with state.read() as tx:
        return history.list_changes(tx, name, low, high, **how)


def said(page: ChangesPage) -> list[tuple[str, str | int | None, int]]:
    return [(each.change, each.partition_key or each.cursor, each.rows) for each in page.changes]


def test_commits_are_listed_newest_first_with_what_took_their_place(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    for run, key in enumerate("abab"):
        feed(state, orders, key, str(run))
    with state.read() as tx:
        every = history.list_commits(tx, "orders", limit=3)
        rest = history.list_commits(tx, "orders", before=every.next)
        of_a = history.list_commits(tx, "orders", partition_key="a")
        with pytest.raises(NotFound):
            history.list_commits(tx, "orders", partition_key="z")
    assert [each.partition_key for each in (*every.commits, *rest.commits)] == ["b", "a", "b", "a"]
    newest, oldest = of_a.commits
    assert (oldest.replaced_by, oldest.replaced_at) == (newest.revision, newest.committed_at)
    assert newest.replaced_by is None


def test_a_diff_is_what_a_reader_of_both_versions_would_find(state: State, shop: Topology) -> None:
    orders = live(shop, "shop.orders")
    feed(state, orders, "a", "1")
    feed(state, orders, "b", "1")
    low = latest(state)
    feed(state, orders, "a", "2", rows=50)
    feed(state, orders, "a", "3", rows=7)
    feed(state, orders, "c", "1", rows=3)
    high = latest(state)
    feed(state, orders, "c", "2")
    assert said(changes(state, low, high)) == [("replaced", "a", 7 - 10), ("added", "c", 3)]
    assert said(changes(state, 0, low)) == [("added", "a", 10), ("added", "b", 10)]
    assert said(changes(state, low, low)) == []
    first = changes(state, low, high, limit=1)
    assert said(changes(state, low, high, after=first.next)) == [("added", "c", 3)]
    with state.read() as tx:
        then, now = (reading.pieces(tx, "orders", revision=each).pieces for each in (low, high))
    more = sum(each.rows or 0 for each in now) - sum(each.rows or 0 for each in then)
    assert more == sum(each.rows for each in changes(state, low, high).changes)
    with pytest.raises(UsageError):
        changes(state, high, low)
    with pytest.raises(NotFound, match=f"orders has no version 99 yet: its latest is {latest(state)}"):
        changes(state, low, 99)


def test_appended_rows_and_segments_are_told_apart(state: State, shop: Topology) -> None:
    log = live(shop, "shop.log")
    held = claimed(state, manual_task(state, log, "x", partition_key="p"))
    finish(state, held, outputs=[output(held, partition_key="p")])
    low = latest(state)
    again = claimed(state, manual_task(state, log, "y", partition_key="p"))
    finish(state, again, outputs=[output(again, partition_key="p")])
    append(state, log, 5)
    found = said(changes(state, low, latest(state), "shop.log"))
    assert found[-1] == ("added", 5, 10)
    assert len(found) == 2


def test_a_diff_over_many_replacements_costs_as_much_as_over_one(state: State, shop: Topology) -> None:
    orders, log = live(shop, "shop.orders"), live(shop, "shop.log")
    asked: list[str] = []
    costs: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    feed(state, orders, "a", "0", rows=1)
    low = latest(state)
    for last in (2, 30):
        for run in range(last):
            feed(state, orders, "a", f"{last}-{run}", rows=last)
            feed(state, log, "a", f"{last}-{run}")
        high = latest(state)
        asked.clear()
        sa.event.listen(state.engine, "before_cursor_execute", note)
        assert said(changes(state, low, high)) == [("replaced", "a", last - 1)]
        sa.event.remove(state.engine, "before_cursor_execute", note)
        costs.append(len(asked))
    assert costs[0] == costs[1]


def test_a_partition_that_is_made_again_downstream_is_replaced_there(state: State, shop: Topology) -> None:
    orders, clean = live(shop, "shop.orders"), live(shop, "shop.clean")
    feed(state, orders, "a", "1")
    while router.tick(state):
        pass
    succeed(state, claimed(state, tasks_of(state, clean)[0]["id"]))
    low = latest(state)
    feed(state, orders, "a", "2")
    while invalidation.tick(state) or router.tick(state):
        pass
    succeed(state, claimed(state, tasks_of(state, clean)[-1]["id"]))
    assert said(changes(state, low, latest(state), "shop.clean")) == [("replaced", "a", 0)]


def test_a_dataset_says_since_when_it_has_each_column(state: State) -> None:
    grown = dag("shop", source("orders", drift="add"), publish={"orders": "orders"})
    orders = live(deployed(state, grown), "shop.orders")
    columns = [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "elementType": "string"}},
    ]
    revisions: list[int] = []
    for run, count in (("1", 1), ("2", 1), ("3", 2)):
        feed(state, orders, run, run, columns=columns[:count], columns_seen=count)
        revisions.append(latest(state))
    with state.read() as tx:
        shown = datasets.show_dataset(tx, "orders").columns
        changes = dataset_schema.list_changes(tx, "orders").changes
    assert shown is not None
    assert [(each.name, each.revision) for each in shown] == [("id", revisions[0]), ("tags", revisions[2])]
    assert all(each.since is not None for each in shown)
    assert [(each.revision, each.added) for each in changes] == [(revisions[0], ["id"]), (revisions[2], ["tags"])]
    assert [each.name for each in changes[1].columns] == ["id", "tags"]
    assert describe_type(shown[1].type) == "array<string>"
