"""Tasks of an application's own transactions reach the queue exactly once, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

import qo
from qo import Options, RetryPolicy, outbox
from qo.errors import ConfigError, Unavailable, UsageError
from qo.outbox.relay import Relay, open_outbox
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.queue.submitter import PreparedTask
from qo.queue.task_document import read_document, write_document
from qo.store.memory import MemoryStore
from support.outbox_application import Application, has_tasks, inputs, relay_all
from support.stores.queues import all_tasks, until


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    made = Queue(MemoryStore())
    yield made
    await made.flush()


async def test_what_was_committed_is_submitted_and_what_was_rolled_back_is_not(
    application: Application, queue: Queue
) -> None:
    with closing(application.connect()) as connection:
        outbox.submit(connection, "echo", {"n": 1}, Options(max_retries=7, priority=2, timeout_s=90))
        connection.commit()
        outbox.submit(connection, "echo", {"n": 2})
        connection.rollback()
    assert await inputs(queue) == []
    relay = await relay_all(application, queue)
    (task,) = await all_tasks(queue.store)
    assert (task.input, task.max_retries, task.priority, task.timeout_seconds) == ({"n": 1}, 7, 2, 90)
    assert relay.counts.submitted == 1
    assert application.rows() == []


async def test_connections_and_sessions_of_sqlalchemy_take_part_too(
    application: Application, queue: Queue
) -> None:
    engine = sa.create_engine(application.sqlalchemy_url)
    with engine.begin() as connection:
        outbox.submit(connection, "echo", 1)
    with Session(engine) as session, session.begin():
        outbox.submit(session, "echo", 2)
    with Session(engine) as session:
        outbox.submit(session, "echo", 3)
        session.rollback()
    engine.dispose()
    await relay_all(application, queue)
    assert await inputs(queue) == [1, 2]


@pytest.mark.fast
async def test_an_asynchronous_connection_is_refused_and_not_silently_ignored(tmp_path: Path) -> None:
    class AsyncConnection:  # As that of SQLAlchemy: its methods only return coroutines.
        dialect = sa.create_engine("sqlite://").dialect

        async def exec_driver_sql(self, *_: Any) -> None: ...

        async def execute(self, *_: Any) -> None: ...

    with pytest.raises(UsageError, match="run_sync"):
        outbox.submit(AsyncConnection(), "echo")


async def test_a_statement_for_other_drivers_does_the_same(application: Application, queue: Queue) -> None:
    dialect = application.url.partition(":")[0]
    sql, values = outbox.statement("echo", "by hand", dialect=dialect)
    application.run(sql.replace("%s", "?"), *values)
    application.run("INSERT INTO qo_outbox (task) VALUES (?)", '{"type": "echo", "input": "raw"}')
    await relay_all(application, queue)
    assert await inputs(queue) == ["by hand", "raw"]


async def test_several_relays_at_once_submit_each_row_once(application: Application, queue: Queue) -> None:
    application.insert(*range(200))
    relays = await asyncio.gather(*(relay_all(application, queue, batch=7) for _ in range(4)))
    while application.rows():  # A relay that finds everything claimed ends before the others.
        await relay_all(application, queue)
    assert await inputs(queue) == sorted(range(200), key=str)
    assert sum(each.counts.submitted for each in relays) == 200


async def test_rows_of_a_group_are_submitted_in_their_order(application: Application) -> None:
    order: list[Any] = []

    class Noting(MemoryStore):
        def put(self, key: str, body: bytes, **how: Any) -> Any:
            if key.startswith("tasks/"):
                order.append(json.loads(body)["input"])
            return super().put(key, body, **how)

    queue = Queue(Noting())
    for n in range(20):
        application.insert(["a", n], group="a")
        application.insert(["b", n], group="b")
        application.insert(["-", n])
    await asyncio.gather(*(relay_all(application, queue) for _ in range(3)))
    while application.rows():
        await relay_all(application, queue)
    for group in ("a", "b"):
        assert [n for name, n in order if name == group] == list(range(20))
    assert len(order) == 60


async def test_a_row_that_can_never_be_submitted_is_parked_and_stops_no_other(
    application: Application, queue: Queue
) -> None:
    await queue.submit("echo", "first", Options(key="taken"))
    bad = ['{"input": 1}', "not json", '{"type": "echo", "retrys": 1}', '{"type": "echo", "key": "taken"}', "[]"]
    for each in bad:
        application.run("INSERT INTO qo_outbox (task, group_key) VALUES (?, 'g')", each)
    application.insert("good", group="g")
    relay = await relay_all(application, queue)
    assert relay.counts.parked == len(bad)
    assert await inputs(queue) == ["first", "good"]
    reasons = [row[2] for row in application.rows()]
    assert len(reasons) == len(bad)
    assert all(reasons)
    again = await relay_all(application, queue)
    assert (again.counts.submitted, again.counts.parked) == (0, 0)
    opened = open_outbox(application.url)
    assert [row.reason for row in opened.parked(100)] == reasons
    assert opened.count() == (0, len(bad))
    first = opened.parked(1)[0].id
    application.run("UPDATE qo_outbox SET task = ? WHERE id = ?", '{"type": "echo", "input": "mended"}', first)
    assert opened.retry([first]) == 1
    opened.close()
    await relay_all(application, queue)
    assert await inputs(queue) == ["first", "good", "mended"]


async def test_a_unique_task_of_an_outbox_is_submitted_once_and_not_parked(
    application: Application, queue: Queue
) -> None:
    once = Options(unique=qo.Unique(key="report"))
    with closing(application.connect()) as connection:
        for n in range(2):
            outbox.submit(connection, "echo", n, once)
        connection.commit()
    rows = application.run("SELECT id, key, task FROM qo_outbox ORDER BY id")
    relay = await relay_all(application, queue, batch=1)
    assert (relay.counts.submitted, relay.counts.parked) == (2, 0)
    (task,) = await all_tasks(queue.store)
    assert task.input == 0
    await queue.cancel(task.id)
    # As a relay leaves it that dies before it deletes the row.
    application.run("INSERT INTO qo_outbox (key, task) VALUES (?, ?)", *rows[0][1:])
    await relay_all(application, queue)
    assert len(await all_tasks(queue.store)) == 1


async def test_a_row_that_fails_in_an_unexpected_way_stops_no_other(
    application: Application, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = queue.prepare

    def fail_for_one(new: NewTask, now: datetime) -> PreparedTask:
        if new.input == "bad":
            raise OverflowError("a defect of ours")
        return prepare(new, now)

    monkeypatch.setattr(queue, "prepare", fail_for_one)
    application.insert("bad", "good")
    relay = await relay_all(application, queue)
    assert (relay.counts.submitted, relay.counts.postponed) == (1, 1)
    assert await inputs(queue) == ["good"]
    assert len(application.rows()) == 1


def test_an_application_needs_no_right_but_to_insert(request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue("postgres_server").make_database()
    role = f"shop_{url.rpartition('/')[2][-20:].partition('?')[0]}".replace("-", "_")
    with psycopg.connect(url, autocommit=True) as connection:
        outbox.create_table(connection)
        connection.execute(f"CREATE ROLE {role}".encode())
        connection.execute(f"GRANT INSERT ON qo_outbox TO {role}".encode())
        connection.execute(f"SET ROLE {role}".encode())
        outbox.submit(connection, "echo", 1)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT task FROM qo_outbox")
        connection.execute("RESET ROLE")
        count = connection.execute("SELECT count(*) FROM qo_outbox").fetchone()
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())
    assert count == (1,)


async def test_rows_wait_while_the_store_does_not_answer(application: Application) -> None:
    memory = MemoryStore()
    application.insert(1, 2, 3)

    class Down(MemoryStore):
        def put(self, key: str, body: bytes, **how: Any) -> Any:
            raise Unavailable("no answer")

    relay = await relay_all(application, Queue(Down()))
    assert relay.counts.postponed == 3
    assert len(application.rows()) == 3
    application.run("UPDATE qo_outbox SET claimed_until = NULL")
    queue = Queue(memory)
    await relay_all(application, queue)
    assert await inputs(queue) == [1, 2, 3]


async def test_a_relay_that_runs_moves_new_rows_soon(application: Application, queue: Queue) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(Relay(application.url, queue).run(stop))
    for n in range(3):
        await asyncio.to_thread(application.insert, n)
        await until(lambda n=n: has_tasks(queue, n + 1), within_s=15)
    stop.set()
    counts = await running
    assert counts.submitted == 3


def test_bad_input_is_refused_before_anything_is_written(application: Application) -> None:
    with closing(application.connect()) as connection:
        for wrong in (
            lambda: outbox.submit(connection, ""),
            lambda: outbox.submit(connection, "echo", {1, 2}),
            lambda: outbox.submit(connection, "echo", options=Options(priority=99)),
            lambda: outbox.submit(connection, "echo", table="x; DROP TABLE y"),
            lambda: outbox.submit(connection, "echo", options=Options(unique=qo.Unique())),
            lambda: outbox.submit(connection, "echo", options=Options(unique=qo.Unique(key="k", by=["input"]))),
            lambda: outbox.submit(object(), "echo"),
        ):
            with pytest.raises(UsageError):
                wrong()
        connection.rollback()
    assert application.rows() == []
    with pytest.raises(ConfigError):
        open_outbox("mysql://x")


@pytest.mark.fast
def test_a_database_without_the_table_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no database"):
        open_outbox(f"sqlite:{tmp_path / 'missing.db'}")
    sqlite3.connect(tmp_path / "empty.db").close()
    with pytest.raises(ConfigError, match="qo relay table"):
        open_outbox(f"sqlite:{tmp_path / 'empty.db'}").count()
    (tmp_path / "other").write_text("This is no database. " * 100)
    with pytest.raises(ConfigError, match="not a database"):
        open_outbox(f"sqlite:{tmp_path / 'other'}").count()
    with closing(sqlite3.connect(tmp_path / "alien.db")) as alien:
        alien.execute("CREATE TABLE qo_outbox (id INTEGER)")
    with pytest.raises(ConfigError, match="qo relay table"):
        open_outbox(f"sqlite:{tmp_path / 'alien.db'}").count()


def test_a_url_that_cannot_be_read_is_a_clear_error_without_its_password() -> None:
    with pytest.raises((ConfigError, Unavailable)) as caught:
        open_outbox("postgresql://shop:correct-horse@[::1/shop").count()
    assert "correct-horse" not in str(caught.value)


instants = st.integers(0, 10**9).map(lambda s: datetime.fromtimestamp(1_700_000_000 + s, UTC))
options = st.builds(
    Options,
    at=st.none() | instants,
    expires_in_s=st.none() | st.floats(1, 1e6),
    key=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
    timeout_s=st.none() | st.floats(0.001, 1e6),
    max_retries=st.integers(0, 1000),
    priority=st.integers(0, 9),
    max_reschedules=st.none() | st.integers(0, 9),
    retry_policy=st.builds(RetryPolicy, initial_interval_ms=st.integers(0, 1000), multiplier=st.floats(1, 9)),
)


@pytest.mark.fast
@given(options=options, input=st.none() | st.integers(-9, 9) | st.lists(st.text(st.characters(codec="utf-8"))))
def test_a_task_comes_back_from_its_document_as_it_was(options: Options, input: Any) -> None:
    new = NewTask("echo", input, options)
    back = read_document(json.loads(json.dumps(write_document(new))), "here")
    assert back == new
