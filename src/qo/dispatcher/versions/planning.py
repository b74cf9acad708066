"""What deploying a definition would build anew, partition by partition, before it does. Reads only.

A job that is rebuilt gets a task for each partition that is committed in its triggering inputs. Where one of those is
rebuilt, too, it is taken to become what it is now: an operator that makes other partitions of the same input than
before is the one thing that cannot be known.
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


def planned(
    tx: Tx, dag: Dag, registry: Registry, *, job: str | None = None, after: str | None = None, limit: int = FIRST
) -> PlanAnswer:
    """Of a resolved, validated DAG; ``job``: only of this one. Raises as ``deploy`` does, and NotFound for a job that
    would not be rebuilt."""
    compared = deploy.diff(tx, dag, registry)
    wanted = deploy.planned(tx, dag)
    now = cutover.active(tx, dag.name)
    sizes = _Sizes(tx, wanted, None if now is None else cutover.stored_plan(tx, now))
    chosen = [each for each in compared.rebuilt if job in (None, each.job)]
    if job is not None and not chosen:
        raise NotFound(f"{job!r} is not among the jobs that would be rebuilt: see qo plan without it")
    rebuilds = [
        _rebuild(tx, sizes, wanted.job(each.job), each.why, after if job is not None else None, limit)
        for each in chosen
    ]
    return PlanAnswer(
        dag=dag.name,
        diff=compared,
        rebuilds=rebuilds,
        tasks=sum(each.tasks for each in rebuilds),
        rows=sum(each.rows for each in rebuilds),
        bytes=sum(each.bytes for each in rebuilds),
    )


@dataclass(frozen=True, slots=True)
class _Basis:
    """The generations that stand for what a job will read of an input: one, or those of who makes it."""

    generations: tuple[str, ...]
    joined: bool = False  # Only what all of them have.
    estimated: bool = False


class _Sizes:
    """What there is to be read."""

    def __init__(self, tx: Tx, wanted: Plan, serving: Plan | None) -> None:
        self._makers = {made.generation_id: job for job in wanted.jobs for made in job.outputs}
        outputs = [made for job in serving.jobs for made in job.outputs] if serving is not None else []
        self._now = {made.dataset_id: made.generation_id for made in outputs}
        self._outside = topology.load(tx).current
        self._kept = set(self._now.values())

    def basis(self, each: PlannedInput) -> _Basis:
        generation = each.generation_id or self._outside.get(each.dataset_id)
        if generation is None:
            return _Basis(())
        if each.generation_id is None or generation in self._kept:
            return _Basis((generation,))
        if each.dataset_id in self._now:
            return _Basis((self._now[each.dataset_id],), estimated=True)
        # New: it will have what its own inputs have, key by key.
        maker = self._makers[generation]
        below = [self.basis(one) for one in maker.inputs if one.trigger]
        ids = tuple(dict.fromkeys(one for part in below for one in part.generations))
        return _Basis(ids, joined=maker.job.join is Join.ALL, estimated=True)

    def of(self, job: PlannedJob) -> _Basis:
        """All that the job is started by."""
        found = [self.basis(each) for each in job.inputs if each.trigger]
        joined = job.job.join is Join.ALL or (len(found) == 1 and found[0].joined)
        if joined and not all(each.generations for each in found):
            return _Basis(())
        ids = tuple(dict.fromkeys(one for each in found for one in each.generations))
        return _Basis(ids, joined, any(each.estimated for each in found))


def _rebuild(tx: Tx, sizes: _Sizes, job: PlannedJob, why: str, after: str | None, limit: int) -> PlannedRebuild:
    done = _done(tx, job)
    if job.job.is_source:
        note = "a source: it begins with nothing, and what it says from then on is new"
        return _answer(job, why, done=done, note=note)
    if not job.outputs:
        return _answer(job, why, done=done, note="makes nothing: effects outside are not made for history")
    basis = sizes.of(job)
    if job.job.execution_strategy is Strategy.PER_UPDATE:
        rows, size, some = _whole(tx, basis.generations)
        beside = [_whole(tx, sizes.basis(each).generations) for each in job.inputs if not each.trigger]
        rows, size = rows + sum(each[0] for each in beside), size + sum(each[1] for each in beside)
        return _answer(job, why, tasks=int(some), done=done, rows=rows, bytes=size, estimated=basis.estimated)
    found = _keys(basis)
    count, rows, size = tx.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(found.c.rows), 0),
            sa.func.coalesce(sa.func.sum(found.c.bytes), 0),
        )
    ).one()
    for each in job.inputs:
        if not each.trigger and count:
            more = _beside(tx, found, sizes.basis(each), int(count))
            rows, size = rows + more[0], size + more[1]
    first, rest = _page(tx, found, after, limit)
    given = {"tasks": int(count), "partitions": int(count), "rows": int(rows), "bytes": int(size)}
    return _answer(job, why, done=done, estimated=basis.estimated, first=first, next=rest, **given)


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
    """Each key once, with what all generations together hold of it."""
    query = (
        sa.select(
            _partitions.c.partition_key,
            sa.func.min(_partitions.c.start).label("start"),
            sa.func.max(_partitions.c.end).label("end"),
            sa.func.sum(_partitions.c.rows).label("rows"),
            sa.func.sum(_partitions.c.bytes).label("bytes"),
        )
        .where(_of(basis.generations))
        .group_by(_partitions.c.partition_key)
    )
    if basis.joined:
        query = query.having(sa.func.count() == len(basis.generations))
    return query.subquery()


def _page(tx: Tx, found: sa.Subquery, after: str | None, limit: int) -> tuple[list[PlannedPartition], str | None]:
    query = sa.select(found).order_by(found.c.partition_key).limit(limit + 1)
    if after is not None:
        query = query.where(found.c.partition_key > after)
    rows = tx.all(query)
    page = [PlannedPartition.model_validate(dict(row)) for row in rows[:limit]]
    return page, page[-1].partition_key if len(rows) > limit else None


def _beside(tx: Tx, found: sa.Subquery, basis: _Basis, tasks: int) -> tuple[int, int]:
    """What so many tasks read of an input that does not start them: the same partition, or else everything."""
    matched, rows, size = tx.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(_partitions.c.rows), 0),
            sa.func.coalesce(sa.func.sum(_partitions.c.bytes), 0),
        )
        .join_from(found, _partitions, _partitions.c.partition_key == found.c.partition_key)
        .where(_of(basis.generations))
    ).one()
    all_rows, all_bytes, _ = _whole(tx, basis.generations)
    others = max(0, tasks - int(matched))
    return int(rows) + others * all_rows, int(size) + others * all_bytes


def _of(generations: Iterable[str]) -> sa.ColumnElement[bool]:
    # By dataset, too, as their key has it.
    ids = list(generations)
    of_them = sa.select(_generations.c.dataset_id).where(_generations.c.id.in_(ids))
    return sa.and_(_partitions.c.dataset_id.in_(of_them), _partitions.c.generation_id.in_(ids))


def _whole(tx: Tx, generations: Iterable[str]) -> tuple[int, int, bool]:
    """Rows and bytes of all that is committed, and whether anything is."""
    query = sa.select(
        sa.func.coalesce(sa.func.sum(_generations.c.rows), 0),
        sa.func.coalesce(sa.func.sum(_generations.c.bytes), 0),
        sa.func.count(_generations.c.revision),
        sa.func.count(_generations.c.cursor),
    ).where(_generations.c.id.in_(list(generations)))
    rows, size, committed, told = tx.execute(query).one()
    return int(rows), int(size), bool(committed or told)


def _done(tx: Tx, job: PlannedJob) -> int:
    ids = [each.generation_id for each in job.outputs]
    return int(tx.value(sa.select(sa.func.max(_generations.c.partitions)).where(_generations.c.id.in_(ids))) or 0)
