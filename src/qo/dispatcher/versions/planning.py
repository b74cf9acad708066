"""A forecast of what deploying a definition would rebuild, partition by partition. Read-only.

A rebuilt job gets a task for each partition committed in its triggering inputs. An input that is rebuilt as well is
assumed to keep its current partitions; an operator that would now write other ones cannot be foreseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.planning import PlanAnswer, PlannedPartition, PlannedRebuild
from qo.core.pipeline.dag import Dag, Join, Strategy
from qo.core.pipeline.plan import Plan, PlannedInput, PlannedJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import composed_counts, deploy, partition_counts
from qo.errors import NotFound
from qo.pipeline.registry import Registry

FIRST = 5  # Partitions that are shown of each job.

_generations = schema.generations


def forecast(
    tx: Tx, dag: Dag, registry: Registry, *, job: str | None = None, after: str | None = None, limit: int = FIRST
) -> PlanAnswer:
    """Return what deploying a resolved, validated DAG would rebuild.

    ``job``: only this one. Raises as ``deploy`` does, and NotFound for a job that would not be rebuilt.
    """
    comparison = deploy.compare(tx, dag, registry)
    target, changes = comparison.target, comparison.changes
    sizes = _Sizes(tx, target, comparison.serving)
    rebuilt = [each for each in changes.rebuilt if job in (None, each.job)]
    if job is not None and not rebuilt:
        raise NotFound(f"{job!r} is not among the jobs that would be rebuilt: see qo plan without it")
    rebuilds = [
        _rebuild(tx, sizes, target.job(each.job), each.why, after if job is not None else None, limit)
        for each in rebuilt
    ]
    return PlanAnswer(
        dag=dag.name,
        diff=changes,
        rebuilds=rebuilds,
        tasks=sum(each.tasks for each in rebuilds),
        rows=sum(each.rows for each in rebuilds),
        bytes=sum(each.bytes for each in rebuilds),
    )


@dataclass(frozen=True, slots=True)
class _Basis:
    """The generations that predict what a job will read: that of the input, or those its writer reads."""

    generations: tuple[str, ...]
    joined: bool = False  # Only what all of them have.
    estimated: bool = False


class _Sizes:
    """How much there is to read, now and after the deploy."""

    def __init__(self, tx: Tx, target: Plan, serving: Plan | None) -> None:
        self._writers = {output.generation_id: job for job in target.jobs for output in job.outputs}
        outputs = [output for job in serving.jobs for output in job.outputs] if serving is not None else []
        self._serving = {output.dataset_id: output.generation_id for output in outputs}
        self._outside = topology.load(tx).current

    def basis(self, each: PlannedInput) -> _Basis:
        generation = each.generation_id or self._outside.get(each.dataset_id)
        if generation is None:
            return _Basis(())
        if each.generation_id is None or generation in self._serving.values():
            return _Basis((generation,))
        if each.dataset_id in self._serving:
            return _Basis((self._serving[each.dataset_id],), estimated=True)
        # A new dataset will have the keys of its writer's inputs.
        writer = self._writers[generation]
        upstream = [self.basis(one) for one in writer.inputs if one.trigger]
        ids = tuple(dict.fromkeys(one for part in upstream for one in part.generations))
        return _Basis(ids, joined=writer.job.join is Join.ALL, estimated=True)

    def job_basis(self, job: PlannedJob) -> _Basis:
        """Return the basis of all inputs that trigger a job."""
        inputs = [self.basis(each) for each in job.inputs if each.trigger]
        joined = job.job.join is Join.ALL or (len(inputs) == 1 and inputs[0].joined)
        if joined and not all(each.generations for each in inputs):
            return _Basis(())
        ids = tuple(dict.fromkeys(one for each in inputs for one in each.generations))
        return _Basis(ids, joined, any(each.estimated for each in inputs))


def _rebuild(tx: Tx, sizes: _Sizes, job: PlannedJob, why: str, after: str | None, limit: int) -> PlannedRebuild:
    committed = _count_committed(tx, job)
    if job.job.is_source:
        note = "a source: it starts empty, and only what it emits from then on is new"
        return _answer(job, why, done=committed, note=note)
    if not job.outputs:
        return _answer(job, why, done=committed, note="no outputs: side effects are not repeated for history")
    basis = sizes.job_basis(job)
    if job.job.execution_strategy is not Strategy.PER_PARTITION:
        rows, size, has_data = partition_counts.total_size(tx, basis.generations)
        side_inputs = [
            partition_counts.total_size(tx, sizes.basis(each).generations)
            for each in job.inputs
            if not each.trigger
        ]
        rows, size = rows + sum(each[0] for each in side_inputs), size + sum(each[1] for each in side_inputs)
        return _answer(
            job, why, tasks=int(has_data), done=committed, rows=rows, bytes=size, estimated=basis.estimated
        )
    if composed_counts.composed_maps(job):
        return _rebuild_composed(tx, sizes, job, why, committed, after, limit)
    forecast_ = partition_counts.count_partitions(tx, basis.generations, joined=basis.joined)
    rows, size, estimated = forecast_.rows, forecast_.bytes, basis.estimated or forecast_.estimated
    for each in job.inputs:
        if not each.trigger and forecast_.partitions:
            side_input = partition_counts.count_side_reads(tx, forecast_, sizes.basis(each).generations)
            rows, size = rows + side_input.rows, size + side_input.bytes
            estimated = estimated or side_input.estimated
    page, rest = partition_counts.list_partitions(tx, basis.generations, after, limit, joined=basis.joined)
    first = [PlannedPartition.model_validate(each) for each in page]
    counts = {"tasks": forecast_.partitions, "partitions": forecast_.partitions, "rows": rows, "bytes": size}
    return _answer(job, why, done=committed, estimated=estimated, first=first, next=rest, **counts)


def _rebuild_composed(
    tx: Tx, sizes: _Sizes, job: PlannedJob, why: str, committed: int, after: str | None, limit: int
) -> PlannedRebuild:
    """Return what is rebuilt of partitions that are made of others. What is read beside is not counted."""
    bases = {each.position: sizes.basis(each) for each in job.inputs if each.trigger}
    generations = {position: basis.generations for position, basis in bases.items()}
    counted = composed_counts.count_composed(tx, job, generations, after, limit)
    return _answer(
        job,
        why,
        tasks=counted.partitions,
        partitions=counted.partitions,
        rows=counted.rows,
        bytes=counted.bytes,
        done=committed,
        estimated=counted.estimated or any(each.estimated for each in bases.values()),
        first=[PlannedPartition.model_validate(dict(each)) for each in counted.page],
        next=counted.next,
    )


def _answer(job: PlannedJob, why: str, **fields: Any) -> PlannedRebuild:
    empty: Mapping[str, Any] = {
        "tasks": 0,
        "partitions": 0,
        "done": 0,
        "rows": 0,
        "bytes": 0,
        "estimated": False,
    }
    return PlannedRebuild(job=job.job.name, why=why, **{**empty, **fields})


def _count_committed(tx: Tx, job: PlannedJob) -> int:
    ids = [each.generation_id for each in job.outputs]
    return int(tx.value(sa.select(sa.func.max(_generations.c.partitions)).where(_generations.c.id.in_(ids))) or 0)
