"""What is held back now: by which threshold of which queue or job, since when, and what must happen for it to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import sqlalchemy as sa

from qo.api.contract.pressure import HeldAnswer, HeldJob, PressureTarget
from qo.core.pipeline import pressure
from qo.core.pipeline.pressure import Graph, Measure, Target, TargetKind, Thresholds, mode_of, target_name
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus, pause_text
from qo.dispatcher.state import scans, schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backpressure

HELD_MAX = 500
WAITING_MAX = 1_000  # Counting stops here.
_WORKS_MAX = 20


def list_held(tx: Tx, thresholds: Thresholds) -> HeldAnswer:
    """List the measured targets, overfull ones first, and every job that is held back, for whatever reason."""
    live = topology.load(tx)
    graph = Graph(live)
    targets = {each: _describe_target(live, graph, each, row, thresholds) for each, row in _measured(tx, live)}
    held_by = pressure.holders(live, backpressure.tripped(tx))
    stored = {row["edition_id"]: row for row in tx.all(sa.select(schema.holds))}
    editions = [each for each in live.jobs if each in held_by or each in stored]
    editions.sort(key=lambda each: (live.depth.get(each, 0), live.jobs[each].name))
    memories = _memories(tx, editions[:HELD_MAX])
    held: list[HeldJob] = []
    for edition in editions[:HELD_MAX]:
        job = live.jobs[edition]
        waiting = _waiting(tx, job, memories.get(edition))
        # A person's pause and a missing runtime come first: only they can be mended by somebody.
        if edition in held_by and live.pause_reason(job) is None:
            held.append(
                _held_by_pressure(live, job, [(each, targets[each]) for each in held_by[edition]], waiting)
            )
        else:
            held.append(_held_otherwise(live, job, stored.get(edition), waiting))
    ordered = sorted(targets.values(), key=lambda each: (each.tripped_at is None, each.kind, each.name))
    return HeldAnswer(now=tx.now, targets=ordered, held=held, more=len(editions) > HELD_MAX)


def _measured(tx: Tx, live: Topology) -> list[tuple[Target, sa.RowMapping]]:
    queues = [(Target(TargetKind.QUEUE, row["name"]), row) for row in tx.all(sa.select(schema.queues))]
    rows = tx.all(sa.select(schema.job_pressure))
    return queues + [
        (Target(TargetKind.JOB, row["edition_id"]), row) for row in rows if row["edition_id"] in live.jobs
    ]


def _describe_target(
    live: Topology, graph: Graph, target: Target, row: sa.RowMapping, thresholds: Thresholds
) -> PressureTarget:
    limits = _limits(live, target, thresholds)
    is_tripped = row["tripped_at"] is not None
    members = sorted(graph.members(target), key=lambda each: live.jobs[each].name)[:_WORKS_MAX]
    return PressureTarget(
        kind=target.kind,
        name=target.id if target.kind is TargetKind.QUEUE else live.jobs[target.id].name,
        depth=row["depth"],
        oldest_s=row["oldest_s"],
        depth_max=limits.depth,
        age_max_s=limits.age_s,
        tripped_at=row["tripped_at"],
        reason=row["reason"] if is_tripped else None,
        clears=pressure.clear_condition(Measure(row["depth"], row["oldest_s"]), limits) if is_tripped else None,
        works=[_name_worker(live, live.jobs[each]) for each in members],
        measured_at=row["measured_at"],
    )


def _limits(live: Topology, target: Target, thresholds: Thresholds) -> Thresholds:
    if target.kind is TargetKind.QUEUE:
        return thresholds.of_queue(target.id)
    return thresholds.of_job(live.jobs[target.id]) or thresholds


def _name_worker(live: Topology, job: LiveJob) -> str:
    reason = live.pause_reason(job)
    return job.name if reason is None else f"{job.name} ({pause_text(reason)})"


def _held_by_pressure(
    live: Topology, job: LiveJob, by: Sequence[tuple[Target, PressureTarget]], waiting: int
) -> HeldJob:
    since = min((each.tripped_at for _, each in by if each.tripped_at is not None), default=None)
    return _held_job(
        job,
        since=since,
        reason="; ".join(f"{target_name(live, target)} is overfull: {each.reason}" for target, each in by),
        next_="; ".join(
            f"{target_name(live, target)}: {each.clears} ({', '.join(each.works)} must run)" for target, each in by
        ),
        waiting=waiting,
    )


def _held_otherwise(live: Topology, job: LiveJob, row: sa.RowMapping | None, waiting: int) -> HeldJob:
    reason = live.pause_reason(job)
    if reason is not None:
        text, next_ = pause_text(reason), f"somebody resumes it: qo dag resume {job.name}"
    else:
        text, next_ = ("" if row is None else row["reason"]), "the reason no longer holds"
    return _held_job(job, since=None if row is None else row["since"], reason=text, next_=next_, waiting=waiting)


def _held_job(job: LiveJob, *, since: Any, reason: str, next_: str, waiting: int) -> HeldJob:
    return HeldJob(
        edition_id=job.edition_id,
        dag=job.dag,
        job=job.job.name,
        version=job.version_number,
        active=job.status is VersionStatus.ACTIVE,
        kind=None if job.job.source is None else job.job.source.kind,
        mode=mode_of(job.job),
        since=since,
        reason=reason,
        next=next_,
        waiting=waiting,
    )


def _memories(tx: Tx, editions: Sequence[str]) -> Mapping[str, Any]:
    query = sa.select(schema.sources.c.edition_id, schema.sources.c.memory)
    return {
        row["edition_id"]: row["memory"] for row in tx.all(query.where(schema.sources.c.edition_id.in_(editions)))
    }


def _waiting(tx: Tx, job: LiveJob, memory: Any) -> int:
    if job.job.source is None:
        return scans.backlog(tx, job.edition_id, WAITING_MAX)[0]
    fields = cast("dict[str, Any]", memory) if isinstance(memory, dict) else {}
    number = fields.get("waiting")
    return min(number, WAITING_MAX) if isinstance(number, int) else 0
