"""Upgrade the tables of a state database to what this qo needs. Forward only, and all or nothing.

Several processes may start and upgrade at once: one does it, the others wait and find it done. Alembic is imported only
where a step is missing, since most starts need none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.state.drivers import is_busy
from qo.errors import Refused, Unavailable

_HERE = Path(__file__).parent / "migrations"
NAMED_MAX = 5  # Tables that a message names.
TURNS_MAX = 40  # Times that an upgrade waits for its turn, each as long as ``engines.BUSY_S``.
_VERSION_TABLE = sa.table("alembic_version", sa.column("version_num"))
_LOCK = 0x716F_6462  # Any number that nobody else locks in the same database.


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    current: str | None  # The last step taken; None: an empty database.
    head: str  # The last step that this qo knows.
    pending: tuple[str, ...]  # The steps from the one to the other.
    newer: bool  # Made by a later qo: we do not know its last step.

    @property
    def fits(self) -> bool:
        return self.current == self.head


def upgrade(state: State) -> tuple[str | None, str]:
    """Take all missing steps, and return the first and the last. Raises Refused if a later qo upgraded it."""
    for _ in range(TURNS_MAX):
        try:
            return _upgrade(state)
        except Unavailable as error:
            if not is_busy(error.__cause__):
                raise
            # Only SQLite gives up by itself, and an upgrade of a large database may hold its lock for longer than that.
    raise Unavailable("another process has held the state database for long: end it, and run qo db upgrade again")


def _upgrade(state: State) -> tuple[str | None, str]:
    with state.write() as tx:
        if tx.on_postgres:
            tx.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        before = _status(tx)
        if before.newer:
            raise _newer(before)
        if before.current is None:
            _require_ours(tx)
        if not before.fits:
            _take(tx.connection)
    return before.current, before.head


def require(state: State) -> None:
    """Raise Refused, with what to do, unless the tables are exactly those that this qo needs."""
    current = status(state)
    if current.newer:
        raise _newer(current)
    if not current.fits:
        at = f"is at step {current.current}" if current.current is not None else "has no tables"
        raise Refused(f"the state database {at} and this qo needs step {current.head}: run qo db upgrade")


def status(state: State) -> SchemaStatus:
    with state.read() as tx:
        return _status(tx)


def _status(tx: Tx) -> SchemaStatus:
    steps, current = _steps(), _current(tx.connection)
    newer = current is not None and current not in steps
    steps_taken = 0 if current is None or newer else steps.index(current) + 1
    return SchemaStatus(current, steps[-1], () if newer else steps[steps_taken:], newer)


@cache
def _steps() -> tuple[str, ...]:
    """Return all steps that this qo knows: their files are named NUMBER_NOUN."""
    return tuple(sorted(path.name.partition("_")[0] for path in (_HERE / "versions").glob("[0-9]*.py")))


def _current(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION_TABLE.name):
        return None
    return connection.execute(sa.select(_VERSION_TABLE.c.version_num)).scalar()


def _take(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_HERE).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _require_ours(tx: Tx) -> None:
    """Raise Refused for a database without our first step that has tables.

    On PostgreSQL, which several programs may share, only for tables with names that we need.
    """
    there = set(sa.inspect(tx.connection).get_table_names()) - {_VERSION_TABLE.name}
    theirs = sorted(there & schema.metadata.tables.keys() if tx.on_postgres else there)
    if theirs:
        raise Refused(
            f"the state database holds tables of something else: {', '.join(theirs[:NAMED_MAX])}; "
            "name another with QO_STATE"
        )


def _newer(current: SchemaStatus) -> Refused:
    return Refused(
        f"the state database is at step {current.current}, made by a later qo than this one, which knows steps "
        f"up to {current.head}: install the later qo here, or restore the backup from before its upgrade"
    )
