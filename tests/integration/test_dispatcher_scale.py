"""Frequent questions cost the same however much has happened before, counted in statements and plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.garbage import JudgeRequest
from qo.core.pipeline import pressure
from qo.core.pipeline.plan import plan
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import completion
from qo.dispatcher.commits import replacing
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import invalidation, release
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.events import event_log
from qo.dispatcher.state import scans, schema, topology, version_jobs
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.topology import use_registry
from qo.dispatcher.tasks import backlog, backpressure, operator_actions
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.tasks.dedupe_keys import backfill_prefix
from qo.dispatcher.versions import deploy, pausing, publishing, side_inputs
from qo.pipeline.registry import DEFAULT, Registry
from support.dispatcher.pipeline_tasks import feed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer

Asked = list[tuple[str, Any]]


SMALL = 100  # Rows of a table.
# What PostgreSQL knows of an index that was created with its table.
AS_CREATED = """
UPDATE pg_class SET relpages = 1, reltuples = 0
WHERE oid IN (SELECT indexrelid FROM pg_index WHERE indrelid = CAST(:name AS regclass))
"""
COUNT = dag("c", source("feed"), job("count", reads="feed", execution_strategy="PerUpdate"))


@contextmanager
def noted(state: State) -> Iterator[Asked]:
    asked: Asked = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    sa.event.listen(state.engine, "before_cursor_execute", note)
    yield asked
    sa.event.remove(state.engine, "before_cursor_execute", note)


def plans(state: State, question: Callable[[Tx], Any]) -> str:
    """How the database answers all that is asked."""
    with noted(state) as asked, state.read() as tx:
        question(tx)
    _forget_emptiness(state)
    said: list[str] = []
    with state.read() as tx:
        if tx.on_postgres:
            tx.execute(sa.text("SET LOCAL enable_seqscan = off"))  # An empty table is cheapest read in full.
        for statement, parameters in asked:
            if statement.startswith(("SELECT", "WITH")) and "FROM" in statement:
                explain = "EXPLAIN" if tx.on_postgres else "EXPLAIN QUERY PLAN"
                said += [str(row) for row in tx.connection.exec_driver_sql(f"{explain} {statement}", parameters)]
    return "\n".join(said)


def _forget_emptiness(state: State) -> None:
    """Have PostgreSQL plan for tables that may grow: where it knows a table to be empty, every index costs the same.
    Of small tables it forgets all that it knows, and makes their indexes anew: both may be of another test, which had
    the database before."""
    with state.write() as tx:
        if not tx.on_postgres:
            return
        for table in schema.metadata.sorted_tables:
            some = sa.select(sa.literal(1).label("one")).select_from(table).limit(SMALL).subquery()
            if tx.value(sa.select(sa.func.count()).select_from(some)) < SMALL:
                for forget in (
                    f"REINDEX TABLE {table.name}",
                    AS_CREATED,
                    "UPDATE pg_class SET reltuples = -1 WHERE oid = CAST(:name AS regclass)",
                    "DELETE FROM pg_statistic WHERE starelid = CAST(:name AS regclass)",
                ):
                    tx.execute(sa.text(forget), {"name": table.name} if ":name" in forget else {})


def wanted(state: State, *of: LiveJob, each: int = 1, **fields: Any) -> list[str]:
    with state.write() as tx:
        new = [NewTask(job=one, dedupe_key=f"manual:{n}", **fields) for one in of for n in range(each)]
        return [made.task_id for made in create(tx, new)]


def crowd(state: State) -> None:
    """Many tasks of others, and a database that knows of them."""
    ids = wanted(state, *deployed(state, chain(5)).jobs.values(), each=400)
    with state.write() as tx:
        for status, some in (("completed", ids[:1500]), ("failed", ids[1500:1800])):
            for first in range(0, len(some), 500):
                chosen = schema.tasks.c.id.in_(some[first : first + 500])
                tx.execute(sa.update(schema.tasks).where(chosen).values(status=status))
        if tx.on_postgres:
            tx.execute(sa.text("ANALYZE"))


def chain(length: int) -> Any:
    return dag("long", source("j0"), *(job(f"j{n}", reads=f"j{n - 1}") for n in range(1, length)))


def counting(state: State) -> tuple[LiveJob, dict[str, Any]]:
    of = live(deployed(state, COUNT), "c.count")
    return of, {"id": "mine", "edition_id": of.edition_id, "generation_id": of.inputs[0].generation_id}


def test_the_end_of_an_attempt_looks_only_at_what_was_read_once_more(state: State) -> None:
    _, row = counting(state)
    mine: Any = {"generation_id": row["generation_id"], "cursor_upto": 7, "revision": 1}
    plan = plans(state, lambda tx: completion._made_again(tx, row, mine, 6))  # pyright: ignore[reportPrivateUsage]
    assert "ix_tasks_again" in plan, plan
    assert "task_inputs" not in plan, "nothing was read once more, so nothing is asked of it"


def test_whether_a_rebuild_may_go_on_is_asked_of_partial_indexes(state: State) -> None:
    """However many tasks there are: of those that are open and of nothing else."""
    crowd(state)
    shop = dag(
        "s", source("feed"), job("a", reads="feed"), job("b", reads=["feed", {"job": "a", "trigger": False}])
    )
    deployed(state, shop)
    staged(state, edited(shop, "a", config={"v": 2}))
    found = loaded(state)
    makers = [live(found, "s.feed"), live(found, "s.a", 2)]
    plan = plans(state, lambda tx: list(side_inputs.behind(tx, found, makers)))
    for index in ("ix_tasks_withheld", "ix_tasks_inflight", "ix_invalidations_unspread", "ix_tasks_failed"):
        assert index in plan, plan
    assert "ix_tasks_status" not in plan, plan


def test_what_reading_again_replaces_is_found_by_the_range(state: State) -> None:
    of, row = counting(state)
    task = wanted(state, of)[0]
    made = of.outputs[0]
    with state.write() as tx:
        pin = {"task_id": task, "position": 0, "partition_key": "", "dataset_id": of.inputs[0].dataset_id}
        pin |= {"generation_id": row["generation_id"], "cursor_after": 989, "cursor_upto": 995}
        tx.insert(schema.task_inputs, [pin])
        stored = {"dataset_id": made.dataset_id, "generation_id": made.generation_id, "cursor": 995}
        tx.insert(schema.commits, [stored | {"task_id": task, "attempt": 1, "committed_at": tx.now}])

    def found(tx: Tx, start: int) -> list[int]:
        again = row | {"invalidation_id": "i", "cursor": 1000, "start": start}
        return [each["cursor"] for each in replacing.segments(tx, again, made.generation_id)]

    with state.read() as tx:
        assert found(tx, 990) == [995]
        assert found(tx, 991) == [], "it has read more than is read again"
    plan = plans(state, lambda tx: found(tx, 990))
    assert "ix_task_inputs_ranges" in plan, plan
    assert "ix_commits_task_id" in plan, plan


def test_what_may_be_deleted_is_found_by_attempt_and_who_is_at_work_by_being_so(state: State) -> None:
    place = "/".join(["00000000-0000-5000-8000-000000000000"] * 3) + "/1"
    known = garbage._Place(*place.split("/")[:3], 1)  # pyright: ignore[reportPrivateUsage]

    def asked(tx: Tx) -> None:
        garbage._load_uses(tx, [known])  # pyright: ignore[reportPrivateUsage]
        garbage.judge(tx, JudgeRequest(prefixes=[place, "_manifests/x/1.json"], keep_s=0, dry_run=True))

    with noted(state) as said, state.read() as tx:
        asked(tx)
    # A stream has made very many commits: they are summed up where they are.
    of_commits = [
        statement for statement, _ in said if "commits" in statement and "committed_at >" not in statement
    ]
    assert all("GROUP BY" in each or "commits.revision IN" in each for each in of_commits), of_commits
    plan = plans(state, asked)
    for index in ("ix_commits_task_id", "ix_loans_made_by", "ix_tasks_late"):
        assert index in plan, plan
    for table in ("commits", "loans", "attempts", "task_inputs"):
        assert f"SCAN {table}" not in plan, plan
        assert f"Seq Scan on {table}" not in plan, plan


def test_invalidations_that_wait_for_their_readers_do_not_slow_those_to_come(state: State) -> None:
    first = invalidation._OPEN  # pyright: ignore[reportPrivateUsage]
    plan = plans(state, lambda tx: tx.execute(first, {"most": 1}).all())
    assert "ix_invalidations_unspread" in plan, plan


def test_a_page_of_tasks_comes_from_an_index(state: State) -> None:
    deployed(state, COUNT)
    crowd(state)
    questions: list[tuple[dict[str, Any], str]] = [
        ({"dag": "c"}, "ix_tasks_dag"),
        ({"dag": "c", "status": "failed"}, "ix_tasks_failed"),
        ({"dag": "c", "status": "failed", "superseded": True}, "ix_tasks_dag"),
        ({"dag": "c", "after": "2026-01-01T00:00:00+00:00/x"}, "ix_tasks_dag"),
        ({}, "ix_tasks_status"),
        ({"status": "failed"}, "ix_tasks_failed"),
        ({"status": "failed", "superseded": True}, "ix_tasks_status"),
        ({"dag": "c", "job": "count"}, "ix_tasks_edition"),
    ]
    for asked, index in questions:
        plan = plans(state, partial(operator_actions.list_tasks, **asked))
        assert index in plan, (asked, plan)
        assert "SCAN tasks" not in plan, (asked, plan)


def test_a_list_of_tasks_without_a_job_is_in_order_page_by_page(state: State) -> None:
    topology = deployed(state, chain(3))
    ids = {id_ for n in (1, 2) for id_ in wanted(state, live(topology, f"long.j{n}"), each=3)}
    with state.write() as tx:
        tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == min(ids)).values(status="failed"))
    seen: list[Any] = []
    after: str | None = None
    with state.read() as tx:
        while True:
            page = operator_actions.list_tasks(tx, dag="long", after=after, limit=2)
            seen += page.tasks
            after = page.after
            if after is None:
                break
        assert (
            operator_actions.list_tasks(tx, dag="long", limit=10).tasks
            == operator_actions.list_tasks(tx, limit=10).tasks
            == seen
        )
        assert operator_actions.list_tasks(tx, dag="other").tasks == []
    assert {each.id for each in seen} == ids
    assert seen == sorted(seen, key=lambda each: (each.created_at, each.id), reverse=True)


def test_tasks_are_counted_from_an_index_by_edition_and_status(state: State) -> None:
    of = live(deployed(state, COUNT), "c.count")
    crowd(state)
    wanted(state, of, each=3)
    plan = plans(state, lambda tx: backlog.counts(tx, [of.edition_id]))
    assert "ix_tasks_edition" in plan, plan


def test_attributes_are_looked_for_among_the_events_that_have_some(state: State) -> None:
    """A rebuild asks for those of every partition, and most events have none."""
    _, row = counting(state)
    feed(state, live(loaded(state), "c.feed"), "a")
    plan_ = plans(state, lambda tx: event_log.attributes(tx, row["generation_id"], ["a", "b"]))
    assert "ix_events_attributes" in plan_, plan_
    assert "ix_events_partition" not in plan_, plan_


def test_a_paused_dag_costs_as_many_statements_as_a_small_one(state: State) -> None:
    counts: list[int] = []
    for length in (2, 40):
        topology = deployed(state, chain(length)) if length == 2 else _next(state, chain(length))
        with state.write() as tx:
            pausing.pause(tx, "long", "a test", "ada")
        wanted(state, *topology.jobs.values(), each=2)
        assert release.tick(state, Limits()) == 0
        with noted(state) as asked:
            assert release.tick(state, Limits()) == 0
        counts.append(len(asked))
        with state.read() as tx:
            assert len(tx.all(sa.select(schema.holds))) == length
    assert counts[0] == counts[1]


def test_editions_that_may_go_are_counted_together(state: State) -> None:
    top = deployed(state, dag("wide", source("s"), *(job(f"j{n}", reads="s") for n in range(40))))
    jobs = [each for each in top.jobs.values() if each.job.source is None]
    wanted(state, *jobs, each=3)
    with noted(state) as asked, state.read() as tx:
        assert scans.due(tx, [each.edition_id for each in jobs], 2) == {each.edition_id: 2 for each in jobs}
        assert scans.earliest_withheld(tx).keys() == {each.edition_id for each in jobs}
    assert len([one for one, _ in asked if "RECURSIVE" in one]) == 2
    with noted(state) as asked:
        assert release.tick(state, Limits(), limit=40) == 40
    each_edition = len([one for one, _ in asked if one.startswith("SELECT tasks.id")])
    assert each_edition == 40, "to choose and lock them takes one statement for each edition"
    assert len(asked) < 40 + 40


def test_a_change_of_one_pipeline_reads_the_jobs_of_no_other(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        deployed(state, dag(f"other{n}", source("s"), job("t", reads="s")))
    read: list[str] = []
    live_job = version_jobs._live_job  # pyright: ignore[reportPrivateUsage]

    def noted_job(row: Any, *rest: Any) -> LiveJob:
        read.append(f"{row.dag}.{row.name}")
        return live_job(row, *rest)

    monkeypatch.setattr(version_jobs, "_live_job", noted_job)
    before = deployed(state, chain(3))
    assert set(read) == {"long.j0", "long.j1", "long.j2"}
    read.clear()
    with state.write() as tx:
        pausing.pause(tx, "other1", "a test", "ada")
    after = loaded(state)
    assert (after.epoch > before.epoch, read) == (True, []), "a pause writes no job"
    use_registry(state, DEFAULT)
    assert loaded(state) == after, "and what was kept is what is there"
    assert len(read) == 3 + 5 * 2


def test_jobs_that_were_written_anew_are_read_again(state: State) -> None:
    """A version that is deployed again after another has the same id, and may have other rows."""
    first, second = chain(2), edited(chain(2), "j1", config={"v": 2})
    for wanted_dag in (first, second, first, second):
        staged(state, wanted_dag)
        kept = loaded(state)
        use_registry(state, DEFAULT)
        assert loaded(state) == kept


def test_a_deploy_that_is_rolled_back_leaves_nothing_of_itself_in_memory(state: State) -> None:
    before = deployed(state, chain(2))

    def fail() -> None:
        with state.write() as tx:
            deploy.deploy(tx, chain(3), "", "tests", DEFAULT)
            assert len(topology.load(tx).jobs) == 3, "it sees what it has written"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert loaded(state) == before
    assert len(_next(state, chain(4)).jobs) == 4, "another at the same epoch is read"


def test_a_plan_looks_at_no_pipeline_that_its_data_does_not_reach(state: State) -> None:
    changed = edited(chain(4), "j2", config={"v": 2})
    deployed(state, chain(4))
    looked_at: list[int] = []
    for n in (0, 6):
        for each in range(n):
            deployed(state, dag(f"other{each}", source("s"), job("t", reads="s")))
        with state.read() as tx:
            needs = publishing._needs_downstream(topology.load(tx), plan(changed))  # pyright: ignore[reportPrivateUsage]
        looked_at.append(len(needs))
    assert looked_at == [4, 4]


def test_only_what_is_due_is_asked_whether_something_else_holds_it_back(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = deployed(state, chain(20))
    wanted(state, live(top, "long.j3"))
    asked: list[str] = []
    missing_reason = Registry.missing_reason

    def noted_reason(registry: Registry, of: Any) -> str | None:
        asked.append(of.name)
        return missing_reason(registry, of)

    monkeypatch.setattr(Registry, "missing_reason", noted_reason)
    assert release.tick(state, Limits()) == 1
    assert set(asked) == {"j3"}


def test_a_heartbeat_works_out_once_who_is_paused(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    top = deployed(state, chain(5))
    worked_out: list[int] = []
    paused_by = pressure.paused_by

    def counted(*given: Any) -> dict[str, str]:
        worked_out.append(1)
        return paused_by(*given)

    monkeypatch.setattr(pressure, "paused_by", counted)

    def paused(**tripped: str) -> set[str]:
        with state.write() as tx:
            tx.execute(sa.delete(schema.queues))
            filled = {"depth": 9, "oldest_s": 1.0, "tripped_at": tx.now, "measured_at": tx.now}
            tx.insert(schema.queues, [{"name": name, "reason": why, **filled} for name, why in tripped.items()])
        found: set[str] = set()
        for _ in range(3):
            with state.read() as tx:
                found = set(backpressure.paused(tx, topology.load(tx)))
        return found

    assert paused() == set()
    assert worked_out == []
    reactive = {
        edition for edition, each in top.jobs.items() if not each.job.is_source
    }  # People are always heard.
    assert paused(python="full") == reactive - {live(top, "long.j4").edition_id}
    assert len(worked_out) == 1
    assert paused(spark="full") == set()
    assert len(worked_out) == 2, "other queues"
    _next(state, dag("more", source("s"), job("t", reads="s")))
    assert paused(spark="full") == set()
    assert len(worked_out) == 3, "another topology"


def test_a_queue_gets_no_more_wake_ups_than_it_has_room_for(state: State) -> None:
    top = deployed(state, dag("wide", source("s"), job("a", reads="s"), job("b", reads="s")))
    a, b = live(top, "wide.a"), live(top, "wide.b")
    wanted(state, a, each=20)
    few = Limits(queue_depth=4)
    assert release.tick(state, few) == 4
    wanted(state, b, each=5)
    assert release.tick(state, few) == 0
    table = schema.tasks
    with state.read() as tx:
        holds = dict(tx.execute(sa.select(schema.holds.c.edition_id, schema.holds.c.reason)).all())
    full = "queue python is full: 4 wake-ups wait in it for a worker"
    assert holds == {a.edition_id: full, b.edition_id: full}
    with state.write() as tx:  # As if two had been claimed.
        first = sa.select(table.c.id).where(table.c.released_at.is_not(None)).limit(2)
        tx.execute(sa.update(table).where(table.c.id.in_(first.scalar_subquery())).values(status="running"))
    assert release.tick(state, few) == 2, "what is claimed makes room"
    with state.read() as tx:
        of_b = sa.select(sa.func.count()).where(
            table.c.edition_id == b.edition_id, table.c.released_at.is_not(None)
        )
        assert tx.value(of_b) == 1, "and who came late gets a share of it"


def _next(state: State, wanted_dag: Any) -> Any:
    from support.dispatcher.pipelines import loaded, staged

    staged(state, wanted_dag)
    return loaded(state)


FILL = """
INSERT INTO tasks (id, job_id, edition_id, logical_id, dag, job, operator, queue, dedupe_key, status, token, attempt,
    available_at, lease_s, retry_count, max_retries, deliveries, max_deliveries, cancel_requested, created_at,
    updated_at, released_at, completed_at, wakes)
SELECT 'task' || n, 'j', 'edition' || n % 7, 'l', 'd', 'j', 'o', 'q', 'k' || n, 'completed', 't', 1,
    now(), 60, 0, 3, 0, 4, false, now() + n * interval '1 second', now(), now(), now(), 1
FROM generate_series(1, 200000) AS n
"""


@pytest.mark.parametrize("empty", [False, pytest.param(True, marks=pytest.mark.long)], ids=["never", "empty"])
def test_partial_indexes_are_used_however_old_the_statistics_are(
    postgres_server: PostgresServer, empty: bool
) -> None:
    """Statistics that there are not, or are of an empty table; and then those of all that is there."""
    with opened(postgres_server.make_database(), Clock()) as state:
        with state.write() as tx:
            tx.execute(sa.text("ALTER TABLE tasks SET (autovacuum_enabled = false)"))
            if empty:
                tx.execute(sa.text("ANALYZE tasks"))
        with state.write() as tx:
            tx.execute(sa.text(FILL))
        check_scans(state)
        with state.write() as tx:
            tx.execute(sa.text("ANALYZE tasks"))
        check_scans(state)


def test_tasks_of_a_backfill_are_looked_up_by_key_in_a_database_of_any_locale(
    postgres_server: PostgresServer, state_clock: Clock
) -> None:
    url = postgres_server.make_database("template0 LOCALE 'C.UTF-8'")
    with opened(url, state_clock) as state:
        with state.write() as tx:
            tx.execute(sa.text(FILL))
            tx.execute(sa.text("UPDATE tasks SET dedupe_key = 'backfill:b:' || id WHERE id IN ('task1', 'task2')"))
            tx.execute(sa.text("ANALYZE tasks"))
        own = sa.select(schema.tasks.c.id).where(
            schema.tasks.c.edition_id == "edition1", scans.of_backfill(backfill_prefix("b"))
        )
        with state.read() as tx:
            assert len(tx.all(own)) == 1
        assert blocks_read(state, lambda tx: tx.all(own)) <= FEW_BLOCKS


def check_scans(state: State) -> None:
    for condition in (scans.WITHHELD_EDITIONS, scans.DEFERRED_EDITIONS, scans.FAILED_EDITIONS):
        assert blocks_read(state, partial(scans.distinct, condition=condition)) <= FEW_BLOCKS
    assert blocks_read(state, scans.earliest_withheld) <= FEW_BLOCKS
    assert blocks_read(state, partial(scans.due, editions=["edition1"], most=10)) <= FEW_BLOCKS


FEW_BLOCKS = 20  # The table has thousands.


def blocks_read(state: State, question: Callable[[Tx], Any]) -> int:
    """How many blocks of tables and indexes PostgreSQL reads for the answer, by whichever plan."""
    with noted(state) as asked, state.read() as tx:
        question(tx)
    blocks = 0
    with state.read() as tx:
        for statement, parameters in asked:
            if statement.startswith(("SELECT", "WITH")) and "FROM" in statement:
                explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
                [plan] = tx.connection.exec_driver_sql(explain, parameters).scalar_one()
                blocks += plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    return blocks
