"""All pipelines at a glance: what runs, waits, has failed or is held back, and how old each published dataset is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa

from qo.api.contract.dag import DagLine
from qo.api.contract.first_pages import HealthPage, PipelineHealth, PublishedHealth
from qo.core.pipeline import pressure
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.supervision import SourceState
from qo.core.pipeline.topology import LiveJob, Topology
from qo.core.task import Status
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backpressure, failures
from qo.dispatcher.versions import overview
from qo.dispatcher.views import freshness_states

PUBLISHED_MAX = 50  # Datasets of one pipeline.

_generations, _commits = schema.generations, schema.commits


def list_health(tx: Tx, after: str | None = None, limit: int = 100) -> HealthPage:
    """List the live pipelines by name."""
    live = topology.load(tx)
    page = overview.list_dags(tx, after, limit)
    names = {line.name for line in page.dags}
    jobs = {name: live.of_dag(name) for name in names}
    counts = failures.counts(tx, [job.edition_id for own in jobs.values() for job in own])
    held = set(tx.execute(sa.select(schema.holds.c.edition_id)).scalars())
    held.update(pressure.holders(live, backpressure.tripped(tx)))
    unsound = set(tx.execute(_unsound_sources()).scalars())
    late = Counter(job.dag for job, _, seconds in freshness_states.count_late_seconds(tx, live) if seconds)
    publications = _publications(tx, live, names)
    return HealthPage(
        now=tx.now,
        pipelines=[
            _describe(
                line,
                jobs[line.name],
                counts,
                held,
                unsound,
                late[line.name],
                publications.get(line.name, []),
            )
            for line in page.dags
        ],
        next=page.next,
    )


def _unsound_sources() -> sa.Select[tuple[str]]:
    table = schema.sources
    return sa.select(table.c.edition_id).where(
        table.c.kind == SourceKind.ALWAYS_ON, table.c.state.in_([SourceState.DEAD, SourceState.STOPPED])
    )


def _describe(
    line: DagLine,
    jobs: Sequence[LiveJob],
    counts: Mapping[str, Mapping[str, int]],
    held: set[str],
    unsound: set[str],
    late: int,
    publications: Sequence[PublishedHealth],
) -> PipelineHealth:
    def total(status: Status) -> int:
        return sum(counts.get(job.edition_id, {}).get(status, 0) for job in jobs)

    sources = [job for job in jobs if job.job.is_source]
    return PipelineHealth(
        name=line.name,
        active=line.active,
        next=line.next,
        next_status=line.next_status,
        paused=line.paused,
        jobs=line.jobs,
        running=total(Status.RUNNING),
        waiting=total(Status.PENDING),
        failed=total(Status.FAILED),
        held=sum(job.edition_id in held for job in jobs),
        late=late,
        sources=len(sources),
        sources_failed=sum(job.edition_id in unsound for job in sources),
        published=list(publications[:PUBLISHED_MAX]),
    )


def _publications(tx: Tx, live: Topology, dags: Collection[str]) -> dict[str, list[PublishedHealth]]:
    """Return the published datasets by pipeline, each with the time of its last commit."""
    names, datasets = schema.publications, schema.datasets
    query = (
        sa.select(names.c.name, datasets.c.dag, datasets.c.job, datasets.c.output, datasets.c.id)
        .join(datasets, datasets.c.id == names.c.dataset_id)
        .where(names.c.dag.in_(sorted(dags)))
        .order_by(names.c.name)
    )
    rows = tx.all(query)
    generations = _sizes(tx, {live.current[row["id"]] for row in rows if row["id"] in live.current})
    last_commits = _times(tx, {each["revision"] for each in generations.values()} - {None})
    publications: dict[str, list[PublishedHealth]] = {}
    for row in rows:
        size = generations.get(live.current.get(row["id"], ""))
        output = f"[{row['output']}]" if row["output"] else ""
        publications.setdefault(row["dag"], []).append(
            PublishedHealth(
                name=row["name"],
                dataset=f"{row['dag']}.{row['job']}{output}",
                committed_at=last_commits.get(size["revision"]) if size is not None else None,
                partitions=size["partitions"] + size["segments"] if size is not None else 0,
                rows=size["rows"] if size is not None else 0,
                bytes=size["bytes"] if size is not None else 0,
            )
        )
    return publications


def _sizes(tx: Tx, generations: Collection[str]) -> dict[str, sa.RowMapping]:
    return {
        row["id"]: row
        for some in batches(sorted(generations))
        for row in tx.all(sa.select(_generations).where(_generations.c.id.in_(some)))
    }


def _times(tx: Tx, revisions: Collection[int]) -> dict[int, datetime]:
    query = sa.select(_commits.c.revision, _commits.c.committed_at)
    return {
        row.revision: row.committed_at
        for some in batches(sorted(revisions))
        for row in tx.execute(query.where(_commits.c.revision.in_(some)))
    }
