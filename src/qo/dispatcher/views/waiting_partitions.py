"""Partitions that are made of others and wait for the rest of them, and what they wait for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.why import Verdict
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.views.why.findings import Finding
from qo.dispatcher.views.why.incomplete import explain_incomplete
from qo.dispatcher.views.why.provenance import Chain

WAITING_MAX = 20  # That are returned, the ones that have waited longest.

_rows = schema.incomplete_partitions


@dataclass(frozen=True, slots=True)
class WaitingPartition:
    job: str
    partition_key: str
    text: str  # What it waits for.


def find_waiting(tx: Tx, editions: Collection[str], limit: int = WAITING_MAX) -> list[WaitingPartition]:
    """Return the partitions of these editions that wait for others, longest first. Editions that are not live have
    none."""
    live = topology.load(tx)
    composites = [each for each in editions if (job := live.jobs.get(each)) is not None and job.is_composite]
    rows: list[sa.RowMapping] = []
    for some in batches(sorted(composites)):
        query = sa.select(_rows).where(_rows.c.edition_id.in_(some))
        rows += tx.all(query.order_by(_rows.c.since, _rows.c.partition_key).limit(limit))
    chain = Chain(tx, live)
    waiting: list[WaitingPartition] = []
    for row in rows[:limit]:
        job, key = live.jobs[row["edition_id"]], row["partition_key"]
        finding = explain_incomplete(chain, job, key, _leave_unexplained)
        waiting.append(WaitingPartition(job.job.name, key, finding.because))
    return waiting


def _leave_unexplained(dataset_id: str, generation_id: str, key: str) -> Finding:
    return Finding(Verdict.UNKNOWN, f"see qo why for {key} of {dataset_id} ({generation_id})")
