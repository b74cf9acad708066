from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from threading import Event

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

from qo.dispatcher.commits import generation_sums
from qo.dispatcher.commits.generation_sums import Sums
from qo.dispatcher.events import tallies
from qo.dispatcher.state import engines, migrations, scans, schema, topology
from qo.dispatcher.state.database import State, Tx, database_clock, open_state
from qo.dispatcher.state.drivers import is_busy
from qo.dispatcher.state.upgrade import require, status, upgrade
from qo.errors import Refused, Unavailable
from support.dispatcher.states import Clock
from support.servers.postgres import PostgresServer

PROCESS = """
import sys
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import open_state
from qo.dispatcher.state.upgrade import upgrade
state = open_state(sys.argv[1])
print(*upgrade(state))
for _ in range(40):
    with state.write() as tx:
        topology.bump(tx)
"""


@pytest.fixture
def empty(state_url: str):
    opened = open_state(state_url)
    yield opened
    opened.close()


def test_the_migrations_make_the_tables_that_the_code_means(empty: State) -> None:
    upgrade(empty)
    with empty.engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, schema.metadata) == []


def test_migrated_and_created_databases_have_the_same_indexes(empty: State) -> None:
    """Comparing metadata overlooks the conditions of partial indexes."""
    upgrade(empty)
    made = _indexes(empty)
    with empty.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE alembic_version"))
        schema.metadata.drop_all(connection)
        schema.metadata.create_all(connection)
    assert made == _indexes(empty)
    assert any("WHERE" in text for text in made)


def test_an_upgrade_seeds_the_one_row_and_says_from_where_to_where(empty: State) -> None:
    before = status(empty)
    assert (before.current, before.newer, before.fits) == (None, False, False)
    assert upgrade(empty) == (None, before.head)
    with empty.read() as tx:
        assert topology.load(tx).epoch == 0
    require(empty)


def test_upgrading_twice_changes_nothing(empty: State) -> None:
    upgrade(empty)
    with empty.write() as tx:
        topology.bump(tx)
    head = status(empty).head
    assert upgrade(empty) == (head, head)
    with empty.read() as tx:
        assert tx.value(sa.select(sa.func.count()).select_from(schema.topology)) == 1
        assert topology.load(tx).epoch == 1


def test_an_upgrade_goes_on_from_where_an_older_one_stopped(empty: State) -> None:
    upgrade_to(empty, "0003")
    last = status(empty).head
    steps = {each.name[:4] for each in Path(migrations.__file__).parent.glob("versions/[0-9]*.py")}
    pending = status(empty).pending
    # In the order of the chain, which need not be that of the numbers.
    assert (set(pending), len(pending)) == (steps - {"0001", "0002", "0003"}, len(steps) - 3)
    assert pending[-1] == last
    with pytest.raises(Refused, match=r"at step 0003.*qo db upgrade"):
        require(empty)
    assert upgrade(empty) == ("0003", last)
    require(empty)


CANCELLED_BEFORE_CODES = {
    "its effects were made by an earlier edition": "effects_made",
    "another edition is at work on its effects": "effects_deferred",
    "its effects were called off at another edition": "effects_called_off",
    "version 12 of shop was rolled back": "version_given_up",
    "version 2 of shop was abandoned": "version_given_up",
    "Version 2 of shop WAS abandoned": None,
    "version 2 of shop was abandoned by mistake": None,
    "the version was rolled back": None,
    " was rolled back": None,
    "": None,
    None: None,
}


def test_an_upgrade_turns_the_sentences_that_code_once_selected_by_into_codes(empty: State) -> None:
    upgrade_to(empty, "0005")
    values = {
        **dict.fromkeys(("job_id", "edition_id", "logical_id", "dag", "job", "operator", "queue"), "x"),
        **dict.fromkeys(("attempt", "lease_s", "retry_count", "max_retries", "deliveries", "max_deliveries"), 0),
        **dict.fromkeys(("available_at", "created_at", "updated_at"), "2026-01-01 00:00:00"),
        **{"status": "cancelled", "token": "t", "cancel_requested": True, "wakes": 0},
    }
    with empty.write() as tx:
        for number, reason in enumerate(CANCELLED_BEFORE_CODES):
            row = values | {"id": f"t{number}", "dedupe_key": str(number), "cancel_reason": reason}
            places = ", ".join(f":{name}" for name in row)
            tx.execute(sa.text(f"INSERT INTO tasks ({', '.join(row)}) VALUES ({places})"), row)
    assert upgrade(empty) == ("0005", status(empty).head)
    tasks = schema.tasks
    with empty.read() as tx:
        kept = {row.cancel_reason: row.cancel_code for row in tx.execute(sa.select(tasks))}
        deferred = scans.distinct(tx, scans.DEFERRED_EDITIONS)
    assert (kept, deferred) == (CANCELLED_BEFORE_CODES, ["x"])


def test_an_upgrade_keeps_counts_and_sums_when_they_become_shares(empty: State) -> None:
    upgrade_to(empty, "0006")
    dataset = {"id": "d", "dag": "shop", "job": "clean", "output": 0, "created_at": "2026-01-01 00:00:00"}
    generation = {"id": "g", "dataset_id": "d", "edition_id": "e", "config_hash": "c", "partitions": 3, "rows": 30}
    generation |= {"created_at": "2026-01-01 00:00:00", "revision": 7}
    tally = {"dataset_id": "d", "edition_id": "", "outcome": "pending", "n": 5}
    with empty.write() as tx:
        for table, row in (("datasets", dataset), ("generations", generation), ("tallies", tally)):
            places = ", ".join(f":{name}" for name in row)
            tx.execute(sa.text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})"), row)
    upgrade(empty)
    added = Sums()
    added.add_revision("g", 9)
    added["g", "partitions"] = 1
    with empty.write() as tx:
        tallies.add(tx, {("d", "", "pending"): -2})
        generation_sums.add(tx, added)
    with empty.read() as tx:
        assert tallies.counts(tx, "d") == {"": {"pending": 3}}
        kept = tx.one(sa.select(schema.generations))
    assert kept is not None
    assert (kept["partitions"], kept["rows"], kept["revision"]) == (4, 30, 9)


def upgrade_to(state: State, step: str) -> None:
    """Leave the database as a release did whose last step this was."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with state.write() as tx:
        config.attributes["connection"] = tx.connection
        command.upgrade(config, step)


def test_a_database_of_a_later_qo_is_refused_and_left_alone(empty: State) -> None:
    upgrade(empty)
    with empty.write() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    for attempt in (require, upgrade):
        with pytest.raises(Refused, match=r"9999.*later qo"):
            attempt(empty)
    assert status(empty).newer


def test_an_empty_database_is_refused_with_what_to_do(empty: State) -> None:
    with pytest.raises(Refused, match=r"has no tables.*qo db upgrade"):
        require(empty)


def test_a_database_without_its_one_row_says_what_to_do(state: State) -> None:
    with state.write() as tx:
        tx.execute(sa.delete(schema.topology))
    with state.read() as tx, pytest.raises(Unavailable, match="qo db upgrade"):
        topology.load(tx)


def test_threads_that_upgrade_at_once_upgrade_once(state_url: str) -> None:
    opened = [open_state(state_url) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        took = list(threads.map(upgrade, opened))
    assert [before for before, _ in took].count(None) == 1
    require(opened[0])
    for each in opened:
        each.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_upgrade_and_write_at_once_upgrade_once_and_lose_no_write(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    postgres = request.getfixturevalue("postgres_server") if kind == "postgres" else None
    url = postgres.make_database() if postgres is not None else f"sqlite:{tmp_path / 'state.db'}"
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS, url], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate(timeout=90)[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert [before for before, _ in said].count("None") == 1
    state = open_state(url)
    with state.read() as tx:
        assert topology.load(tx).epoch == 3 * 40
    state.close()


def test_threads_that_read_and_write_at_once_wait_for_each_other_and_fail_never(state: State) -> None:
    def work(_: int) -> None:
        for _ in range(20):
            with state.write() as tx:
                topology.bump(tx)
            with state.read() as tx:
                assert topology.load(tx).epoch > 0

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    with state.read() as tx:
        assert topology.load(tx).epoch == 160


@pytest.mark.fast
def test_an_upgrade_waits_for_one_that_takes_longer_than_sqlite_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "BUSY_S", 0.01)
    monkeypatch.setattr("qo.dispatcher.state.upgrade.TURNS_MAX", 100_000)
    busy, waiting = (open_state(f"sqlite:{tmp_path / 'state.db'}") for _ in range(2))
    was_refused = Event()

    def note(error: BaseException | None) -> bool:
        was_refused.set()
        return is_busy(error)

    monkeypatch.setattr("qo.dispatcher.state.upgrade.is_busy", note)
    with ThreadPoolExecutor(1) as threads:
        with busy.write():
            upgraded = threads.submit(upgrade, waiting)
            assert was_refused.wait(60)
        assert upgraded.result() == (None, status(waiting).head)
    busy.close()
    waiting.close()


def test_an_upgrade_that_fails_leaves_nothing(empty: State) -> None:
    with empty.write() as tx:
        tx.execute(sa.text("CREATE VIEW api_tokens AS SELECT 1 AS id"))  # In the way of the last step.
    with pytest.raises(Exception, match="already exists"):
        upgrade(empty)
    with empty.engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == []


def _indexes(state: State) -> list[str]:
    query = (
        "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' AND indexname NOT LIKE 'alembic%'"
        if state.engine.dialect.name == "postgresql"
        else "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    )
    with state.engine.connect() as connection:
        return sorted(" ".join(text.split()) for text in connection.execute(sa.text(query)).scalars())


def test_the_time_is_known_without_a_transaction_where_the_database_has_no_clock_of_its_own(
    state_url: str, tmp_path: Path
) -> None:
    own = open_state(state_url)
    if own.engine.dialect.name == "sqlite":
        with own.read() as tx:
            before = tx.now
        now = own.now()
        assert now is not None
        assert before <= now
        assert now.microsecond % 1000 == 0, "as it is kept"
    else:
        assert own.now() is None
    own.close()
    moved = open_state(f"sqlite:{tmp_path / 'moved.db'}", clock=Clock())
    assert moved.now() is None, "somebody else says what time it is"
    moved.close()


@pytest.mark.fast
@pytest.mark.parametrize(("durable", "level"), [(False, 1), (True, 2)])
def test_a_state_on_sqlite_waits_for_the_disk_if_that_is_set(tmp_path: Path, durable: bool, level: int) -> None:
    state = open_state(f"sqlite:{tmp_path}/state.db", durable=durable)
    with state.write() as tx:
        assert tx.value(sa.text("PRAGMA synchronous")) == level  # pyright: ignore
    state.close()


def test_a_transaction_that_wants_no_time_asks_for_none(state: State) -> None:
    asked = 0

    def clock(connection: sa.Connection) -> datetime:
        nonlocal asked
        asked += 1
        return database_clock(connection)

    counting = State(state.engine, clock=clock)
    with counting.read() as tx:
        topology.load(tx)
    assert asked == 0
    with counting.write() as tx:
        assert tx.now == tx.now
    assert asked == 1


def test_a_connection_that_broke_while_it_rested_is_replaced_before_it_is_used(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = open_state(postgres_server.make_database())
    try:
        broken = end_connection(state)
        monkeypatch.setattr(engines, "IDLE_S", 0.0)
        with state.read() as tx:
            assert pid_of(tx) != broken
        end_connection(state)
        monkeypatch.setattr(engines, "IDLE_S", 3600.0)
        with (
            pytest.raises(Unavailable),
            state.read() as tx,
        ):  # It did not rest: whoever gets it is told to ask again.
            pid_of(tx)
        with state.read() as tx:
            pid_of(tx)
    finally:
        state.close()


def end_connection(state: State) -> int:
    """Use one, and have the server end it afterwards."""
    with state.read() as tx:
        pid = pid_of(tx)
    with psycopg.connect(state.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    return pid


def pid_of(tx: Tx) -> int:
    return int(tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
