"""On PostgreSQL, one statement for many rows does what a statement for each row would do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DataError

from qo.dispatcher.state.column_types import Instant, Json
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.state.row_sets import compile_row_set
from support.dispatcher.states import Clock, opened
from support.servers.postgres import PostgresServer

THINGS = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(20), nullable=False, unique=True),
    sa.Column("end", sa.Float),
    sa.Column("at", Instant()),
    sa.Column("said", Json()),
    sa.Column("is_so", sa.Boolean),
)
NEW = Prepared(sa.insert(THINGS).returning(THINGS.c.id, THINGS.c.seq))
ABSENT = Prepared(postgresql.insert(THINGS).on_conflict_do_nothing().returning(THINGS.c.id))
CHANGED = Prepared(
    sa.update(THINGS).where(THINGS.c.id == sa.bindparam("of"), THINGS.c.is_so).values(end=sa.bindparam("more"))
)
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"id": "a", "end": 0.1, "at": AT, "said": {"x": [None, "%s", ":name"]}, "is_so": True},
    {"id": "'; --", "end": None, "at": None, "said": None, "is_so": False},
    {"id": "é%(id)s", "end": -1e300, "at": AT, "said": "null", "is_so": None},
]


@pytest.fixture
def tx(postgres_server: PostgresServer, state_clock: Clock) -> Any:
    with opened(postgres_server.make_database(), state_clock) as state, state.write() as tx:
        THINGS.create(tx.connection)
        yield tx


def stored(tx: Tx) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ROWS[0]} for row in tx.all(sa.select(THINGS).order_by(THINGS.c.seq))]


def test_what_is_inserted_together_is_stored_as_it_was_given_and_in_order(tx: Tx) -> None:
    returned = tx.rows(NEW, *ROWS)
    assert stored(tx) == ROWS
    assert [id_ for id_, _ in returned] == [row["id"] for row in ROWS]


def test_rows_that_are_there_already_are_left_out(tx: Tx) -> None:
    tx.rows(NEW, ROWS[0])
    assert [id_ for (id_,) in tx.rows(ABSENT, *ROWS)] == [row["id"] for row in ROWS[1:]]


def test_each_row_is_changed_by_its_own_values(tx: Tx) -> None:
    tx.rows(NEW, *ROWS)
    changes = [{"of": row["id"], "more": 2.0 + at, "at": None} for at, row in enumerate(ROWS)]
    assert tx.do(CHANGED, *changes) == 1  # The others are not so.
    assert [(row["end"], row["at"]) for row in stored(tx)] == [(2.0, None), (None, None), (-1e300, AT)]


def test_a_text_that_is_too_long_is_refused_and_not_cut_off(tx: Tx) -> None:
    with pytest.raises(DataError, match="too long"), tx.savepoint():
        tx.rows(NEW, ROWS[0], {**ROWS[1], "id": "x" * 21})


def test_the_text_is_the_same_for_any_number_of_rows() -> None:
    compiled = compile_row_set(NEW.statement, list(ROWS[0]))
    assert compiled.text.count("jsonb_to_recordset") == 1
    assert "VALUES" not in compiled.text
