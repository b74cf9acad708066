"""Findings of ``qo why``, and those that need no search upstream: silent sources, unrouted and unusable events."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.dataset import StaleInput
from qo.api.contract.why import Step, StepKind, Verdict
from qo.core.pipeline import routing
from qo.core.pipeline.dag import SourceKind, Strategy
from qo.core.pipeline.states import DeliveryOutcome, EventState, OutboxState
from qo.core.pipeline.topology import LiveJob, Reader, Topology, VersionStatus, pause_text
from qo.core.words import plural
from qo.dispatcher.events import tallies
from qo.dispatcher.state import schema
from qo.dispatcher.state.column_types import inline
from qo.dispatcher.views.why.provenance import Chain
from qo.pipeline.sources import SOURCES


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    because: str  # A sentence without its full stop.
    do: str | None = None
    steps: tuple[Step, ...] = ()
    stale: tuple[StaleInput, ...] = ()  # Changed inputs of committed data.


def explain_silent_source(chain: Chain, job: LiveJob, what: str) -> Finding:
    """Explain why a source has not announced something."""
    table = schema.sources
    row = chain.tx.one(sa.select(table).where(table.c.edition_id == job.edition_id))
    kind = job.job.source.kind if job.job.source is not None else SourceKind.MANUAL
    step = Step(kind=StepKind.MISSING, text=f"source {job.name} ({kind}) has not announced {what}", job=job.name)
    paused = chain.live.pause_reason(job)
    if paused is not None:
        scope = job.name if job.name in chain.live.paused else job.dag
        text = f"{job.name} is {pause_text(paused)}"
        return Finding(Verdict.BLOCKED, text, f"qo dag resume {scope}", (step,))
    if row is not None and row["state"] == OutboxState.DEAD:
        text = f"source {job.name} is dead: {row['last_error'] or 'it sent no heartbeat'}"
        return Finding(Verdict.BLOCKED, text, "see qo source list", (step,))
    if row is not None and row["last_error"] and SOURCES[kind].place is not None:
        return Finding(Verdict.BLOCKED, f"source {job.name} cannot look: {row['last_error']}", None, (step,))
    do = f"qo emit {job.name}, if it should be there" if kind is SourceKind.MANUAL else None
    return Finding(Verdict.UNKNOWN, f"nothing upstream has announced it: {step.text}", do, (step,))


def advise_on_unrouted(chain: Chain) -> str | None:
    """Return what to check if the oldest unrouted event has waited for long; None otherwise."""
    table = schema.events
    oldest = chain.tx.one(
        sa.select(table.c.received_at)
        .where(table.c.state == inline(EventState.PENDING))
        .order_by(table.c.seq)
        .limit(1)
    )
    return None if oldest is None else chain.advise_on_dispatcher(oldest["received_at"])


def find_unusable_events(chain: Chain, job: LiveJob) -> Finding | None:
    """Return a finding if the job could not use the last event of one of its inputs."""
    for each in job.inputs:
        generation = routing.generation_read(Reader(job, each), chain.live)
        event = chain.last_event(each.dataset_id, generation or "")
        delivery = chain.delivery(event["seq"], job.edition_id) if event is not None else None
        if event is None or delivery is None or delivery["outcome"] != DeliveryOutcome.FILTERED:
            continue
        count = tallies.counts(chain.tx, each.dataset_id).get(job.edition_id, {}).get(DeliveryOutcome.FILTERED, 0)
        name = chain.name(each.dataset_id)
        text = f"{plural(count, 'event')} of {name} started no task, the last one because {delivery['reason']}"
        steps = (*chain.up_to_event(event), chain.delivery_step(delivery))
        return Finding(Verdict.BLOCKED, text, advise_on_strategy(job, name), steps)
    return None


def advise_on_strategy(job: LiveJob, name: str) -> str:
    """Return what to do if a job gets events of partitions but works by cursor, or the other way round."""
    if job.job.execution_strategy is Strategy.PER_PARTITION:
        return f"write 'execution_strategy: PerUpdate' for {job.name}, or have {name} announce partitions"
    return f"write 'execution_strategy: PerPartition' for {job.name}, or have {name} announce cursors"


def find_effect_job(live: Topology, name: str) -> LiveJob | None:
    """Return the live job of that name if it has no outputs; of two editions, that of the active version."""
    jobs = [each for each in live.jobs.values() if each.name == name and not each.outputs]
    return min(jobs, key=lambda each: each.status is not VersionStatus.ACTIVE, default=None)
