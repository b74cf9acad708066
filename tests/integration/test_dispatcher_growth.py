"""What an answer costs does not grow with the data, and a change of very many tasks is made in chunks.

Costs are counted, in statements and, on PostgreSQL, in blocks that are read: neither depends on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from bench.dispatcher.filling import fill
from sqlalchemy import event

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.engine.loops import bulk_change, reconciler, release
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import backlog, bulk_changes, operator_actions
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover, overview, planning, rebuilding
from qo.dispatcher.views import (
    column_statistics,
    dataset_trend,
    datasets,
    history,
    job_effort,
    lineage,
    partition_ranges,
    reading,
)
from qo.dispatcher.views.why.answer import why
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipelines import dag, deployed, edited, job, live, source, staged
from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
OTHER = edited(SHOP, "clean", config={"v": 2})
FEW, MANY = 1_100, 4_400  # Beyond what any page or bounded count reads.
CHUNK = 5


def questions(keys: int) -> Mapping[str, Callable[[Tx], object]]:
    key = f"p{keys // 2}"
    return {
        "why": lambda tx: why(tx, f"shop.clean@{key}"),
        "dataset": lambda tx: datasets.show_dataset(tx, "shop.clean"),
        "partitions": lambda tx: datasets.list_partitions(tx, "shop.clean", after=key),
        "stale partitions": lambda tx: datasets.list_partitions(tx, "shop.clean", stale=True),
        "pieces": lambda tx: reading.pieces(tx, "shop.clean", limit=100),
        "events": lambda tx: datasets.list_events(tx, "shop.orders"),
        "lineage": lambda tx: lineage.lineage(tx, "shop.clean", key, 2),
        "effort": lambda tx: job_effort.show_effort(tx, "shop", "clean", 20),
        "ranges": lambda tx: partition_ranges.show_ranges(tx, "shop", from_key="p5", before="p6"),
        "columns": lambda tx: column_statistics.show(tx, "shop.clean"),
        "trend by commit": lambda tx: dataset_trend.show(tx, "shop.clean"),
        "trend by partition": lambda tx: dataset_trend.show(tx, "shop.clean", by=dataset_trend.By.PARTITION),
        "commits": lambda tx: history.list_commits(tx, "shop.clean"),
        "tasks": lambda tx: operator_actions.list_tasks(tx, dag="shop"),
        "plan": lambda tx: planning.forecast(tx, OTHER, DEFAULT),
        "pipeline": lambda tx: overview.show(tx, "shop"),
        "rebuild": lambda tx: rebuilding.rebuild(tx, "shop"),
    }


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.fast), "postgres"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Any]:
    """Opens a state of so many partitions."""

    @contextmanager
    def open_filled(keys: int) -> Iterator[State]:
        on_sqlite = request.param == "sqlite"
        url = f"sqlite:{tmp_path / f'{keys}.db'}"
        if not on_sqlite:
            url = request.getfixturevalue("postgres_server").make_database()
        with opened(url, Clock()) as state:
            deployed(state, SHOP)
            fill(state, keys)
            yield state

    return open_filled


def test_no_answer_costs_more_with_more_partitions(
    filled: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_statistics, "PIECES_MAX", 200)
    monkeypatch.setattr(column_statistics, "LOOKED_AT_MAX", 400)
    costs: list[dict[str, tuple[int, int]]] = []
    for keys in (FEW, MANY):
        with filled(keys) as state:
            costs.append({name: cost(state, question) for name, question in questions(keys).items()})
    few, many = costs
    for name, (statements, blocks) in few.items():
        assert many[name][0] <= statements, name
        # Four times the data: what reads all of it reads four times the blocks, and a page by its keys about the same.
        assert many[name][1] <= 2.5 * blocks + 30, (name, few[name], many[name])


def cost(state: State, question: Callable[[Tx], object]) -> tuple[int, int]:
    """Statements, and blocks of tables and indexes that PostgreSQL reads."""
    asked: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    with state.read() as tx:
        question(tx)  # What a process keeps in memory is there now.
    event.listen(state.engine, "before_cursor_execute", note)
    try:
        with state.read() as tx:
            question(tx)
    finally:
        event.remove(state.engine, "before_cursor_execute", note)
    blocks = 0
    with state.read() as tx:
        for statement, parameters in asked if tx.on_postgres else ():
            if statement.lstrip().startswith(("SELECT", "WITH")):
                explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
                [plan] = tx.connection.exec_driver_sql(explain, parameters).scalar_one()
                blocks += plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return len(asked), blocks


def test_a_status_that_no_task_has_costs_a_look_up(postgres_server: PostgresServer) -> None:
    """Also before VACUUM has come by, when PostgreSQL would rather read a table than its index."""
    with opened(postgres_server.make_database(), Clock()) as state:
        deployed(state, SHOP)
        fill(state, FEW)
        with state.write() as tx:
            tx.execute(sa.text("UPDATE tasks SET wakes = wakes + 1"))
            tx.execute(sa.text("ANALYZE tasks"))
        with state.read() as tx:
            editions = [each.edition_id for each in loaded(tx).jobs.values()]
            blocks = int(tx.value(sa.select(sa.func.pg_relation_size("tasks")))) // 8192
        _, read = cost(state, lambda tx: backlog.counts(tx, editions))
    assert read <= 1.5 * blocks, "once for those that are completed"


# Very many tasks of a version that is given up


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_changes, "CHUNK", CHUNK)
    monkeypatch.setattr(bulk_changes, "AT_ONCE", CHUNK)


def rebuilding_state(state: State, tasks: int = 4 * CHUNK) -> str:
    """A staged version with so many pending tasks; its edition."""
    deployed(state, SHOP)
    staged(state, OTHER)
    with state.write() as tx:
        found = live(loaded(tx), "shop.clean", 2)
        create(tx, [NewTask(job=found, dedupe_key=f"manual:{n}") for n in range(tasks)])
    return found.edition_id


def loaded(tx: Tx) -> Any:
    from qo.dispatcher.state import topology

    return topology.load(tx)


def by_status(state: State, edition: str) -> dict[str, int]:
    with state.read() as tx:
        return backlog.counts(tx, [edition]).get(edition, {})


@pytest.mark.usefixtures("small_chunks")
def test_a_version_that_is_given_up_has_its_tasks_cancelled_in_chunks(state: State) -> None:
    edition = rebuilding_state(state)
    with state.write() as tx:
        answer = cutover.abandon(tx, "shop", 2, "tests")
    assert (answer.cancelled, answer.cancelling) == (CHUNK, True)
    assert by_status(state, edition) == {"cancelled": CHUNK, "pending": 3 * CHUNK}
    assert release.tick(state, Limits()) == 0, "no live version has the others, so none starts"
    assert bulk_change.tick(state, CHUNK) == CHUNK
    assert by_status(state, edition)["cancelled"] == 2 * CHUNK
    while bulk_change.tick(state, CHUNK):
        pass
    assert by_status(state, edition) == {"cancelled": 4 * CHUNK}
    with state.read() as tx:
        assert bulk_changes.editions(tx) == []
        reasons = tx.execute(sa.select(schema.tasks.c.cancel_reason).distinct()).scalars().all()
    assert reasons == ["version 2 of shop was abandoned"]


@pytest.mark.usefixtures("small_chunks")
def test_a_version_that_is_deployed_again_has_all_its_tasks_back(state: State) -> None:
    edition = rebuilding_state(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    while bulk_change.tick(state, CHUNK):
        pass
    staged(state, OTHER)
    assert by_status(state, edition) == {"pending": CHUNK, "cancelled": 3 * CHUNK}
    with state.read() as tx:
        progress = rebuilding.rebuild(tx, "shop", 2)
    assert progress.remaining == 3 * CHUNK, "what is not revived yet is still to be done"
    assert not progress.caught_up
    while bulk_change.tick(state, CHUNK):
        pass
    assert by_status(state, edition) == {"pending": 4 * CHUNK}


@pytest.mark.usefixtures("small_chunks")
def test_of_two_changes_of_an_edition_the_later_one_counts(state: State) -> None:
    """Also if the first was interrupted."""
    edition = rebuilding_state(state)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    bulk_change.tick(state, CHUNK)
    staged(state, OTHER)
    while bulk_change.tick(state, CHUNK):
        pass
    assert by_status(state, edition) == {"pending": 4 * CHUNK}


def test_a_task_that_is_withheld_behind_a_chunk_is_cancelled_by_the_next_pass(state: State) -> None:
    edition = rebuilding_state(state, 6)
    with state.write() as tx:
        cancellation = backlog.version_given_up("shop", 2, VersionStatus.ABANDONED, "tests")
        row = {"edition_id": edition, "kind": "cancel", "token": "t", "requested_at": tx.now}
        row |= {"by": cancellation.by, "reason": cancellation.reason, "code": cancellation.code}
        tx.insert(schema.bulk_changes, [row | {"after": "2200-01-01T00:00:00+00:00"}])
    while bulk_change.tick(state, 2):
        pass
    assert by_status(state, edition) == {"cancelled": 6}


def test_what_is_left_of_a_rebuild_is_known_from_the_mark_of_the_reconciler(filled: Callable[[int], Any]) -> None:
    with filled(FEW) as state:
        staged(state, OTHER)
        with state.read() as tx:
            assert rebuilding.rebuild(tx, "shop", 2).remaining == FEW
        assert reconciler.tick(state, 500) == 500
        with state.read() as tx:
            assert rebuilding.rebuild(tx, "shop", 2).remaining == FEW - 500
        while reconciler.tick(state, 500):
            pass
        with state.read() as tx:
            assert rebuilding.rebuild(tx, "shop", 2).remaining == 0
