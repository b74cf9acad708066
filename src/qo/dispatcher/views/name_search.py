"""Search over everything that has a name: pipelines, jobs, datasets, partitions and tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sqlalchemy as sa

from qo.api.contract.first_pages import SearchAnswer, SearchHit
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound

_TASK = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_tasks, _partitions = schema.tasks, schema.partitions


def search(tx: Tx, text: str, limit: int = 20) -> SearchAnswer:
    """Find what contains the text, whatever its case; what begins with it comes first.

    ``DATASET@KEY`` finds partitions that begin with the key, and the id of a task finds the task.
    """
    needle = text.strip()
    if _TASK.fullmatch(needle.lower()):
        return SearchAnswer(hits=_find_task(tx, needle.lower()))
    live = topology.load(tx)
    name, at, key = needle.partition("@")
    if at:
        hits = _find_partitions(tx, name, key, limit + 1)
    else:
        hits = sorted(_find_names(tx, live, needle.lower()), key=lambda hit: _rank(hit, needle.lower()))
    return SearchAnswer(hits=hits[:limit], more=len(hits) > limit)


def _rank(hit: SearchHit, needle: str) -> tuple[object, ...]:
    last = hit.name.lower().rpartition(".")[2]
    return (
        not last.startswith(needle),
        not hit.name.lower().startswith(needle),
        len(hit.name),
        hit.name,
        hit.kind,
    )


def _find_names(tx: Tx, live: Topology, needle: str) -> Iterator[SearchHit]:
    for dag in tx.execute(sa.select(schema.dags.c.name)).scalars():
        if needle in dag.lower():
            yield SearchHit(kind="pipeline", name=dag, dag=dag)
    listed: set[str] = set()
    for job in live.jobs.values():
        if job.name not in listed and needle in job.name.lower():
            listed.add(job.name)
            yield SearchHit(kind="job", name=job.name, about=_describe(job), dag=job.dag, job=job.job.name)
    names, owners = schema.publications, schema.datasets
    query = sa.select(names.c.name, owners.c.dag, owners.c.job).join(owners, owners.c.id == names.c.dataset_id)
    for row in tx.execute(query):
        if needle in row.name.lower():
            about = f"made by {row.dag}.{row.job}"
            yield SearchHit(kind="dataset", name=row.name, about=about, dag=row.dag, dataset=row.name)


def _describe(job: LiveJob) -> str:
    return f"source, {job.job.runtime}" if job.job.is_source else f"{job.job.runtime}, {job.job.operator}"


def _find_task(tx: Tx, task_id: str) -> list[SearchHit]:
    row = tx.one(sa.select(_tasks).where(_tasks.c.id == task_id))
    if row is None:
        return []
    about = " ".join(
        str(each) for each in (row["status"], row["partition_key"] or row["cursor"]) if each is not None
    )
    hit = SearchHit(
        kind="task",
        name=f"{row['dag']}.{row['job']}",
        about=about,
        dag=row["dag"],
        job=row["job"],
        task_id=task_id,
    )
    return [hit]


def _find_partitions(tx: Tx, name: str, key: str, limit: int) -> list[SearchHit]:
    try:
        ref = datasets.resolve(tx, name)
    except NotFound:
        return []
    generation = datasets.generation_of(tx, ref.id)
    query = (
        sa.select(_partitions.c.partition_key)
        .where(
            _partitions.c.dataset_id == ref.id,
            _partitions.c.generation_id == generation,
            _partitions.c.partition_key >= key,
        )
        .order_by(_partitions.c.partition_key)
        .limit(limit)
    )
    return [
        SearchHit(kind="partition", name=f"{ref.label}@{each}", dag=ref.dag, dataset=ref.label, partition_key=each)
        for each in tx.execute(query).scalars()
        if each.startswith(key)
    ]
