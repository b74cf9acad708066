"""Which tables are to be brought up to date, and what they are to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.topology import Topology, VersionStatus
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import NO_VALUES, Prepared
from qo.dispatcher.state.row_sets import Values

SECONDS = 1.0  # Between two states of one table, …
PIECES_PER_S = 20_000  # … and a second more per so many pieces.

_tables, _publications, _generations = schema.open_tables, schema.publications, schema.generations

# Building a statement takes longer than executing it, so these are built once.
_RECORDS = Prepared(
    sa.select(
        _tables.c.dag,
        _tables.c.name,
        _tables.c.dataset_id,
        _tables.c.revision,
        _tables.c.next_revision,
        _tables.c.updated_at,
        _tables.c.metadata_version,
        _tables.c.hinted_version,
        _tables.c.expire_before,
    )
)
_NAMES = Prepared(sa.select(_publications.c.dag, _publications.c.name, _publications.c.dataset_id))
_SIZES = Prepared(
    sa.select(
        _generations.c.id, _generations.c.revision, _generations.c.partitions, _generations.c.segments
    ).where(_generations.c.id.in_(sa.bindparam("generations", expanding=True, type_=sa.String)))
)
_STAGED = (VersionStatus.STAGED, VersionStatus.READY)


@dataclass(frozen=True, slots=True)
class Head:
    """What a branch is to show."""

    generation_id: str
    revision: int


@dataclass(frozen=True, slots=True)
class DueTable:
    dag: str
    names: tuple[str, ...]  # Under which the dataset is published.
    dataset_id: str
    main: Head | None
    next: Head | None  # Of a version that is staged.

    @property
    def generations(self) -> set[str]:
        return {each.generation_id for each in (self.main, self.next) if each is not None}


def table_uuid(dataset_id: str) -> str:
    return derive_id("table", dataset_id)


def find_due(tx: Tx) -> tuple[list[DueTable], list[tuple[str, str]]]:
    """Return the tables that do not show what they should, and the names, by DAG, that are published no more."""
    live = topology.load(tx)
    names: dict[tuple[str, str], list[str]] = {}
    for dag, name, dataset in tx.rows(_NAMES):
        names.setdefault((dag, dataset), []).append(name)
    rows = {(row["dag"], row["name"]): row for row in tx.mappings(_RECORDS, NO_VALUES)}
    published = {(dag, name) for (dag, _), some in names.items() for name in some}
    staged = _staged_generations(live)
    heads, pieces = _heads(tx, {*live.current.values(), *staged.values()})
    due: list[DueTable] = []
    for (dag, dataset), some in sorted(names.items()):
        main, next_ = live.current.get(dataset), staged.get(dataset)
        table = DueTable(dag, tuple(sorted(some)), dataset, heads.get(main or ""), heads.get(next_ or ""))
        records = [rows.get((dag, name)) for name in table.names]
        if any(map(lambda row: _differs(row, table), records)) and _has_rested(
            tx, records, pieces.get(main or "", 0)
        ):
            due.append(table)
    return due, sorted(rows.keys() - published)


def _differs(row: Values | None, table: DueTable) -> bool:
    if row is None or row["dataset_id"] != table.dataset_id or row["expire_before"] is not None:
        return True
    main, next_ = (None if head is None else head.revision for head in (table.main, table.next))
    is_hinted = row["hinted_version"] == row["metadata_version"]
    return (row["revision"], row["next_revision"]) != (main, next_) or not is_hinted


def _has_rested(tx: Tx, rows: Iterable[Values | None], pieces: int) -> bool:
    ages = [
        (tx.now - row["updated_at"]).total_seconds() for row in rows if row is not None and row["metadata_version"]
    ]
    return all(age >= SECONDS + pieces / PIECES_PER_S or age < 0 for age in ages)


def _staged_generations(live: Topology) -> dict[str, str]:
    """Return the generation that is being built of each dataset, beside the current one."""
    return {
        output.dataset_id: output.generation_id
        for job in live.jobs.values()
        if job.status in _STAGED
        for output in job.outputs
        if live.current.get(output.dataset_id) != output.generation_id
    }


def _heads(tx: Tx, generations: Iterable[str]) -> tuple[Mapping[str, Head], Mapping[str, int]]:
    """Return the latest revision of each generation, and how many pieces it has."""
    heads: dict[str, Head] = {}
    pieces: dict[str, int] = {}
    for some in batches(sorted(generations)):
        for id_, revision, partitions, segments in tx.rows(_SIZES, {"generations": some}):
            if revision is not None:
                heads[id_] = Head(id_, revision)
            pieces[id_] = partitions + segments
    return heads, pieces
