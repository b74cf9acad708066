"""Events on their way in: kept once, refused whole, counted at once."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.core.pipeline.event import Event
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.events import tallies
from qo.dispatcher.events.event_log import accept
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import NotFound, UsageError
from support.dispatcher import accounting
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag("shop", source("orders", outputs=2), job("clean", reads="orders"))


def event(of: LiveJob, output: int = 0, **fields: Any) -> Event:
    made = of.outputs[output]
    return Event(dataset_id=made.dataset_id, generation_id=made.generation_id, **fields)


@pytest.fixture
def orders(state: State) -> LiveJob:
    return live(deployed(state, SHOP), "shop.orders")


def test_what_a_producer_says_twice_is_kept_once(state: State, orders: LiveJob) -> None:
    said = [event(orders, partition_key="a"), event(orders, partition_key="b"), event(orders, 1, cursor=7)]
    with state.write() as tx:
        first = accept(tx, "task/1", said, "t", 1)
    with state.write() as tx:
        again = accept(tx, "task/1", [*said, said[0]])
        other = accept(tx, "task/2", said[:1])
    assert (first.accepted, first.repeated) == (3, 0)
    assert (again.accepted, again.repeated) == (0, 4)
    assert again.ids[:3] == first.ids
    assert other.accepted == 1
    with state.read() as tx:
        assert tx.value(sa.select(sa.func.count()).select_from(schema.events)) == 4
        assert tallies.counts(tx, orders.outputs[0].dataset_id) == {"": {"pending": 3}}
        assert accounting.check(tx, orders.outputs[0].dataset_id).problems == ()


def test_one_bad_event_refuses_all_of_them(state: State, orders: LiveJob) -> None:
    good, first, second = event(orders, partition_key="a"), orders.outputs[0], orders.outputs[1]
    foreign = Event(dataset_id=first.dataset_id, generation_id=second.generation_id, cursor=1)
    unknown = Event(dataset_id=first.dataset_id, generation_id="none", cursor=1)
    for bad, error in (
        (foreign, UsageError),
        (unknown, NotFound),
        (event(orders), UsageError),
        (event(orders, cursor=1, partition_key="a"), UsageError),
        (event(orders, partition_key="../a"), UsageError),
        (event(orders, partition_key="a", start=3, end=3), UsageError),
        (event(orders, partition_key="a", start=3), UsageError),
        (event(orders, cursor=2**63), UsageError),
        (event(orders, cursor=-1), UsageError),
        (event(orders, cursor=1, attributes={"a": "x" * 9000}), UsageError),
    ):
        with pytest.raises(error), state.write() as tx:
            accept(tx, "p", [good, bad])
    with state.read() as tx:
        assert tx.value(sa.select(sa.func.count()).select_from(schema.events)) == 0


def test_the_announced_cursor_only_grows_in_whatever_order_events_come(
    state: State,
    orders: LiveJob,
) -> None:
    furthest: list[int] = []
    for cursors in ([5, 9, 7], [8], [12]):
        with state.write() as tx:
            accept(tx, "p", [event(orders, cursor=each) for each in cursors])
            table = schema.generations
            query = sa.select(table.c.cursor).where(table.c.id == orders.outputs[0].generation_id)
            furthest.append(tx.value(query))
    assert furthest == [9, 9, 12]


def test_a_batch_larger_than_one_statement_is_kept_whole(state: State, orders: LiveJob) -> None:
    with state.write() as tx:
        assert accept(tx, "p", [event(orders, cursor=n) for n in range(1201)]).accepted == 1201
        assert accept(tx, "p", []).ids == ()
    with state.read() as tx:
        assert accounting.check(tx, orders.outputs[0].dataset_id).events == 1201


def test_books_that_do_not_add_up_are_told(state: State, orders: LiveJob) -> None:
    made = orders.outputs[0].dataset_id
    with state.write() as tx:
        accept(tx, "p", [event(orders, cursor=1)])
        tallies.add(tx, {(made, "", "pending"): 1, (made, "edition", "lost"): 2})
    with state.read() as tx:
        problems = " ".join(accounting.check(tx, made).problems)
    assert "2 pending by count, 1 by rows" in problems
    assert "'lost' is no state" in problems
