"""Whatever people do with versions, in whatever order, the state stays one that makes sense."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline.plan import plan
from qo.core.pipeline.topology import LIVE
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover
from qo.dispatcher.versions.deploy import deploy
from qo.errors import NotFound, Refused
from qo.pipeline.registry import DEFAULT
from support.dispatcher.fresh_states import FreshStates
from support.dispatcher.pipelines import dag, edited, job, source

FIRST = dag(
    "shop", source("orders"), job("clean", reads="orders"), job("daily", reads="clean"), publish={"a": "clean"}
)
CLEAN = edited(FIRST, "clean", config={"n": 1})
FILES = [
    FIRST,
    CLEAN,
    edited(CLEAN, "daily", config={"n": 1}),  # Shares "clean" with the one before.
    edited(FIRST, "daily", max_attempts=9),  # Nothing to rebuild.
    dag("shop", *FIRST.jobs, publish={"b": "daily"}),
]

TOUCHED = {
    name: schema.metadata.tables[name]
    for name in ("topology", "dags", "dag_versions", "jobs", "version_generations", "publications", "tasks")
}

numbers = st.integers(1, len(FILES))
moves = st.lists(
    st.one_of(
        st.tuples(st.just("deploy"), st.integers(0, len(FILES) - 1)),
        st.tuples(st.just("deploy"), st.integers(0, len(FILES) - 1)),
        st.tuples(st.just("ready"), numbers),
        st.tuples(st.just("activate"), numbers),
        st.tuples(st.just("force"), numbers),
        st.tuples(st.just("force"), numbers),
        st.tuples(st.just("abandon"), numbers),
        st.tuples(st.just("rollback"), st.just(0)),
        st.tuples(st.just("work"), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


def test_any_history_leaves_one_version_serving_and_at_most_one_waiting(fresh_states: FreshStates) -> None:
    @fresh_states.settings(max_examples=15)
    @given(moves)
    def check(history: list[tuple[str, int]]) -> None:
        with fresh_states.opened() as state:
            for step, argument in [("deploy", 0), *history]:
                _move(state, step, argument)
                with state.read() as tx:
                    _check(tx)

    check()


def _move(state: State, step: str, argument: int) -> None:
    before = _all(state)
    try:
        with state.write() as tx:
            _act(tx, step, argument)
    except (Refused, NotFound):
        assert _all(state) == before
        return
    # Saying the same again changes nothing; only a rollback goes a step further each time.
    if step in ("deploy", "ready", "activate", "abandon"):
        after = _all(state)
        with state.write() as tx:
            assert not _act(tx, step, argument).changed
        assert _all(state) == after


def _act(tx: Tx, step: str, argument: int) -> Any:
    match step:
        case "deploy":
            return deploy(tx, FILES[argument], "", "tests", DEFAULT)
        case "ready":
            return cutover.mark_ready(tx, "shop", argument, "tests")
        case "activate" | "force":
            return cutover.activate(tx, "shop", argument, "tests", force=step == "force")
        case "abandon":
            return cutover.abandon(tx, "shop", argument, "tests")
        case "rollback":
            return cutover.rollback(tx, "shop", "tests")
        case _:
            live = topology.load(tx).jobs.values()
            create(tx, [NewTask(job=each, dedupe_key="partition:one") for each in live])
            waiting = sa.update(schema.tasks).where(schema.tasks.c.status == "pending")
            return tx.execute(
                waiting.where(schema.tasks.c.edition_id.in_([each.edition_id for each in live])).values(
                    released_at=tx.now
                )
            )


def _check(tx: Tx) -> None:
    versions = {row["id"]: row for row in tx.all(sa.select(schema.dag_versions))}
    row = tx.one(sa.select(schema.dags))
    assert row is not None
    serving = versions[row["active_version_id"]]
    assert [each["id"] for each in versions.values() if each["status"] == "active"] == [serving["id"]]
    assert sum(each["status"] in ("staged", "ready") for each in versions.values()) <= 1
    previous = row["previous_version_id"]
    assert previous is None or versions[previous]["status"] not in ("active", "rolled_back")

    expected = plan(next(each for each in FILES if plan(each).content_hash == serving["content_hash"]))
    found = topology.load(tx)
    assert found.current == {
        made.dataset_id: made.generation_id for each in expected.jobs for made in each.outputs
    }
    names = {each.name: each.dataset_id for each in tx.execute(sa.select(schema.publications))}
    assert names == expected.published
    live = {each["id"] for each in versions.values() if each["status"] in LIVE}
    jobs = tx.all(sa.select(schema.jobs))
    assert set(found.jobs) == {each["edition_id"] for each in jobs if each["version_id"] in live}

    _check_tasks(tx, set(found.jobs), jobs, versions)


def _check_tasks(tx: Tx, live: set[str], jobs: Any, versions: dict[str, Any]) -> None:
    """Tasks of live editions are never lost to a version that was given up; tasks of given-up ones never wait."""
    reachable = {
        each["edition_id"] for each in jobs if versions[each["version_id"]]["status"] in (*LIVE, "retired")
    }
    for task in tx.all(sa.select(schema.tasks)):
        if task["edition_id"] in live:
            assert task["status"] == "pending"
        elif task["edition_id"] not in reachable:
            assert task["status"] == "cancelled"
        elif task["status"] == "pending":
            assert task["released_at"] is None  # It waits for a rollback, and nobody wakes for it.


def _all(state: State) -> dict[str, list[tuple[Any, ...]]]:
    with state.read() as tx:
        return {
            name: sorted((tuple(row) for row in tx.execute(sa.select(table))), key=repr)
            for name, table in TOUCHED.items()
        }
