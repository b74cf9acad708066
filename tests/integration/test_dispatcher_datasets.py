"""Datasets as people see them: names, generations, pages, lineage; and that no question reads a whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest, CompleteRequest, EventBody, Outcome, OutputBody
from qo.core.pipeline.event import Event
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.events.event_log import accept
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.datasets import resolve
from qo.dispatcher.versions import cutover
from qo.dispatcher.views import datasets
from qo.dispatcher.views.lineage import lineage
from qo.dispatcher.views.why.answer import why
from qo.errors import NotFound, UsageError
from support.dispatcher import accounting
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock, opened

SHOP = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", outputs=2),
    job("daily", reads="clean"),
    job("copy", reads="clean"),
    publish={"orders_clean": "clean", "rejected": {"job": "clean", "output": 1}},
)


def emit(state: State, *keys: str) -> None:
    with state.write() as tx:
        said = [EventBody(output=0, partition_key=key) for key in keys]
        emission.emit(tx, "shop", "orders", key="/".join(keys)[:200], events=said, by="ada")


def run_all(state: State) -> None:
    """Work until nothing is left; every job writes each of its outputs."""
    while True:
        router.tick(state)
        with state.read() as tx:
            table = schema.tasks
            ids = list(tx.execute(sa.select(table.c.id).where(table.c.status == "pending")).scalars())
        if not ids:
            return
        for id_ in ids:
            with state.write() as tx:
                woken(tx, id_)
                claimed = claiming.claim(tx, ClaimRequest(task_id=id_, worker_id="w"), "file:data")
                assert claimed.status == "claimed"
                outputs = [OutputBody(output=each.index, rows=5, bytes=50) for each in claimed.work.outputs]
                completion.complete(
                    tx,
                    CompleteRequest(
                        task_id=id_,
                        attempt=claimed.attempt,
                        lease_id=claimed.lease_id,
                        outcome=Outcome.SUCCESS,
                        outputs=outputs,
                    ),
                )


def reading(state: State, question: Callable[[Tx], Any]) -> Any:
    with state.read() as tx:
        return question(tx)


def test_a_dataset_is_found_by_published_name_or_by_its_job(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    with state.read() as tx:
        for text, output in (
            ("orders_clean", 0),
            ("shop.clean", 0),
            ("shop.clean[0]", 0),
            ("rejected", 1),
            ("shop.clean[1]", 1),
        ):
            assert resolve(tx, text).id == clean.outputs[output].dataset_id
        assert resolve(tx, "shop.clean[1]").label == "rejected"
        assert resolve(tx, "shop.daily").label == "shop.daily"
        for text in ("nope", "shop.nope", "shop.clean[2]", "shop", "shop.clean[x]", "", "@", "shop.clean@a"):
            with pytest.raises(NotFound):
                resolve(tx, text)


def test_datasets_are_listed_in_pages_and_each_once(state: State) -> None:
    deployed(state, edited(SHOP, "orders", config={"v": 1}))
    deployed(state, dag("other", source("a"), job("b", reads="a", outputs=0)))
    seen: list[str] = []
    after: str | None = None
    for _ in range(10):
        page = reading(state, lambda tx, place=after: datasets.list_datasets(tx, after=place, limit=2))
        seen += [f"{each.dag}.{each.job}[{each.output}]" for each in page.datasets]
        after = page.next
        if after is None:
            break
    assert seen == [
        "other.a[0]",
        "shop.clean[0]",
        "shop.clean[1]",
        "shop.copy[0]",
        "shop.daily[0]",
        "shop.orders[0]",
    ]
    shop = reading(state, lambda tx: datasets.list_datasets(tx, dag="shop")).datasets
    assert [each.name for each in shop] == ["orders_clean", "rejected", None, None, None]
    assert all(each.generation_id for each in shop)
    with pytest.raises(UsageError):
        reading(state, lambda tx: datasets.list_datasets(tx, limit=0))
    with pytest.raises(UsageError):
        reading(state, lambda tx: datasets.list_datasets(tx, after="nowhere"))


def test_a_dataset_is_shown_with_the_status_of_its_generations_and_sums(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "a", "b")
    run_all(state)
    number = staged(state, edited(SHOP, "clean", config={"v": 2})).version
    shown = reading(state, lambda tx: datasets.show_dataset(tx, "orders_clean"))
    assert [(each.status, each.versions, each.partitions, each.rows) for each in shown.generations] == [
        ("current", [1], 2, 10),
        ("staged", [number], 0, 0),
    ]
    assert shown.readers == ["shop.copy", "shop.daily"]
    assert shown.events == {"routed": 2}
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "ada", force=True)
    after = reading(state, lambda tx: datasets.show_dataset(tx, "orders_clean"))
    assert [(each.status, each.versions) for each in after.generations] == [
        ("current", [number]),
        ("retired", [1]),
    ]
    assert reading(state, lambda tx: datasets.list_partitions(tx, "orders_clean")).partitions == []
    old = after.generations[1].id
    kept = reading(state, lambda tx: datasets.list_partitions(tx, "orders_clean", generation_id=old))
    assert [each.partition_key for each in kept.partitions] == ["a", "b"]


def test_partitions_and_events_come_in_pages(state: State) -> None:
    deployed(state, SHOP)
    emit(state, *"abcde")
    run_all(state)
    first = reading(state, lambda tx: datasets.list_partitions(tx, "orders_clean", limit=3))
    rest = reading(state, lambda tx: datasets.list_partitions(tx, "orders_clean", after=first.next, limit=3))
    assert [each.partition_key for each in (*first.partitions, *rest.partitions)] == list("abcde")
    assert rest.next is None
    newest = reading(state, lambda tx: datasets.list_events(tx, "orders_clean", limit=2))
    older = reading(state, lambda tx: datasets.list_events(tx, "orders_clean", before=newest.next, limit=10))
    seqs = [each.seq for each in (*newest.events, *older.events)]
    assert len(seqs) == 5
    assert seqs == sorted(seqs, reverse=True)
    assert older.next is None
    delivered = {(each.dag, each.job, each.outcome) for each in newest.events[0].deliveries}
    assert delivered == {("shop", "daily", "consumed"), ("shop", "copy", "consumed")}
    only = reading(state, lambda tx: datasets.list_events(tx, "orders_clean", partition_key="c"))
    assert [each.partition_key for each in only.events] == ["c"]


def test_the_counts_of_a_dataset_name_its_readers(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "a", "b")
    run_all(state)
    counts = reading(state, lambda tx: accounting.counts(tx, "orders_clean", checked=True))
    assert (counts.events, counts.problems, counts.checked) == ({"routed": 2}, [], True)
    assert {each.job: (each.live, each.deliveries) for each in counts.readers} == {
        "shop.daily": (True, {"consumed": 2}),
        "shop.copy": (True, {"consumed": 2}),
    }


def test_lineage_follows_revisions_in_both_directions(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "a", "b")
    run_all(state)
    near = reading(state, lambda tx: lineage(tx, "orders_clean", "a"))
    assert [(each.depth, each.dataset, each.partition_key) for each in near.upstream] == [(1, "shop.orders", "a")]
    assert sorted((each.dataset, each.partition_key) for each in near.downstream) == [
        ("shop.copy", "a"),
        ("shop.daily", "a"),
    ]
    daily = reading(state, lambda tx: lineage(tx, "shop.daily", "a"))
    assert daily.upstream[0].task_id == near.task_id  # Who made it, told of it as of all around it.
    assert daily.task_id in {each.task_id for each in near.downstream}
    far = reading(state, lambda tx: lineage(tx, "shop.daily", "b", depth=5))
    assert [(each.depth, each.dataset) for each in far.upstream] == [(1, "orders_clean"), (2, "shop.orders")]
    top = reading(state, lambda tx: lineage(tx, "shop.orders", "a", depth=5))
    assert sorted((each.depth, each.dataset) for each in top.downstream) == [
        (1, "orders_clean"),
        (1, "rejected"),
        (2, "shop.copy"),
        (2, "shop.daily"),
    ]
    with pytest.raises(NotFound, match="qo why"):
        reading(state, lambda tx: lineage(tx, "orders_clean", "z"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[State]:
    """On SQLite, whose planner does not go by how little there is in a table."""
    with opened(f"sqlite:{tmp_path / 'state.db'}", Clock()) as state:
        yield state


@pytest.mark.fast
def test_no_question_reads_a_whole_table(small: State) -> None:
    state = small
    deployed(state, SHOP)
    emit(state, *"abc")
    run_all(state)
    orders = live(loaded(state), "shop.orders").outputs[0]
    with state.write() as tx:
        told = Event(dataset_id=orders.dataset_id, generation_id=orders.generation_id, partition_key="d")
        accept(tx, "p", [told])
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sa.event.listen(state.engine, "before_cursor_execute", note)
    questions: list[Callable[[Tx], Any]] = [
        *(
            lambda tx, target=target: why(tx, target)
            for target in ("shop.daily@a", "shop.daily@d", "shop.daily@z")
        ),
        *(lambda tx, target=target: why(tx, target) for target in ("shop.daily", "shop.daily@cursor:5")),
        lambda tx: datasets.list_datasets(tx),
        lambda tx: datasets.show_dataset(tx, "orders_clean"),
        lambda tx: datasets.list_partitions(tx, "orders_clean", after="a"),
        lambda tx: datasets.list_events(tx, "orders_clean", before=100),
        lambda tx: datasets.list_events(tx, "orders_clean", partition_key="a"),
        lambda tx: lineage(tx, "orders_clean", "a", depth=5),
    ]
    for question in questions:
        reading(state, question)
    router.tick(state)
    sa.event.remove(state.engine, "before_cursor_execute", note)
    large = {"events", "deliveries", "tasks", "partitions", "commits", "task_inputs"}
    with state.engine.connect() as connection:
        for statement, parameters in asked:
            if not statement.startswith(("SELECT", "UPDATE")):
                continue
            plans = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            for plan in plans:
                words = str(plan[3]).split()
                whole = words[0] == "SCAN" and words[1] in large and "ix_events_pending" not in words
                assert not whole, (plan[3], statement)
                assert "TEMP B-TREE" not in plan[3] or not large & set(statement.split()), (plan[3], statement)
    assert len(asked) < 400
