"""Partitions that are made of others and wait for the rest of them, and what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from qo.api.contract.first_pages import WaitingPage, WaitingPartition
from qo.api.contract.why import Verdict
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tasks import backlog
from qo.dispatcher.versions import records
from qo.dispatcher.views.why.findings import Finding
from qo.dispatcher.views.why.incomplete import explain_incomplete
from qo.dispatcher.views.why.provenance import Chain
from qo.errors import NotFound, UsageError

WAITING_MAX = 20  # That are returned, the ones that have waited longest.

_rows = schema.incomplete_partitions


def find_waiting(tx: Tx, editions: Collection[str], limit: int = WAITING_MAX) -> list[WaitingPartition]:
    """Return the partitions of these editions that wait for others, longest first. Editions that are not live have
    none."""
    composites = [each.edition_id for each in _composites(tx, editions)]
    rows: list[sa.RowMapping] = []
    for some in batches(sorted(composites)):
        query = sa.select(_rows).where(_rows.c.edition_id.in_(some))
        rows += tx.all(query.order_by(_rows.c.since, _rows.c.partition_key).limit(limit))
    return _explain(tx, rows[:limit])


def list_waiting(
    tx: Tx,
    dag: str,
    *,
    version: int | None = None,
    job: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> WaitingPage:
    """List the partitions of a live version that wait for others, by job and key. ``after``: the ``next`` of a page.

    Raises NotFound, Refused for a version that is not live, and UsageError for an ``after`` that is none.
    """
    row = records.find_live(tx, dag, version)
    jobs = sorted(_composites(tx, backlog.editions(tx, row["id"])), key=lambda each: each.job.name)
    if job is not None:
        jobs = [each for each in jobs if each.job.name == job]
        if not jobs and tx.value(_job_named(row["id"], job)) is None:
            raise NotFound(f"version {row['number']} of {dag!r} has no job {job!r}")
    first, key = _parse_place(after)
    rows: list[sa.RowMapping] = []
    for each in jobs:
        if len(rows) > limit or each.job.name < first:
            continue
        query = sa.select(_rows).where(_rows.c.edition_id == each.edition_id)
        query = query.where(_rows.c.partition_key > key) if each.job.name == first else query
        rows += tx.all(query.order_by(_rows.c.partition_key).limit(limit + 1 - len(rows)))
    partitions = _explain(tx, rows[:limit])
    last = f"{partitions[-1].job}@{partitions[-1].partition_key}" if len(rows) > limit else None
    return WaitingPage(dag=dag, version=row["number"], partitions=partitions, next=last)


def _composites(tx: Tx, editions: Collection[str]) -> list[LiveJob]:
    live = topology.load(tx)
    return [job for each in editions if (job := live.jobs.get(each)) is not None and job.is_composite]


def _job_named(version_id: str, name: str) -> sa.Select[str]:
    jobs = schema.jobs
    return sa.select(jobs.c.name).where(jobs.c.version_id == version_id, jobs.c.name == name)


def _parse_place(after: str | None) -> tuple[str, str]:
    """Return the job and the key that a page ended with. Raises UsageError."""
    job, at, key = (after or "@").partition("@")
    if not at:
        raise UsageError(f"after is {after!r}: pass the next of the page before")
    return job, key


def _explain(tx: Tx, rows: Sequence[sa.RowMapping]) -> list[WaitingPartition]:
    live = topology.load(tx)
    chain = Chain(tx, live)
    waiting: list[WaitingPartition] = []
    for row in rows:
        job, key = live.jobs[row["edition_id"]], row["partition_key"]
        because = explain_incomplete(chain, job, key, _leave_unexplained).because
        times = {"since": row["since"], "due_at": row["due_at"]}
        waiting.append(WaitingPartition(job=job.job.name, partition_key=key, because=because, **times))
    return waiting


def _leave_unexplained(dataset_id: str, generation_id: str, key: str) -> Finding:
    return Finding(Verdict.UNKNOWN, f"see qo why for {key} of {dataset_id} ({generation_id})")
