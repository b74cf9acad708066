"""A forecast of what deploying a definition would rebuild, partition by partition. Read-only.

A rebuilt job gets a task for each partition committed in its triggering inputs. An input that is rebuilt as well is
assumed to keep its current partitions; an operator that would now write other ones cannot be foreseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from qo.api.contract.planning import PlanAnswer, PlannedPartition, PlannedRebuild
from qo.core.pipeline.dag import Dag, Join, Strategy
from qo.core.pipeline.plan import Plan, PlannedInput, PlannedJob
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import cutover, deploy
from qo.errors import NotFound
from qo.pipeline.registry import Registry

FIRST = 5  # Partitions that are shown of each job.

_partitions, _generations = schema.partitions, schema.generations


def forecast(
    tx: Tx, dag: Dag, registry: Registry, *, job: str | None = None, after: str | None = None, limit: int = FIRST
) -> PlanAnswer:
    """Return what deploying a resolved, validated DAG would rebuild.

    ``job``: only this one. Raises as ``deploy`` does, and NotFound for a job that would not be rebuilt.
    """
    changes = deploy.diff(tx, dag, registry)
    target = deploy.plan_version(tx, dag)
    serving = cutover.active(tx, dag.name)
    sizes = _Sizes(tx, target, None if serving is None else cutover.stored_plan(tx, serving))
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
    if job.job.execution_strategy is Strategy.PER_UPDATE:
        rows, size, has_data = _total_size(tx, basis.generations)
        side_inputs = [_total_size(tx, sizes.basis(each).generations) for each in job.inputs if not each.trigger]
        rows, size = rows + sum(each[0] for each in side_inputs), size + sum(each[1] for each in side_inputs)
        return _answer(
            job, why, tasks=int(has_data), done=committed, rows=rows, bytes=size, estimated=basis.estimated
        )
    partitions = _keys(basis)
    count, rows, size = tx.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(partitions.c.rows), 0),
            sa.func.coalesce(sa.func.sum(partitions.c.bytes), 0),
        )
    ).one()
    for each in job.inputs:
        if not each.trigger and count:
            side_input = _side_input_size(tx, partitions, sizes.basis(each), int(count))
            rows, size = rows + side_input[0], size + side_input[1]
    first, rest = _page(tx, partitions, after, limit)
    counts = {"tasks": int(count), "partitions": int(count), "rows": int(rows), "bytes": int(size)}
    return _answer(job, why, done=committed, estimated=basis.estimated, first=first, next=rest, **counts)


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


def _keys(basis: _Basis) -> sa.Subquery:
    """Select each key once, with the total size over all generations."""
    query = (
        sa.select(
            _partitions.c.partition_key,
            sa.func.min(_partitions.c.start).label("start"),
            sa.func.max(_partitions.c.end).label("end"),
            sa.func.sum(_partitions.c.rows).label("rows"),
            sa.func.sum(_partitions.c.bytes).label("bytes"),
        )
        .where(_in_generations(basis.generations))
        .group_by(_partitions.c.partition_key)
    )
    if basis.joined:
        query = query.having(sa.func.count() == len(basis.generations))
    return query.subquery()


def _page(
    tx: Tx, partitions: sa.Subquery, after: str | None, limit: int
) -> tuple[list[PlannedPartition], str | None]:
    query = sa.select(partitions).order_by(partitions.c.partition_key).limit(limit + 1)
    if after is not None:
        query = query.where(partitions.c.partition_key > after)
    rows = tx.all(query)
    page = [PlannedPartition.model_validate(dict(row)) for row in rows[:limit]]
    return page, page[-1].partition_key if len(rows) > limit else None


def _side_input_size(tx: Tx, partitions: sa.Subquery, basis: _Basis, tasks: int) -> tuple[int, int]:
    """Return the rows and bytes that the tasks read of a side input: the same partition if there is one, else all."""
    matched, rows, size = tx.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(_partitions.c.rows), 0),
            sa.func.coalesce(sa.func.sum(_partitions.c.bytes), 0),
        )
        .join_from(partitions, _partitions, _partitions.c.partition_key == partitions.c.partition_key)
        .where(_in_generations(basis.generations))
    ).one()
    all_rows, all_bytes, _ = _total_size(tx, basis.generations)
    others = max(0, tasks - int(matched))
    return int(rows) + others * all_rows, int(size) + others * all_bytes


def _in_generations(generations: Iterable[str]) -> sa.ColumnElement[bool]:
    # Also by dataset, which is the first column of the primary key.
    ids = list(generations)
    of_them = sa.select(_generations.c.dataset_id).where(_generations.c.id.in_(ids))
    return sa.and_(_partitions.c.dataset_id.in_(of_them), _partitions.c.generation_id.in_(ids))


def _total_size(tx: Tx, generations: Iterable[str]) -> tuple[int, int, bool]:
    """Return the rows and bytes of all that is committed, and whether anything is."""
    query = sa.select(
        sa.func.coalesce(sa.func.sum(_generations.c.rows), 0),
        sa.func.coalesce(sa.func.sum(_generations.c.bytes), 0),
        sa.func.count(_generations.c.revision),
        sa.func.count(_generations.c.cursor),
    ).where(_generations.c.id.in_(list(generations)))
    rows, size, revisions, cursors = tx.execute(query).one()
    return int(rows), int(size), bool(revisions or cursors)


def _count_committed(tx: Tx, job: PlannedJob) -> int:
    ids = [each.generation_id for each in job.outputs]
    return int(tx.value(sa.select(sa.func.max(_generations.c.partitions)).where(_generations.c.id.in_(ids))) or 0)
