"""Published datasets as open tables: which there are, and where their metadata is.

The namespace of a table is the pipeline that publishes it. A dataset that is not a table, for example one of JSON
files, has a record as well, which says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

_tables, _publications = schema.open_tables, schema.publications
_COLUMNS = (
    _tables.c.name,
    _tables.c.dag,
    _tables.c.dataset_id,
    _tables.c.table_uuid,
    _tables.c.metadata_location,
    _tables.c.metadata_version,
    _tables.c.revision,
    _tables.c.updated_at,
    _tables.c.problem,
    _tables.c.next_revision,
)
# A name that is no longer published has a row until the loop of tables removes it.
_PUBLISHED = sa.select(*_COLUMNS).join(
    _publications, sa.and_(_publications.c.name == _tables.c.name, _publications.c.dag == _tables.c.dag)
)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A published dataset as a table, or why it is none."""

    name: str
    dag: str
    dataset_id: str
    table_uuid: str
    metadata_location: str | None  # A URI or an absolute path; None: nothing was written yet.
    metadata_version: int
    revision: int | None  # That the branch "main" shows.
    updated_at: datetime
    problem: str | None  # Why it is not a table; None if it is one.
    next_revision: int | None = None  # That the branch "next" shows: of the version that is staged.


def list_tables(tx: Tx) -> list[TableRecord]:
    """Return all published datasets, by namespace and name."""
    return [_record(row) for row in tx.all(_PUBLISHED.order_by(_tables.c.dag, _tables.c.name))]


def find_table(tx: Tx, namespace: str, name: str) -> TableRecord | None:
    row = tx.one(_PUBLISHED.where(_tables.c.dag == namespace, _tables.c.name == name))
    return None if row is None else _record(row)


def list_namespaces(tx: Tx) -> list[str]:
    """Return the pipelines that publish something."""
    query = sa.select(_publications.c.dag).distinct().order_by(_publications.c.dag)
    return list(tx.execute(query).scalars())


def _record(row: sa.RowMapping) -> TableRecord:
    return TableRecord(**row)
