"""The rows of tables: what was written last, and what the next document is made from.

A row is changed only by whoever knows its version, so of two dispatchers one writes the next document, and the other
looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from qo.core.iceberg.table_state import TableState, listed
from qo.dispatcher.commits.retention import COLLECTION_LOCK
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tables.due_tables import DueTable, Head, table_uuid

_tables, _commits = schema.open_tables, schema.commits

# Building a statement takes longer than executing it, so these are built once.
_BY_NAME = (
    _tables.c.dag == sa.bindparam("of_dag"),
    _tables.c.name.in_(sa.bindparam("of_names", expanding=True, type_=sa.String)),
)
_LOADED = Prepared(sa.select(_tables).where(*_BY_NAME))
_CHANGED = Prepared(
    sa.update(_tables).where(*_BY_NAME, _tables.c.metadata_version == sa.bindparam("of_version", type_=sa.Integer))
)
_LOST = Prepared(
    sa.select(_commits.c.revision)
    .where(
        _commits.c.replaced_by > sa.bindparam("revision", type_=sa.BigInteger),
        _commits.c.generation_id == sa.bindparam("generation"),
        _commits.c.revision <= sa.bindparam("revision", type_=sa.BigInteger),
        _commits.c.collected_at.is_not(None),
    )
    .limit(1)
)
_DECODER = msgspec.msgpack.Decoder(TableState)
_ENCODER = msgspec.msgpack.Encoder()


class Outdated(Exception):
    """The table was changed meanwhile, or files of the version are gone: look again."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    versions: Mapping[str, int]  # By name: the fence of its row.
    state: TableState
    expire_before: datetime | None
    metadata_location: str | None
    hinted_version: int

    @property
    def version(self) -> int:
        return max(self.versions.values())


def load_table(tx: Tx, due: DueTable) -> StoredTable:
    """Return what was written last. Of a new table, nothing was."""
    rows = tx.mappings(_LOADED, {"of_dag": due.dag, "of_names": list(due.names)})
    ours = [row for row in rows if row["dataset_id"] == due.dataset_id]
    versions = {name: 0 for name in due.names} | {row["name"]: row["metadata_version"] for row in rows}
    latest = max(ours, key=lambda row: row["metadata_version"], default=None)
    contents = None if latest is None else latest["contents"]
    expire = [row["expire_before"] for row in ours if row["expire_before"] is not None]
    return StoredTable(
        versions=versions,
        state=decode_state(contents),
        expire_before=max(expire, default=None),
        metadata_location=None if latest is None else latest["metadata_location"],
        hinted_version=0 if latest is None else min(row["hinted_version"] for row in ours),
    )


def decode_state(contents: bytes | None) -> TableState:
    return TableState() if contents is None else _DECODER.decode(contents)


def add_rows(tx: Tx, due: DueTable) -> None:
    """Make rows for a new table, before its first file is written: files of a table without a row may be deleted."""
    rows = [
        {
            "dag": due.dag,
            "name": name,
            "dataset_id": due.dataset_id,
            "table_uuid": table_uuid(due.dataset_id),
            "metadata_version": 0,
            "hinted_version": 0,
            "updated_at": tx.now,
            "problem": "its table is about to be written",
        }
        for name in due.names
    ]
    tx.insert_absent(_tables, rows, _tables.c.name)  # Another dispatcher may make them at the same moment.


def store_table(
    tx: Tx, due: DueTable, stored: StoredTable, state: TableState, version: int, location: str
) -> None:
    """Store that a document was written. Raises Outdated, and then the transaction must not be committed."""
    tx.hold(COLLECTION_LOCK)
    if any(_has_lost_files(tx, head) for head in (due.main, due.next) if head is not None):
        raise Outdated
    values = {
        "metadata_location": location,
        "metadata_version": version,
        "problem": None,
        "listed": listed(state),
        "contents": _ENCODER.encode(state),
    }
    _store(tx, due, stored, values)


def store_problem(tx: Tx, due: DueTable, stored: StoredTable, problem: str) -> None:
    """Store why a dataset is not a table. Raises Outdated, and then the transaction must not be committed."""
    values: dict[str, Any] = {"metadata_location": None, "problem": problem, "listed": None, "contents": None}
    _store(tx, due, stored, values | {"metadata_version": stored.version, "hinted_version": stored.version})


def _store(tx: Tx, due: DueTable, stored: StoredTable, values: Mapping[str, Any]) -> None:
    heads = {"revision": _revision(due.main), "next_revision": _revision(due.next)}
    about = {"dataset_id": due.dataset_id, "table_uuid": table_uuid(due.dataset_id), "updated_at": tx.now}
    for version in sorted(set(stored.versions.values())):
        names = [name for name, its in stored.versions.items() if its == version]
        same = {"of_dag": due.dag, "of_names": names, "of_version": version}
        if tx.do(_CHANGED, {**same, **values, **heads, **about, "expire_before": None}) != len(names):
            raise Outdated


def store_hint(tx: Tx, due: DueTable, version: int) -> None:
    """Store that the hint for readers of files names this version."""
    same = {"of_dag": due.dag, "of_names": list(due.names), "of_version": version}
    tx.do(_CHANGED, {**same, "hinted_version": version})


def delete_rows(tx: Tx, names: Sequence[tuple[str, str]]) -> None:
    """Forget tables that are published no more."""
    published = schema.publications
    for dag, name in names:
        there = sa.exists().where(published.c.dag == dag, published.c.name == name)
        tx.execute(sa.delete(_tables).where(_tables.c.dag == dag, _tables.c.name == name, ~there))


def _revision(head: Head | None) -> int | None:
    return None if head is None else head.revision


def _has_lost_files(tx: Tx, head: Head) -> bool:
    """Whether files of this version were collected while it was written."""
    return bool(tx.rows(_LOST, {"revision": head.revision, "generation": head.generation_id}))
