"""The live sources, for people to see and for schedulers and watchers to serve, and what those remember."""

from __future__ import annotations

from typing import Any

import msgspec
import sqlalchemy as sa

from qo.api.contract.source import LiveSource, SourcesAnswer
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.state import topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import sources
from qo.errors import NotFound, Refused, UsageError
from qo.pipeline.sources import all_source_fields

PAGE_MAX = 500
MEMORY_BYTES_MAX = 262_144
_SHOWN = tuple(field.name for field in all_source_fields() if field.name != "secret")


def list_sources(
    tx: Tx, after: str | None = None, limit: int = PAGE_MAX, kind: str | None = None
) -> SourcesAnswer:
    """A page of the live sources in order of edition, beginning after the one given."""
    limit = max(1, min(limit, PAGE_MAX))
    live = topology.load(tx)
    wanted = sorted(
        (job for job in live.jobs.values() if job.job.source is not None and kind in (None, job.job.source.kind)),
        key=lambda job: job.edition_id,
    )
    rest = [job for job in wanted if after is None or job.edition_id > after]
    page = rest[:limit]
    query = sa.select(sources).where(sources.c.edition_id.in_([job.edition_id for job in page]))
    known = {row["edition_id"]: row for row in tx.all(query)}
    return SourcesAnswer(
        now=tx.now,
        sources=[_shown(live, job, known.get(job.edition_id)) for job in page],
        next=page[-1].edition_id if len(rest) > limit else None,
    )


def remember(tx: Tx, edition_id: str, memory: Any, error: str | None = None) -> None:
    """Keep something for who serves a source. The last one counts: it may be an older one's, so what is kept must be
    of a kind that at worst makes them say something again.

    ``error``: why the source cannot speak now, for people to see. What was kept before stays, and so does the error
    until something is kept again.
    """
    if len(msgspec.json.encode(memory)) > MEMORY_BYTES_MAX:
        raise UsageError(f"a source remembers {MEMORY_BYTES_MAX} bytes at most: keep a summary")
    kind = tx.value(sa.select(sources.c.kind).where(sources.c.edition_id == edition_id))
    if kind is None:
        raise NotFound(f"there is no source {edition_id}: it is the edition that is named, as the list shows it")
    if kind == SourceKind.ALWAYS_ON:
        raise Refused(
            "an always-on source keeps what it must remember in its data; this place is its supervisor's"
        )
    this = sources.c.edition_id == edition_id
    kept = {"memory": memory, "heard_at": tx.now} if error is None else {}
    tx.execute(sa.update(sources).where(this).values(**kept, last_error=error, updated_at=tx.now))


def _shown(live: Topology, job: LiveJob, row: sa.RowMapping | None) -> LiveSource:
    source = job.job.source
    if source is None:
        raise AssertionError(job.name)
    given = msgspec.to_builtins(source)
    shown = LiveSource(
        edition_id=job.edition_id,
        logical_id=job.logical_id,
        dag=job.dag,
        job=job.job.name,
        version=job.version_number,
        active=job.status is VersionStatus.ACTIVE,
        kind=source.kind,
        config={name: given[name] for name in _SHOWN if name in given},
        paused=live.pause_reason(job),
    )
    if row is None:
        return shown
    told = ("state", "restarts", "start_after", "heard_at", "last_error", "task_id", "memory")
    return shown.model_copy(update={name: row[name] for name in told})
