"""Datasets as people see them: by name, with their generations, partitions and events. Reads only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.dispatcher import staleness, tallies, topology
from qo.dispatcher.contract.dataset import (
    DatasetAnswer,
    DatasetLine,
    DatasetsPage,
    GenerationAnswer,
    PartitionAnswer,
    PartitionsPage,
    StaleInput,
)
from qo.dispatcher.contract.event import DeliveryAnswer, EventAnswer, EventsPage
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound, UsageError

PAGE_MAX = 1000
GENERATIONS_MAX = 50  # Of those that are shown; older ones are history.
_OUTPUT = re.compile(r"(?P<dag>[^.@\[\]]+)\.(?P<job>[^.@\[\]]+)(\[(?P<output>\d{1,4})\])?\Z")
# Of a generation that several versions point to, the first of these counts.
_STATUS = ("active", "ready", "staged")


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
    """The dataset that a person means: its published name, or ``dag.job``, or ``dag.job[1]``.

    Raises NotFound, with how to write it.
    """
    found = tx.one(_refs().where(schema.publications.c.name == text))
    if found is None and (parsed := _OUTPUT.match(text)) is not None:
        table = schema.datasets
        output = int(parsed["output"] or 0)
        query = _refs().where(table.c.dag == parsed["dag"], table.c.job == parsed["job"], table.c.output == output)
        found = tx.one(query.order_by(schema.publications.c.name))
    if found is None:
        raise NotFound(
            f"there is no dataset {text!r}: give a published name, dag.job, or dag.job[1]; see qo dataset list"
        )
    return _ref(found)


def by_id(tx: Tx, ids: Iterable[str]) -> dict[str, DatasetRef]:
    query = _refs().where(schema.datasets.c.id.in_(sorted(set(ids)))).order_by(schema.publications.c.name.desc())
    return {row["id"]: _ref(row) for row in tx.all(query)}


def labels_of(tx: Tx, ids: Iterable[str]) -> dict[str, str]:
    """What people call datasets, by id."""
    return {id_: ref.label for id_, ref in by_id(tx, ids).items()}


def generation_of(tx: Tx, dataset_id: str) -> str | None:
    """The current generation; before the first cutover, the one that is being built."""
    table, pointers, versions = schema.datasets, schema.version_generations, schema.dag_versions
    query = (
        sa.select(pointers.c.generation_id, versions.c.status, versions.c.number)
        .select_from(table)
        .join(versions, sa.and_(versions.c.dag == table.c.dag, versions.c.status.in_(_STATUS)))
        .join(pointers, sa.and_(pointers.c.version_id == versions.c.id, pointers.c.dataset_id == table.c.id))
        .where(table.c.id == dataset_id)
    )
    found = sorted(tx.all(query), key=lambda row: (_STATUS.index(row["status"]), -row["number"]))
    return found[0]["generation_id"] if found else None


def chosen(tx: Tx, ref: DatasetRef, generation_id: str | None) -> str:
    """The generation that was named, or else the current one. Raises NotFound for one that the dataset has not."""
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
    """Raises NotFound for a partition that nobody can have read: neither committed nor announced."""
    for table in (schema.partitions, schema.events):
        same = (table.c.dataset_id == ref.id, table.c.generation_id == generation_id, table.c.partition_key == key)
        if tx.one(sa.select(table.c.dataset_id).where(*same).limit(1)) is not None:
            return
    raise NotFound(f"{ref.label} has no partition {key!r}: see qo dataset partitions {ref.label}")


def require_version(tx: Tx, ref: DatasetRef, generation_id: str, revision: int) -> None:
    """Raises NotFound for a revision that is yet to come. Commits of all datasets are counted together."""
    if revision > (tx.value(sa.select(sa.func.max(schema.commits.c.revision))) or 0):
        generations = schema.generations
        latest = tx.value(sa.select(generations.c.revision).where(generations.c.id == generation_id))
        said = "it has none" if latest is None else f"its latest is {latest}"
        raise NotFound(f"{ref.label} has no version {revision} yet: {said}; see qo dataset history {ref.label}")


def list_datasets(tx: Tx, dag: str | None = None, after: str | None = None, limit: int = 100) -> DatasetsPage:
    """All outputs of all jobs that were ever deployed, in order of DAG, job and output."""
    table, pointers, dags = schema.datasets, schema.version_generations, schema.dags
    current = sa.and_(pointers.c.dataset_id == table.c.id, pointers.c.version_id == dags.c.active_version_id)
    # A subquery for the page: a dataset that is published twice must not count twice.
    page = sa.select(table).order_by(table.c.dag, table.c.job, table.c.output).limit(_page(limit) + 1)
    if dag is not None:
        page = page.where(table.c.dag == dag)
    if after is not None:
        page = page.where(sa.tuple_(table.c.dag, table.c.job, table.c.output) > _place(after))
    rows = tx.all(page)
    refs = by_id(tx, [row["id"] for row in rows])
    pointing = (
        sa.select(table.c.id, pointers.c.generation_id)
        .join(dags, dags.c.name == table.c.dag)
        .join(pointers, current)
        .where(table.c.id.in_(list(refs)))
    )
    generations = {row["id"]: row["generation_id"] for row in tx.all(pointing)}
    lines = [_line(refs[row["id"]], generations.get(row["id"])) for row in rows[:limit]]
    last = lines[-1] if len(rows) > limit else None
    return DatasetsPage(datasets=lines, next=f"{last.dag}.{last.job}[{last.output}]" if last is not None else None)


def show_dataset(tx: Tx, text: str) -> DatasetAnswer:
    ref = resolve(tx, text)
    live = topology.load(tx)
    current = live.current.get(ref.id)
    table = schema.generations
    rows = tx.all(
        sa.select(table)
        .where(table.c.dataset_id == ref.id)
        .order_by(sa.case((table.c.id == (current or ""), 0), else_=1), table.c.created_at.desc())
        .limit(GENERATIONS_MAX)
    )
    pointing = _pointing(tx, [row["id"] for row in rows])
    readers = sorted({reader.job.name for reader in live.readers.get(ref.id, ())})
    return DatasetAnswer(
        dataset=_line(ref, current),
        generations=[_generation(row, current, pointing.get(row["id"], [])) for row in rows],
        readers=readers,
        events=tallies.counts(tx, ref.id).get(tallies.EVENTS, {}),
        stale=next((staleness.count_stale(tx, live, row) for row in rows if row["id"] == current), None),
    )


def list_partitions(
    tx: Tx,
    text: str,
    after: str | None = None,
    limit: int = 100,
    generation_id: str | None = None,
    *,
    stale: bool | None = None,
) -> PartitionsPage:
    """Committed partitions of a generation, unless told otherwise of the current one.

    ``stale``: only those that are, or only those that are not. Such a page ends after so many partitions were looked
    at, and may hold fewer than ``limit``, or none, though others follow.
    """
    ref = resolve(tx, text)
    generation = chosen(tx, ref, generation_id)
    size = _page(limit) if stale is None else PAGE_MAX
    found, looked_at, following = list[PartitionAnswer](), 0, after
    while True:
        page, following = _partitions_after(tx, ref, generation, following, size, stale)
        found += page
        looked_at += size
        if stale is None or following is None or len(found) >= limit or looked_at >= staleness.SCAN_MAX:
            break
    if len(found) > limit:
        found = found[:limit]
        following = found[-1].partition_key
    return PartitionsPage(dataset_id=ref.id, generation_id=generation, partitions=found, next=following)


def _partitions_after(
    tx: Tx, ref: DatasetRef, generation: str, after: str | None, limit: int, only: bool | None
) -> tuple[list[PartitionAnswer], str | None]:
    """One page in order of key, and the place of its last partition if there are more.

    ``only``: leave out those that are not stale, or those that are.
    """
    table = schema.partitions
    query = sa.select(table).where(table.c.dataset_id == ref.id, table.c.generation_id == generation)
    if after is not None:
        query = query.where(table.c.partition_key > after)
    rows = tx.all(query.order_by(table.c.partition_key).limit(limit + 1))
    following = rows[limit - 1]["partition_key"] if len(rows) > limit else None
    stale = _stale_inputs(tx, generation, [row["partition_key"] for row in rows[:limit]])
    found = [
        PartitionAnswer.model_validate(
            {
                **row,
                "files": len(row["files"] or ()),
                "stale": row["partition_key"] in stale,
                "stale_inputs": stale.get(row["partition_key"], []),
            }
        )
        for row in rows[:limit]
        if only is None or (row["partition_key"] in stale) is only
    ]
    return found, following


def _stale_inputs(tx: Tx, generation: str, keys: list[str]) -> dict[str, list[StaleInput]]:
    """What makes the stale ones among partitions stale, by key."""
    live = topology.load(tx)
    job = staleness.maker(tx, live, generation) if keys else None
    found = staleness.stale_partitions(tx, live, job, generation, keys) if job is not None else {}
    if job is None or not found:
        return {}
    return staleness.explain(tx, found, labels_of(tx, [each.dataset_id for each in job.inputs]))


def list_events(
    tx: Tx, text: str, before: int | None = None, limit: int = 100, partition_key: str | None = None
) -> EventsPage:
    """Events from new to old, each with what became of it. With a partition: those of the current generation."""
    ref = resolve(tx, text)
    table = schema.events
    query = sa.select(table).where(table.c.dataset_id == ref.id)
    if partition_key is not None:
        generation = generation_of(tx, ref.id) or ""
        query = query.where(table.c.generation_id == generation, table.c.partition_key == partition_key)
    if before is not None:
        query = query.where(table.c.seq < before)
    rows = tx.all(query.order_by(table.c.seq.desc()).limit(_page(limit) + 1))
    delivered = deliveries_of(tx, [row["seq"] for row in rows[:limit]])
    found = [
        EventAnswer.model_validate(
            {**row, "attributes": row["attributes"] or {}, "deliveries": delivered.get(row["seq"], [])}
        )
        for row in rows[:limit]
    ]
    return EventsPage(events=found, next=found[-1].seq if len(rows) > limit else None)


def deliveries_of(tx: Tx, seqs: Iterable[int]) -> dict[int, list[DeliveryAnswer]]:
    """What became of events at each of their readers, by event."""
    table = schema.deliveries
    wanted = sorted(seqs)
    rows = tx.all(sa.select(table).where(table.c.event_seq.in_(wanted)).order_by(table.c.event_seq))
    names = jobs_of(tx, {row["edition_id"] for row in rows})
    found: dict[int, list[DeliveryAnswer]] = {}
    for row in rows:
        dag, job = names.get(row["edition_id"], (None, None))
        answer = DeliveryAnswer.model_validate({**row, "dag": dag, "job": job})
        found.setdefault(row["event_seq"], []).append(answer)
    return found


def jobs_of(tx: Tx, editions: Iterable[str]) -> dict[str, tuple[str, str]]:
    """DAG and job by edition."""
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


def _line(ref: DatasetRef, generation: str | None) -> DatasetLine:
    return DatasetLine(
        id=ref.id, dag=ref.dag, job=ref.job, output=ref.output, name=ref.name, generation_id=generation
    )


def _page(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit must be between 1 and {PAGE_MAX}, not {limit}")
    return limit


def _place(after: str) -> sa.Tuple:
    parsed = _OUTPUT.match(after)
    if parsed is None:
        raise UsageError(f"{after!r} is no place to go on from: pass what the page before gave as next")
    return sa.tuple_(sa.literal(parsed["dag"]), sa.literal(parsed["job"]), sa.literal(int(parsed["output"] or 0)))


def _pointing(tx: Tx, generations: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Status and number of the versions that point to each generation."""
    pointers, versions = schema.version_generations, schema.dag_versions
    query = (
        sa.select(pointers.c.generation_id, versions.c.status, versions.c.number)
        .join(versions, versions.c.id == pointers.c.version_id)
        .where(pointers.c.generation_id.in_(generations))
        .order_by(versions.c.number)
    )
    found: dict[str, list[tuple[str, int]]] = {}
    for row in tx.all(query):
        found.setdefault(row["generation_id"], []).append((row["status"], row["number"]))
    return found


def _generation(row: Mapping[Any, Any], current: str | None, versions: list[tuple[str, int]]) -> GenerationAnswer:
    statuses = {status for status, _ in versions}
    status = next((word for word in _STATUS if word in statuses), "retired")
    return GenerationAnswer.model_validate(
        {
            **row,
            "status": "collected" if row["collected_at"] else "current" if row["id"] == current else status,
            "versions": [number for _, number in versions],
        }
    )
