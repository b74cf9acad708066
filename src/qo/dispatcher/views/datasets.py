"""Read-only views of datasets: by name, with their generations, partitions and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from qo.api.contract.dataset import (
    DatasetAnswer,
    DatasetLine,
    DatasetsPage,
    GenerationAnswer,
    PartitionAnswer,
    PartitionsPage,
    StaleInput,
)
from qo.api.contract.event import DeliveryAnswer, EventAnswer, EventsPage
from qo.core.pipeline.row_diff import key_columns
from qo.core.pipeline.topology import Topology, VersionStatus
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.datasets import (
    GENERATION_STATUSES,
    OUTPUT,
    PAGE_MAX,
    DatasetRef,
    by_id,
    choose_generation,
    generation_of,
    jobs_of,
    labels_of,
    resolve,
)
from qo.dispatcher.views import dataset_schema, freshness_states, sinks, staleness
from qo.errors import UsageError
from qo.pipeline.operators.built_in import BUILT_IN

GENERATIONS_MAX = 50  # Generations that are shown, newest first.


def list_datasets(tx: Tx, dag: str | None = None, after: str | None = None, limit: int = 100) -> DatasetsPage:
    """List the outputs of all jobs that were ever deployed, in order of DAG, job and output."""
    table, pointers, dags = schema.datasets, schema.version_generations, schema.dags
    current = sa.and_(pointers.c.dataset_id == table.c.id, pointers.c.version_id == dags.c.active_version_id)
    # The page has a query of its own: a dataset that is published twice must not count twice.
    page = sa.select(table).order_by(table.c.dag, table.c.job, table.c.output).limit(_check_limit(limit) + 1)
    if dag is not None:
        page = page.where(table.c.dag == dag)
    if after is not None:
        page = page.where(sa.tuple_(table.c.dag, table.c.job, table.c.output) > _parse_place(after))
    rows = tx.all(page)
    refs = by_id(tx, [row["id"] for row in rows])
    current_query = (
        sa.select(table.c.id, pointers.c.generation_id)
        .join(dags, dags.c.name == table.c.dag)
        .join(pointers, current)
        .where(table.c.id.in_(list(refs)))
    )
    generations = {row["id"]: row["generation_id"] for row in tx.all(current_query)}
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
    versions = _versions_by_generation(tx, [row["id"] for row in rows])
    readers = sorted({reader.job.name for reader in live.readers.get(ref.id, ())})
    return DatasetAnswer(
        dataset=_line(ref, current),
        generations=[_generation(row, current, versions.get(row["id"], [])) for row in rows],
        readers=readers,
        events=tallies.counts(tx, ref.id).get(tallies.EVENTS, {}),
        stale=next((staleness.count_stale(tx, live, row) for row in rows if row["id"] == current), None),
        sinks=sinks.find_states(tx, ref.id),
        columns=None if current is None else dataset_schema.current_columns(tx, current),
        keys=_keys(live, ref.id, current),
        freshness=freshness_states.find_freshness(tx, live, ref.id),
    )


def _keys(live: Topology, dataset_id: str, current: str | None) -> list[str]:
    """Return the columns that are a key by the job of the current generation, or of one that is being built."""
    outputs = [
        (job.job, output)
        for job in live.makers.get(dataset_id, ())
        for output in job.outputs
        if output.dataset_id == dataset_id
    ]
    outputs.sort(key=lambda each: each[1].generation_id != current)
    keys = [
        key_columns(job, output.index, keeps_row_per_key=_keeps_row_per_key(job.operator))
        for job, output in outputs
    ]
    return next(filter(None, keys), list[str]())


def _keeps_row_per_key(operator: str) -> bool:
    spec = BUILT_IN.get(operator)
    return spec is not None and spec.keeps_row_per_key


def list_partitions(
    tx: Tx,
    text: str,
    after: str | None = None,
    limit: int = 100,
    generation_id: str | None = None,
    *,
    stale: bool | None = None,
) -> PartitionsPage:
    """List committed partitions of a generation; by default, of the current one.

    ``stale``: only stale ones, or only others. Such a page ends after a bounded number of partitions, so it may hold
    fewer than ``limit``, or none, although more follow.
    """
    ref = resolve(tx, text)
    generation = choose_generation(tx, ref, generation_id)
    size = _check_limit(limit) if stale is None else PAGE_MAX
    partitions, looked_at, following = list[PartitionAnswer](), 0, after
    while True:
        page, following = _partitions_after(tx, ref, generation, following, size, stale)
        partitions += page
        looked_at += size
        if stale is None or following is None or len(partitions) >= limit or looked_at >= staleness.SCAN_MAX:
            break
    if len(partitions) > limit:
        partitions = partitions[:limit]
        following = partitions[-1].partition_key
    return PartitionsPage(dataset_id=ref.id, generation_id=generation, partitions=partitions, next=following)


def _partitions_after(
    tx: Tx, ref: DatasetRef, generation: str, after: str | None, limit: int, only: bool | None
) -> tuple[list[PartitionAnswer], str | None]:
    """Return one page in order of key, and the key of its last partition if there are more.

    ``only``: True keeps stale partitions only, False the others.
    """
    table = schema.partitions
    query = sa.select(table).where(table.c.dataset_id == ref.id, table.c.generation_id == generation)
    if after is not None:
        query = query.where(table.c.partition_key > after)
    rows = tx.all(query.order_by(table.c.partition_key).limit(limit + 1))
    following = rows[limit - 1]["partition_key"] if len(rows) > limit else None
    stale = _stale_inputs(tx, generation, [row["partition_key"] for row in rows[:limit]])
    partitions = [
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
    return partitions, following


def _stale_inputs(tx: Tx, generation: str, keys: list[str]) -> dict[str, list[StaleInput]]:
    """Return the changed inputs of the stale ones of these partitions, by key."""
    live = topology.load(tx)
    job = staleness.live_writer(tx, live, generation) if keys else None
    changes = staleness.stale_partitions(tx, live, job, generation, keys) if job is not None else {}
    if job is None or not changes:
        return {}
    return staleness.explain(tx, changes, labels_of(tx, [each.dataset_id for each in job.inputs]))


def list_events(
    tx: Tx, text: str, before: int | None = None, limit: int = 100, partition_key: str | None = None
) -> EventsPage:
    """List events, newest first, with their deliveries. With a partition: only those of the current generation."""
    ref = resolve(tx, text)
    table = schema.events
    query = sa.select(table).where(table.c.dataset_id == ref.id)
    if partition_key is not None:
        generation = generation_of(tx, ref.id) or ""
        query = query.where(table.c.generation_id == generation, table.c.partition_key == partition_key)
    if before is not None:
        query = query.where(table.c.seq < before)
    rows = tx.all(query.order_by(table.c.seq.desc()).limit(_check_limit(limit) + 1))
    delivered = deliveries_of(tx, [row["seq"] for row in rows[:limit]])
    events = [
        EventAnswer.model_validate(
            {**row, "attributes": row["attributes"] or {}, "deliveries": delivered.get(row["seq"], [])}
        )
        for row in rows[:limit]
    ]
    return EventsPage(events=events, next=events[-1].seq if len(rows) > limit else None)


def deliveries_of(tx: Tx, seqs: Iterable[int]) -> dict[int, list[DeliveryAnswer]]:
    """Return the deliveries of each event to its readers."""
    table = schema.deliveries
    sorted_seqs = sorted(seqs)
    rows = tx.all(sa.select(table).where(table.c.event_seq.in_(sorted_seqs)).order_by(table.c.event_seq))
    names = jobs_of(tx, {row["edition_id"] for row in rows})
    deliveries: dict[int, list[DeliveryAnswer]] = {}
    for row in rows:
        dag, job = names.get(row["edition_id"], (None, None))
        answer = DeliveryAnswer.model_validate({**row, "dag": dag, "job": job})
        deliveries.setdefault(row["event_seq"], []).append(answer)
    return deliveries


def _line(ref: DatasetRef, generation: str | None) -> DatasetLine:
    return DatasetLine(
        id=ref.id, dag=ref.dag, job=ref.job, output=ref.output, name=ref.name, generation_id=generation
    )


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit must be between 1 and {PAGE_MAX}, not {limit}")
    return limit


def _parse_place(after: str) -> sa.Tuple:
    parsed = OUTPUT.match(after)
    if parsed is None:
        raise UsageError(f"{after!r} is not a page position: pass the next of the page before")
    return sa.tuple_(sa.literal(parsed["dag"]), sa.literal(parsed["job"]), sa.literal(int(parsed["output"] or 0)))


def _versions_by_generation(tx: Tx, generations: list[str]) -> dict[str, list[tuple[str, int]]]:
    """Return status and number of the versions that use each generation."""
    pointers, versions = schema.version_generations, schema.dag_versions
    query = (
        sa.select(pointers.c.generation_id, versions.c.status, versions.c.number)
        .join(versions, versions.c.id == pointers.c.version_id)
        .where(pointers.c.generation_id.in_(generations))
        .order_by(versions.c.number)
    )
    by_generation: dict[str, list[tuple[str, int]]] = {}
    for row in tx.all(query):
        by_generation.setdefault(row["generation_id"], []).append((row["status"], row["number"]))
    return by_generation


def _generation(row: Mapping[Any, Any], current: str | None, versions: list[tuple[str, int]]) -> GenerationAnswer:
    statuses = {status for status, _ in versions}
    status = next((word for word in GENERATION_STATUSES if word in statuses), VersionStatus.RETIRED)
    return GenerationAnswer.model_validate(
        {
            **row,
            "status": "collected" if row["collected_at"] else "current" if row["id"] == current else status,
            "versions": [number for _, number in versions],
        }
    )
