"""The books of sinks: tables in the data's own database, changed in the transactions that change the data.

    qo.sinks              a row per table: the dataset it has, the generation it shows, and since which epoch
    qo.sink_generations   a row per generation of it: where its rows are, and as of which revision

A transaction that loads compares the revision in the books with the one that its step starts from. So a step that is
repeated, or comes late, changes nothing, whoever repeats it and however the first try ended.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from qo.core.pipeline.sink import STORAGE_SCHEMA
from qo.errors import Refused

Connection = psycopg.Connection[tuple[Any, ...]]

_LOCK = 0x716F73696E6B  # Of those who create the books; any number that nobody else uses.
_CREATE = """
CREATE SCHEMA IF NOT EXISTS qo;
CREATE TABLE IF NOT EXISTS qo.sinks (
    target text PRIMARY KEY,
    dataset_id text NOT NULL,
    generation_id text,
    epoch bigint NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS qo.sink_generations (
    target text NOT NULL REFERENCES qo.sinks ON DELETE CASCADE,
    generation_id text NOT NULL,
    storage bigint GENERATED ALWAYS AS IDENTITY,
    revision bigint NOT NULL DEFAULT 0,
    loaded_at timestamptz,
    PRIMARY KEY (target, generation_id)
);
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """The row of a table."""

    dataset_id: str
    generation_id: str | None  # What it shows; None: nothing yet.
    epoch: int


@dataclass(frozen=True, slots=True)
class GenerationEntry:
    storage: int  # The number in the name of its table.
    revision: int  # 0: nothing is loaded.


def create_books(connection: Connection) -> None:
    """Create the tables, unless they are there."""
    with connection.transaction():
        if connection.execute("SELECT to_regclass('qo.sink_generations')").fetchone() == (None,):
            # IF NOT EXISTS alone fails if two create at once.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
            connection.execute(cast("LiteralString", _CREATE))


def enter(connection: Connection, target: str, dataset_id: str) -> Entry:
    """Return the row of a table, made if it is missing and locked until the transaction ends.

    Raises LockNotAvailable if another loader has it, Refused if the table has another dataset.
    """
    connection.execute(
        "INSERT INTO qo.sinks (target, dataset_id) VALUES (%s, %s) ON CONFLICT DO NOTHING", [target, dataset_id]
    )
    row = connection.execute(
        "SELECT dataset_id, generation_id, epoch FROM qo.sinks WHERE target = %s FOR UPDATE NOWAIT", [target]
    ).fetchone()
    if row is None or row[0] != dataset_id:
        raise Refused(
            f"the table {target} has another dataset: name another table, or drop it and its row in qo.sinks"
        )
    return Entry(*row)


def enter_generation(connection: Connection, target: str, generation_id: str) -> GenerationEntry:
    """Return the row of a generation, made if it is missing. The row of its table is locked."""
    connection.execute(
        "INSERT INTO qo.sink_generations (target, generation_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        [target, generation_id],
    )
    row = connection.execute(
        "SELECT storage, revision FROM qo.sink_generations WHERE target = %s AND generation_id = %s",
        [target, generation_id],
    ).fetchone()
    assert row is not None
    return GenerationEntry(*row)


def record_revision(connection: Connection, target: str, generation_id: str, revision: int) -> None:
    connection.execute(
        "UPDATE qo.sink_generations SET revision = %s, loaded_at = now() WHERE target = %s AND generation_id = %s",
        [revision, target, generation_id],
    )


def record_shown(connection: Connection, target: str, generation_id: str | None, epoch: int) -> None:
    connection.execute(
        "UPDATE qo.sinks SET generation_id = %s, epoch = %s WHERE target = %s", [generation_id, epoch, target]
    )


def forget_generations(connection: Connection, target: str, needed: Collection[str]) -> list[int]:
    """Delete the rows of all generations but these, and return the numbers of their tables."""
    deleted = connection.execute(
        "DELETE FROM qo.sink_generations WHERE target = %s AND NOT generation_id = ANY(%s) RETURNING storage",
        [target, list(needed)],
    )
    return [storage for (storage,) in deleted.fetchall()]


def storage_name(target: str, storage: int) -> sql.Identifier:
    """Return the table that has the rows of a generation."""
    return sql.Identifier(STORAGE_SCHEMA, f"{target.rpartition('.')[2][:40]}_{storage}")
