"""Datasets by name and by id: which one a person means, its current generation, and what people call it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound

PAGE_MAX = 1000  # Rows of one page of an answer.
OUTPUT = re.compile(r"(?P<dag>[^.@\[\]]+)\.(?P<job>[^.@\[\]]+)(\[(?P<output>\d{1,4})\])?\Z")
# Of a generation that several versions point to, the first of these counts.
GENERATION_STATUSES = (VersionStatus.ACTIVE, VersionStatus.READY, VersionStatus.STAGED)


@dataclass(frozen=True, slots=True)
class DatasetRef:
    id: str
    dag: str
    job: str
    output: int
    name: str | None = None  # As it is published.

    @property
    def label(self) -> str:
        return self.name or (f"{self.dag}.{self.job}[{self.output}]" if self.output else f"{self.dag}.{self.job}")


def resolve(tx: Tx, text: str) -> DatasetRef:
    """Return the dataset with this published name, or written as ``dag.job`` or ``dag.job[1]``.

    Raises NotFound, with how to write it.
    """
    row = tx.one(_refs().where(schema.publications.c.name == text))
    if row is None and (parsed := OUTPUT.match(text)) is not None:
        table = schema.datasets
        output = int(parsed["output"] or 0)
        query = _refs().where(table.c.dag == parsed["dag"], table.c.job == parsed["job"], table.c.output == output)
        row = tx.one(query.order_by(schema.publications.c.name))
    if row is None:
        raise NotFound(
            f"there is no dataset {text!r}: give a published name, dag.job, or dag.job[1]; see qo dataset list"
        )
    return _ref(row)


def by_id(tx: Tx, ids: Iterable[str]) -> dict[str, DatasetRef]:
    query = _refs().where(schema.datasets.c.id.in_(sorted(set(ids)))).order_by(schema.publications.c.name.desc())
    return {row["id"]: _ref(row) for row in tx.all(query)}


def labels_of(tx: Tx, ids: Iterable[str]) -> dict[str, str]:
    """Return the names of datasets for people, by id."""
    return {id_: ref.label for id_, ref in by_id(tx, ids).items()}


def generation_of(tx: Tx, dataset_id: str) -> str | None:
    """Return the current generation or, before the first cutover, the one that is being built."""
    table, pointers, versions = schema.datasets, schema.version_generations, schema.dag_versions
    query = (
        sa.select(pointers.c.generation_id, versions.c.status, versions.c.number)
        .select_from(table)
        .join(versions, sa.and_(versions.c.dag == table.c.dag, versions.c.status.in_(GENERATION_STATUSES)))
        .join(pointers, sa.and_(pointers.c.version_id == versions.c.id, pointers.c.dataset_id == table.c.id))
        .where(table.c.id == dataset_id)
    )
    rows = sorted(tx.all(query), key=lambda row: (GENERATION_STATUSES.index(row["status"]), -row["number"]))
    return rows[0]["generation_id"] if rows else None


def choose_generation(tx: Tx, ref: DatasetRef, generation_id: str | None) -> str:
    """Return the given generation, or the current one. Raises NotFound for one of another dataset."""
    table = schema.generations
    if generation_id is None:
        current = generation_of(tx, ref.id)
        if current is None:
            raise NotFound(f"no version of {ref.dag} is live: {ref.label} has no current generation; name one")
        return current
    if tx.value(sa.select(table.c.dataset_id).where(table.c.id == generation_id)) != ref.id:
        raise NotFound(f"{ref.label} has no generation {generation_id!r}: see qo dataset show {ref.label}")
    return generation_id


def require_partition(tx: Tx, ref: DatasetRef, generation_id: str, key: str) -> None:
    """Raise NotFound for a partition that was neither committed nor announced."""
    for table in (schema.partitions, schema.events):
        same = (table.c.dataset_id == ref.id, table.c.generation_id == generation_id, table.c.partition_key == key)
        if tx.one(sa.select(table.c.dataset_id).where(*same).limit(1)) is not None:
            return
    raise NotFound(f"{ref.label} has no partition {key!r}: see qo dataset partitions {ref.label}")


def require_version(tx: Tx, ref: DatasetRef, generation_id: str, revision: int) -> None:
    """Raise NotFound for a revision that does not exist yet. Revisions count the commits of all datasets."""
    if revision > (tx.value(sa.select(sa.func.max(schema.commits.c.revision))) or 0):
        generations = schema.generations
        latest = tx.value(sa.select(generations.c.revision).where(generations.c.id == generation_id))
        latest_text = "it has none" if latest is None else f"its latest is {latest}"
        raise NotFound(
            f"{ref.label} has no version {revision} yet: {latest_text}; see qo dataset history {ref.label}"
        )


def jobs_of(tx: Tx, editions: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return DAG and job by edition."""
    jobs = schema.jobs
    query = sa.select(jobs.c.edition_id, jobs.c.dag, jobs.c.name).where(jobs.c.edition_id.in_(sorted(editions)))
    return {row["edition_id"]: (row["dag"], row["name"]) for row in tx.all(query.distinct())}


def _refs() -> sa.Select[*tuple[Any, ...]]:
    table, names = schema.datasets, schema.publications
    return sa.select(table.c.id, table.c.dag, table.c.job, table.c.output, names.c.name).outerjoin(
        names, names.c.dataset_id == table.c.id
    )


def _ref(row: sa.RowMapping) -> DatasetRef:
    return DatasetRef(row["id"], row["dag"], row["job"], row["output"], row["name"])
