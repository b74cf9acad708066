"""On PostgreSQL, transactions take locks in one order, so that none waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from qo.api.contract.source import EmitAnswer
from qo.api.contract.task import Claimed, ClaimRequest, EventBody
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import claiming
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.engine.loops import invalidation, reaper, reconciler, release, router, source_monitor, sweeper
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.sources import emission
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, pausing, remaining
from qo.errors import QoError
from support.dispatcher.pipeline_tasks import (
    ROOT,
    beat,
    claimed,
    lapse,
    partition_task,
    row_of,
    succeed,
    tasks_of,
    woken,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer

T = TypeVar("T")


WITHIN_S = 30.0


SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
CHAIN = dag("shop", source("orders"), job("clean", reads="orders"), job("daily", reads="clean"))


@pytest.fixture
def state(postgres_server: PostgresServer, state_clock: Clock) -> Iterator[State]:
    """Only there: on SQLite there is one writer at a time, and one lock."""
    with opened(postgres_server.make_database(), state_clock) as database:
        yield database


class Threads:
    """Transactions side by side, each on a thread with a name."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pools: list[ThreadPoolExecutor] = []
        self._gates: list[threading.Event] = []

    def start(self, name: str, act: Callable[[], T]) -> Future[T]:
        pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pools.append(pool)
        return pool.submit(act)

    def stop_after(self, name: str, *words: str) -> tuple[threading.Event, threading.Event]:
        """Let that thread stand still after its first statement with these words: (it does, it may go on)."""
        stands, may_go = threading.Event(), threading.Event()
        self._gates.append(may_go)

        def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            mine = threading.current_thread().name.startswith(name)
            if mine and not stands.is_set() and all(word in statement for word in words):
                stands.set()
                assert may_go.wait(WITHIN_S)

        event.listen(self._state.engine, "after_cursor_execute", look)
        return stands, may_go

    def waiting(self) -> int:
        """How many transactions wait for a lock."""
        query = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
        with self._state.engine.connect() as connection:
            return int(connection.exec_driver_sql(query).scalar_one())

    def await_waiting(self, count: int) -> None:
        until = time.monotonic() + WITHIN_S
        while self.waiting() < count:
            assert time.monotonic() < until, f"{self.waiting()} transactions wait, not {count}"
            threading.Event().wait(0.01)

    def end(self) -> None:
        for gate in self._gates:
            gate.set()
        for pool in self._pools:
            pool.shutdown()


@pytest.fixture
def threads(state: State) -> Iterator[Threads]:
    side_by_side = Threads(state)
    yield side_by_side
    side_by_side.end()


def say(state: State, key: str, *partitions: str, edition_id: str | None = None) -> EmitAnswer:
    events = [EventBody(partition_key=each) for each in partitions]
    with state.write() as tx:
        return emission.emit(tx, "shop", "orders", key=key, events=events, by="tests", edition_id=edition_id)


def released_long_ago(state: State, clock: Clock) -> None:
    """A task of version 2 whose wake-up was lost."""
    deployed(state, SHOP)
    staged(state, edited(SHOP, "clean", config={"a": 1}))
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
    say(state, "k", "p")
    router.tick(state)
    release.tick(state, Limits(operators={}))
    clock.advance(10_000)
    with state.write() as tx:
        left_at = tx.now - timedelta(seconds=9_000)
        tx.execute(sa.update(schema.outbox).values(state="done", done_at=left_at))


def change(state: State, act: Callable[[Tx], T]) -> T:
    with state.write() as tx:
        return act(tx)


def rolled_back(state: State) -> None:
    change(state, lambda tx: cutover.rollback(tx, "shop", "tests"))


def released(state: State) -> list[str]:
    table = schema.tasks
    query = sa.select(table.c.id).where(table.c.status == "pending", table.c.released_at.is_not(None))
    return change(state, lambda tx: list(tx.execute(query.order_by(table.c.id)).scalars()))


def begun(state: State, task_id: str) -> Claimed:
    request = ClaimRequest(task_id=task_id, worker_id="w")
    answer = change(state, lambda tx: claiming.claim(tx, request, ROOT))
    assert isinstance(answer, Claimed)
    return answer


def test_the_sweeper_and_a_rollback_do_not_wait_crosswise(
    state: State, threads: Threads, state_clock: Clock
) -> None:
    released_long_ago(state, state_clock)
    has_tasks, may_go = threads.stop_after("sweeper", "FROM tasks", "FOR UPDATE")
    swept = threads.start("sweeper", lambda: sweeper.tick(state, 300.0))
    assert has_tasks.wait(WITHIN_S)
    back = threads.start("rollback", lambda: rolled_back(state))
    threads.await_waiting(1)
    may_go.set()
    assert swept.result(WITHIN_S) == 1
    back.result(WITHIN_S)


def test_emissions_for_two_editions_and_for_one_of_them_do_not_wait_crosswise(
    state: State, threads: Threads
) -> None:
    deployed(state, SHOP)
    staged(state, edited(SHOP, "orders", config={"a": 1}))
    editions = {each.edition_id for each in loaded(state).jobs.values() if each.name == "shop.orders"}
    assert len(editions) == 2
    say(state, "warm", "w")
    for number, edition in enumerate(sorted(editions)):
        counts, may_go = threads.stop_after(f"both{number}", "INTO tallies")
        both = threads.start(f"both{number}", lambda number=number: say(state, f"both{number}", "p"))
        assert counts.wait(WITHIN_S)
        one = threads.start(
            "one", lambda number=number, of=edition: say(state, f"one{number}", "p", edition_id=of)
        )
        threads.await_waiting(1)
        may_go.set()
        assert (both.result(WITHIN_S).accepted, one.result(WITHIN_S).accepted) == (2, 1)


def test_commits_of_different_partitions_go_side_by_side(
    state: State, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emissions, claims and completions of one dataset, while another transaction has all but committed its own."""
    # A share follows from the connection's process, so one in sixteen pairs of connections would have the same.
    share = {"slow": 0, "emit": 1}
    monkeypatch.setattr(
        Tx, "share", property(lambda tx: share.get(threading.current_thread().name.partition("_")[0], 2))
    )
    clean = live(deployed(state, SHOP), "shop.clean")
    say(state, "1", "p", "q", "r")
    slow, quick, third = (partition_task(state, clean, each) for each in ("p", "q", "r"))
    held, other = claimed(state, slow), claimed(state, quick)
    at_its_end, may_go = threads.stop_after("slow", "INTO tallies")
    announces, emitted = threads.stop_after("emit", "INTO tallies")
    first = threads.start("slow", lambda: succeed(state, held))
    assert at_its_end.wait(WITHIN_S)
    emission_ = threads.start("emit", lambda: say(state, "2", "s"))
    assert announces.wait(WITHIN_S)
    assert succeed(state, other).status == "completed"
    assert claimed(state, third).attempt == 1
    assert say(state, "3", "t").accepted == 1
    assert not first.done()
    may_go.set()
    emitted.set()
    assert first.result(WITHIN_S).status == "completed"
    assert emission_.result(WITHIN_S).accepted == 1
    with state.read() as tx:
        sizes = {row.id: (row.partitions, row.rows) for row in tx.execute(sa.select(schema.generations))}
    assert sizes[clean.outputs[0].generation_id] == (2, 20)


def test_of_two_that_create_a_partition_the_later_commit_has_the_later_revision(
    state: State, threads: Threads
) -> None:
    """Also if it had drawn a revision before the other had."""
    orders = live(deployed(state, SHOP), "shop.orders")
    draws, may_go = threads.stop_after("slow", "nextval")
    slow = threads.start("slow", lambda: say(state, "slow", "p", "q"))
    assert draws.wait(WITHIN_S)
    quick = say(state, "quick", "p")
    may_go.set()
    [slow_task], [quick_task] = slow.result(WITHIN_S).task_ids, quick.task_ids
    query = sa.select(schema.commits).order_by(schema.commits.c.revision)
    with state.read() as tx:
        commits = [row for row in tx.all(query) if row["partition_key"] == "p"]
        rows = {row["partition_key"]: row for row in tx.all(sa.select(schema.partitions))}
        sizes = tx.one(
            sa.select(schema.generations).where(schema.generations.c.id == orders.outputs[0].generation_id)
        )
    first, second = commits
    assert [first["task_id"], second["task_id"]] == [quick_task, slow_task]
    assert (first["replaced_by"], second["replaced_by"]) == (second["revision"], None)
    assert (rows["p"]["revision"], rows["p"]["task_id"]) == (second["revision"], slow_task)
    assert rows["q"]["task_id"] == slow_task
    assert sizes is not None
    assert sizes["partitions"] == 2


def test_a_reader_of_the_whole_waits_for_earlier_revisions_and_keeps_no_later_ones_out(
    state: State, threads: Threads
) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    generation = clean.outputs[0].generation_id
    held, other = (claimed(state, partition_task(state, clean, each)) for each in ("p", "q"))
    stands, may_go = threads.stop_after("slow", "INTO commits")
    slow = threads.start("slow", lambda: succeed(state, held))
    assert stands.wait(WITHIN_S)
    succeed(state, other)  # It has a later revision, and is visible first.

    def read() -> tuple[int | None, list[str]]:
        with state.write() as tx:
            upto = commit_locks.await_commits(tx, [generation])
            commits = schema.commits
            mine = sa.select(commits.c.partition_key).where(commits.c.generation_id == generation)
            seen = tx.execute(mine.where(commits.c.revision <= upto).order_by(commits.c.partition_key))
            return upto, list(seen.scalars())

    settled = threads.start("reader", read)
    threads.await_waiting(1)
    may_go.set()
    slow.result(WITHIN_S)
    upto, seen = settled.result(WITHIN_S)
    assert seen == ["p", "q"]
    with state.write() as tx:
        commit_locks.await_commits(tx, [generation])
        late = claimed(state, partition_task(state, clean, "r"))
        succeed(state, late)  # Beside the one who has settled.
    with state.read() as tx:
        last = tx.value(sa.select(schema.generations.c.revision).where(schema.generations.c.id == generation))
    assert upto is not None
    assert last > upto


def test_a_reader_that_is_cancelled_gives_its_connection_up_with_whatever_lock_it_holds(
    state: State, threads: Threads
) -> None:
    """It may have been cancelled while it held the lock that keeps everybody out, which the connection would keep."""
    generation = live(deployed(state, SHOP), "shop.clean").outputs[0].generation_id
    holds, may_go = threading.Event(), threading.Event()

    def commit() -> None:
        with state.write() as tx:
            commit_locks.acquire(tx, shared=[generation])
            holds.set()
            assert may_go.wait(WITHIN_S)

    def read() -> None:
        with state.write() as tx:
            commit_locks.await_commits(tx, [generation])

    slow = threads.start("slow", commit)
    assert holds.wait(WITHIN_S)
    reader = threads.start("reader", read)
    threads.await_waiting(1)
    with state.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        waiting = "SELECT pid, pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted"
        [(pid, _)] = connection.exec_driver_sql(waiting)
        with pytest.raises(QoError):
            reader.result(WITHIN_S)
        until = time.monotonic() + WITHIN_S
        while connection.exec_driver_sql(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}").one_or_none():
            assert time.monotonic() < until, "the connection was kept"
            threading.Event().wait(0.01)
    may_go.set()
    slow.result(WITHIN_S)
    with state.write() as tx:
        commit_locks.acquire(tx, alone=[generation])


def test_a_commit_with_an_earlier_revision_than_others_is_reconciled_and_counted_as_remaining(
    state: State, threads: Threads
) -> None:
    """The reconciler's mark never passes a revision that is not decided: what comes late is not taken for compared."""
    deployed(state, CHAIN)
    clean, daily = (live(loaded(state), f"shop.{name}") for name in ("clean", "daily"))
    held, other = (claimed(state, partition_task(state, clean, each)) for each in ("p", "q"))
    stands, may_go = threads.stop_after("slow", "INTO commits")
    slow = threads.start("slow", lambda: succeed(state, held))
    assert stands.wait(WITHIN_S)
    succeed(state, other)  # It has a later revision, and is visible first.
    with state.write() as tx:
        tx.execute(sa.update(schema.events).values(state="filtered"))  # As if nobody had heard of it.
    assert remaining_of(state, daily) == 1
    reconciling = threads.start("reconciler", lambda: reconciler.tick(state))
    threads.await_waiting(1)
    assert remaining_of(state, daily) == 1  # The mark waits, too.
    may_go.set()
    slow.result(WITHIN_S)
    reconciling.result(WITHIN_S)
    with state.write() as tx:
        tx.execute(sa.update(schema.events).values(state="filtered"))
    while reconciler.tick(state):
        pass
    assert remaining_of(state, daily) == 0
    assert {each["partition_key"] for each in tasks_of(state, daily)} == {"p", "q"}


def remaining_of(state: State, job: LiveJob) -> int:
    with state.read() as tx:
        return remaining.count_remaining(tx, [job])[job.edition_id]


def test_a_partition_that_is_being_claimed_is_replaced_after_that(state: State, threads: Threads) -> None:
    """So that its invalidation finds who has read the old one."""
    shop = deployed(state, SHOP)
    say(state, "1", "p")
    task = partition_task(state, live(shop, "shop.clean"), "p")
    change(state, lambda tx: woken(tx, task))
    pins, may_go = threads.stop_after("claim", "INTO task_inputs")
    asked = threads.start("claim", lambda: begun(state, task))
    assert pins.wait(WITHIN_S)
    again = threads.start("emit", lambda: say(state, "2", "p"))
    threads.await_waiting(1)
    may_go.set()
    asked.result(WITHIN_S)
    again.result(WITHIN_S)
    assert invalidation.tick(state) == 1
    table = schema.tasks
    with state.read() as tx:
        query = sa.select(sa.func.count()).where(table.c.job == "clean", table.c.invalidation_id.is_not(None))
        assert tx.value(query) == 1


def test_dispatchers_that_release_to_different_queues_do_not_wait_for_each_other(
    state: State, threads: Threads
) -> None:
    deployed(state, dag("shop", source("orders"), job("clean", reads="orders")))
    deployed(state, dag("lab", source("samples"), job("test", reads="samples", runtime="spark", operator="a:b")))
    say(state, "1", "p")
    router.tick(state)
    stands, may_go = threads.stop_after("first", "INTO outbox")
    first = threads.start("first", lambda: release.tick(state, Limits(queue_depth=10)))
    assert stands.wait(WITHIN_S)
    with state.write() as tx:
        emission.emit(tx, "lab", "samples", key="1", events=[EventBody(partition_key="p")], by="tests")
    router.tick(state)
    assert release.tick(state, Limits(queue_depth=10)) == 1
    assert not first.done()
    may_go.set()
    assert first.result(WITHIN_S) == 1
    assert len(released(state)) == 2


def test_the_limits_of_thousands_of_jobs_are_locked_by_few_locks(state: State) -> None:
    """One lock for each would be more than an answer has columns for, and in the end more than the database has room
    for."""
    names = {f"edition-{n}": {"queue:spark", f"job:shop.{n}"} for n in range(5_000)}
    with state.write() as tx:
        assert release.lock_names(tx, names) == names.keys()
        held = tx.connection.exec_driver_sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").scalar()
    assert held == release.LOCKS_MAX


def test_columns_that_two_add_at_once_are_all_kept(state: State, threads: Threads) -> None:
    clean = live(
        deployed(state, dag("shop", source("orders"), job("clean", reads="orders", drift="add"))), "shop.clean"
    )
    base, held, other = (claimed(state, partition_task(state, clean, each)) for each in ("o", "p", "q"))
    succeed(state, base, columns=[{"name": "id", "type": "bigint"}])
    columns = {name: [{"name": "id", "type": "bigint"}, {"name": name, "type": "string"}] for name in ("a", "b")}
    stands, may_go = threads.stop_after("first", "INTO commits")
    first = threads.start("first", lambda: succeed(state, held, columns=columns["a"], columns_seen=1))
    assert stands.wait(WITHIN_S)
    second = threads.start("second", lambda: succeed(state, other, columns=columns["b"], columns_seen=1))
    threads.await_waiting(1)
    may_go.set()
    first.result(WITHIN_S)
    second.result(WITHIN_S)
    with state.read() as tx:
        now = dataset_columns.as_of(tx, clean.outputs[0].generation_id)
    assert now is not None
    assert [each.name for each in now] == ["id", "a", "b"]


def test_who_changes_the_topology_is_not_passed_by_those_that_share_it(state: State, threads: Threads) -> None:
    def bumped() -> int:
        with state.write() as tx:
            return topology.bump(tx)

    def seen() -> int:
        with state.write() as tx:
            return topology.load(tx).epoch

    with state.write() as tx:
        before = topology.load(tx).epoch
        changed = threads.start("change", bumped)
        threads.await_waiting(1)
        assert topology.load(tx).epoch == before, "who shares it already may ask again"
        late = threads.start("late", seen)
        threads.await_waiting(2)
    assert changed.result(WITHIN_S) == before + 1
    assert late.result(WITHIN_S) == before + 1


def test_many_that_share_the_topology_never_keep_a_deploy_from_it(state: State, threads: Threads) -> None:
    enough = threading.Event()

    def share() -> None:
        while not enough.is_set():
            with state.write() as tx:
                topology.load(tx)
                tx.execute(sa.text("SELECT pg_sleep(0.01)")).close()

    sharing = [threads.start(f"share{number}", share) for number in range(6)]
    for _ in range(5):
        with state.write() as tx:
            topology.bump(tx)
    enough.set()
    for each in sharing:
        each.result(WITHIN_S)


@contextmanager
def wait_for(state: State, threads: Threads, clock: Clock, task_id: str) -> Iterator[datetime]:
    """Somebody has the row of the task, another transaction comes to wait for it, and 1,000 s pass."""
    with state.write() as tx:
        tx.one(tx.lock(sa.select(schema.tasks).where(schema.tasks.c.id == task_id)))
        yield tx.now + timedelta(seconds=1_000)
        threads.await_waiting(1)
        clock.advance(1_000)


def test_a_heartbeat_that_had_to_wait_renews_from_when_it_is_heard(
    state: State, threads: Threads, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, live(deployed(state, SHOP), "shop.clean"), "p"))
    with wait_for(state, threads, state_clock, held.work.task_id) as later:
        heard = threads.start("beat", lambda: beat(state, held))
    assert heard.result(WITHIN_S).lease_expires_at >= later + timedelta(seconds=60)


def test_a_claim_that_had_to_wait_gets_a_whole_lease(state: State, threads: Threads, state_clock: Clock) -> None:
    task = partition_task(state, live(deployed(state, SHOP), "shop.clean"), "p")
    change(state, lambda tx: woken(tx, task))
    with wait_for(state, threads, state_clock, task) as later:
        asked = threads.start("claim", lambda: begun(state, task))
    answer = asked.result(WITHIN_S)
    assert answer.lease_expires_at >= later + timedelta(seconds=60)
    assert row_of(state, task)["started_at"] >= later


@contextmanager
def in_order(state: State) -> Iterator[list[str]]:
    """Every transaction that asks for the topology does so before it locks or writes anything. Those seen so far."""
    touched: dict[int, str] = {}
    seen: list[str] = []

    def begin(connection: sa.Connection) -> None:
        touched.pop(id(connection.connection.dbapi_connection), None)

    def look(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
        key = id(connection.connection.dbapi_connection)
        if "pg_advisory_xact_lock" in statement:
            first = touched.get(key, "")
            assert not first or "pg_advisory" in first, f"locks before it asks for the topology: {first}"
            seen.append(statement)
        elif key in touched:
            return
        if "FOR UPDATE" in statement or "FOR SHARE" in statement or not statement.startswith(("SELECT", "WITH")):
            touched[key] = statement
        elif "pg_advisory_xact_lock" in statement:
            touched.setdefault(key, statement)

    event.listen(state.engine, "begin", begin)
    event.listen(state.engine, "before_cursor_execute", look)
    try:
        yield seen
    finally:
        event.remove(state.engine, "begin", begin)
        event.remove(state.engine, "before_cursor_execute", look)


def all_loops(state: State) -> None:
    for _ in range(3):
        source_monitor.tick(state)
        invalidation.tick(state)
        router.tick(state)
        reconciler.tick(state)
        reaper.tick(state)
        release.tick(state, Limits(operators={}))
        in_process.tick(state, ROOT)
        sweeper.tick(state, 0.0)


def test_the_topology_is_the_first_lock_of_every_transaction_that_takes_it(
    state: State, state_clock: Clock
) -> None:
    wanted = dag(
        "shop",
        source("orders"),
        source("feed", "always_on"),
        job("clean", reads="orders"),
        job("pass", reads="orders", runtime="dispatcher", operator="noop"),
        job("both", reads=["clean", "pass"], join="all"),
    )
    with in_order(state) as seen:
        deployed(state, wanted)
        say(state, "1", "p", "q")
        all_loops(state)
        held = [begun(state, each) for each in released(state)]
        for each in held[1:]:
            beat(state, each)
            if each.work.partition_key is not None:  # The source stays.
                succeed(state, each)
        state_clock.advance(61)
        lapse(state, held[0])
        all_loops(state)
        staged(state, edited(wanted, "clean", config={"a": 1}))
        say(state, "2", "p")
        all_loops(state)
        for cut in (
            lambda tx: cutover.mark_ready(tx, "shop", 2, "tests"),
            lambda tx: cutover.activate(tx, "shop", 2, "tests", force=True),
            lambda tx: pausing.pause(tx, "shop", "busy", "tests"),
            lambda tx: pausing.resume(tx, "shop", "tests"),
            lambda tx: cutover.rollback(tx, "shop", "tests"),
        ):
            change(state, cut)
            all_loops(state)
        for task in released(state):
            change(state, lambda tx, task=task: operator_actions.cancel(tx, task, "tests"))
            change(state, lambda tx, task=task: operator_actions.replay(tx, task, "tests"))
    assert len(seen) > 50
