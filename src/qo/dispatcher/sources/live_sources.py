"""The live sources, and the memory that schedulers and watchers keep for them."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from qo.api.contract.source import LiveSource, SourcesAnswer
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.pressure import mode_of
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import sources
from qo.dispatcher.tasks import backpressure
from qo.errors import NotFound, Refused, UsageError
from qo.pipeline.sources import all_source_fields

PAGE_MAX = 500
MEMORY_BYTES_MAX = 262_144
_CONFIG_FIELDS = tuple(field.name for field in all_source_fields() if field.name != "secret")


def list_sources(
    tx: Tx, after: str | None = None, limit: int = PAGE_MAX, kind: str | None = None
) -> SourcesAnswer:
    """List live sources in order of edition, from the one after ``after``."""
    limit = max(1, min(limit, PAGE_MAX))
    live = topology.load(tx)
    live_jobs = sorted(
        (job for job in live.jobs.values() if job.job.source is not None and kind in (None, job.job.source.kind)),
        key=lambda job: job.edition_id,
    )
    rest = [job for job in live_jobs if after is None or job.edition_id > after]
    page = rest[:limit]
    held = backpressure.paused(tx, live)
    query = sa.select(sources).where(sources.c.edition_id.in_([job.edition_id for job in page]))
    rows = {row["edition_id"]: row for row in tx.all(query)}
    return SourcesAnswer(
        now=tx.now,
        sources=[_describe(live, job, rows.get(job.edition_id), held.get(job.edition_id)) for job in page],
        next=page[-1].edition_id if len(rest) > limit else None,
    )


def remember(tx: Tx, edition_id: str, memory: Any, error: str | None = None) -> None:
    """Store the memory of a source's scheduler or watcher. The last write wins.

    A late write may restore an older memory, so an old memory must at worst cause a repeated emission. ``error``: why
    the source cannot emit now, for people to see. An error leaves the stored memory as it is, and stays until a memory
    is stored again.
    """
    if len(msgspec.json.encode(memory)) > MEMORY_BYTES_MAX:
        raise UsageError(f"the memory of a source has {MEMORY_BYTES_MAX} bytes at most: store a summary")
    kind = tx.value(sa.select(sources.c.kind).where(sources.c.edition_id == edition_id))
    if kind is None:
        raise NotFound(f"there is no source {edition_id}: pass the edition_id that qo source list shows")
    if kind == SourceKind.ALWAYS_ON:
        raise Refused(
            "an always-on source must keep its position in its own data; this memory belongs to its supervisor"
        )
    this = sources.c.edition_id == edition_id
    values = {"memory": memory, "heard_at": tx.now} if error is None else {}
    tx.execute(sa.update(sources).where(this).values(**values, last_error=error, updated_at=tx.now))


def _declared(job: LiveJob) -> dict[str, Any]:
    """Return what the partitions are that the source announces, if it says so."""
    return {} if job.job.partitions is None else {"partitions": msgspec.to_builtins(job.job.partitions)}


def _describe(live: Topology, job: LiveJob, row: sa.RowMapping | None, held: str | None) -> LiveSource:
    source = job.job.source
    if source is None:
        raise AssertionError(job.name)
    fields = msgspec.to_builtins(source)
    described = LiveSource(
        edition_id=job.edition_id,
        logical_id=job.logical_id,
        dag=job.dag,
        job=job.job.name,
        version=job.version_number,
        active=job.status is VersionStatus.ACTIVE,
        kind=source.kind,
        config={name: fields[name] for name in _CONFIG_FIELDS if name in fields} | _declared(job),
        paused=live.pause_reason(job),
        held=held,
        backpressure_mode=mode_of(job.job),
    )
    if row is None:
        return described
    names = ("state", "restarts", "start_after", "heard_at", "last_error", "task_id", "memory")
    return described.model_copy(update={name: row[name] for name in names})
