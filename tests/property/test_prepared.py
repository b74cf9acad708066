"""What goes to the driver as text comes to the same as what SQLAlchemy carries out, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.dispatcher.state.column_types import Instant, Json
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.state.prepared import Prepared

TABLE = sa.Table(
    "things",
    sa.MetaData(),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("id", sa.String, nullable=False, unique=True),
    sa.Column("at", Instant()),
    sa.Column("said", Json()),
    sa.Column("is_so", sa.Boolean, nullable=False),
    sa.Column("n", sa.Integer),
)
# Without the number: PostgreSQL does not give out again what was rolled back.
ALL = Prepared(sa.select(*(each for each in TABLE.c if each.name != "seq")).order_by(TABLE.c.id))
SOME = Prepared(
    sa.select(TABLE.c.id, TABLE.c.at, TABLE.c.said)
    .where(TABLE.c.id.in_(sa.bindparam("ids", expanding=True)), TABLE.c.n > sa.bindparam("least"), TABLE.c.is_so)
    .order_by(TABLE.c.id)
    .limit(sa.bindparam("most"))
)
CHANGED = Prepared(sa.update(TABLE).where(TABLE.c.id == sa.bindparam("of"), TABLE.c.n.is_not(None)))
GROWN = Prepared(
    sa.update(TABLE)
    .where(TABLE.c.id.in_(sa.bindparam("ids", expanding=True)))
    .values(n=TABLE.c.n + 1, said=sa.bindparam("word"))
    .returning(TABLE.c.id, TABLE.c.at, TABLE.c.said, TABLE.c.is_so)
)

ids = st.sampled_from(["a", "b", "c", "d", "é", "'; --"])
words = st.none() | st.dictionaries(st.text(max_size=3), st.integers(-5, 5) | st.text(max_size=3), max_size=2)
moments = st.none() | st.datetimes(timezones=st.just(UTC))
rows = st.lists(
    st.fixed_dictionaries(
        {"id": ids, "at": moments, "said": words, "is_so": st.booleans(), "n": st.none() | st.integers(-9, 9)}
    ),
    max_size=5,
)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def state(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[State]:
    directory: Path = tmp_path_factory.mktemp("prepared")
    on_sqlite = request.param == "sqlite"
    server = None if on_sqlite else request.getfixturevalue("postgres_server")
    opened = open_state(f"sqlite:{directory / 'state.db'}" if server is None else server.make_database())
    TABLE.metadata.create_all(opened.engine)
    yield opened
    opened.close()


@contextmanager
def listened_to(state: State, *, really: bool) -> Iterator[None]:
    """Where somebody listens, SQLAlchemy carries everything out."""
    heard: list[str] = []

    def hear(_: Any, __: Any, statement: str, *___: Any) -> None:
        heard.append(statement)

    if really:
        sa.event.listen(state.engine, "before_cursor_execute", hear)
    yield
    if really:
        sa.event.remove(state.engine, "before_cursor_execute", hear)
    assert bool(heard) is really


class _Undone(Exception):
    pass


def everything(tx: Tx, given: list[dict[str, Any]], asked: list[str], word: Any, at: datetime | None) -> list[Any]:
    """What all statements answer, one after the other."""
    told: list[Any] = [tx.insert_absent(TABLE, given, returning=TABLE.c.id)]
    tx.insert(TABLE, [{"id": "last", "at": at, "said": word, "is_so": True, "n": 1}])
    tx.upsert(TABLE, {"seq": 1_000_000, "id": "first", "at": at, "said": word, "is_so": False, "n": None})
    told.append([dict(each) for each in tx.mappings(SOME, {"ids": [*asked, "last"], "least": -1, "most": 3})])
    told.append([tuple(each) for each in tx.rows(SOME, {"ids": [], "least": -1, "most": 3})])
    told.append(tx.do(CHANGED, *({"of": id_, "at": at, "is_so": True} for id_ in asked)))
    told.append(sorted(map(str, tx.rows(GROWN, {"ids": asked, "word": word}))))
    try:
        with tx.savepoint():
            tx.insert(TABLE, [{"id": "undone", "at": None, "said": None, "is_so": True, "n": 1}])
            raise _Undone
    except _Undone:
        pass
    return [*told, [tuple(each) for each in tx.rows(ALL)]]


@settings(max_examples=60, deadline=None)
@given(given=rows, asked=st.lists(ids, unique=True, max_size=4), word=words, at=moments)
def test_a_prepared_statement_does_what_sqlalchemy_would_do(
    state: State, given: list[dict[str, Any]], asked: list[str], word: Any, at: datetime | None
) -> None:
    told: list[Any] = []
    for really in (True, False):
        with listened_to(state, really=really), state.write() as tx:
            told.append(everything(tx, given, asked, word, at))
            tx.connection.get_transaction().rollback()  # type: ignore[union-attr]
    assert told[0] == told[1]


def test_a_value_that_is_missing_is_not_taken_for_nothing(state: State) -> None:
    with state.write() as tx:
        with pytest.raises(ValueError, match="a value is missing: most"):
            tx.rows(SOME, {"ids": ["a"], "least": 1})
        with pytest.raises(KeyError):
            tx.do(CHANGED, {"of": "a", "n": 1}, {"of": "b"})
