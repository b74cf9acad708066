"""The jobs of live versions, as their rows describe them.

These rows change only when a version is deployed anew or gets another bundle, and its ``jobs_epoch`` changes with them.
So what was read of a version is kept: after a change of one pipeline only its jobs are read again, however many others
there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sqlalchemy as sa

from qo.core.pipeline.dag import Job
from qo.core.pipeline.plan import PlannedInput, PlannedOutput
from qo.core.pipeline.topology import LIVE, LiveJob, VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.pipeline.registry import Registry

_versions, _dags, _jobs = schema.dag_versions, schema.dags, schema.jobs
_inputs, _pointers, _datasets = schema.job_inputs, schema.version_generations, schema.datasets

# Building a statement takes longer than executing it, so these are built once.
_LIVE = (
    sa.select(
        _versions.c.id,
        _versions.c.number,
        _versions.c.status,
        _versions.c.jobs_epoch,
        (_dags.c.active_version_id == _versions.c.id).label("serves"),
    )
    .outerjoin(_dags, _dags.c.name == _versions.c.dag)
    .where(_versions.c.status.in_(sorted(LIVE)))
    .order_by(_versions.c.dag, _versions.c.number)
)
_JOBS = (
    sa.select(_jobs).where(_jobs.c.version_id.in_(sa.bindparam("these", expanding=True))).order_by(_jobs.c.name)
)
_INPUTS = (
    sa.select(_inputs)
    .join(_jobs, _jobs.c.id == _inputs.c.job_id)
    .where(_jobs.c.version_id.in_(sa.bindparam("these", expanding=True)))
    .order_by(_inputs.c.job_id, _inputs.c.position)
)
_OUTPUTS = (
    sa.select(_pointers, _datasets.c.job, _datasets.c.output)
    .join(_datasets, _datasets.c.id == _pointers.c.dataset_id)
    .where(_pointers.c.version_id.in_(sa.bindparam("these", expanding=True)))
    .order_by(_pointers.c.version_id, _datasets.c.job, _datasets.c.output)
)


@dataclass(frozen=True, slots=True)
class VersionJobs:
    """A live version: its jobs by name, and the generation of each dataset that it makes."""

    jobs_epoch: int
    status: VersionStatus
    serves: bool  # It is the active version of its DAG.
    jobs: tuple[LiveJob, ...]
    generations: Mapping[str, str]

    def with_status(self, status: VersionStatus, serves: bool) -> VersionJobs:
        if (self.status, self.serves) == (status, serves):
            return self
        jobs = self.jobs if self.status is status else tuple(replace(job, status=status) for job in self.jobs)
        return replace(self, status=status, serves=serves, jobs=jobs)


def read(tx: Tx, registry: Registry, earlier: Mapping[str, VersionJobs]) -> dict[str, VersionJobs]:
    """Return all live versions by id, in order of DAG and number. ``earlier``: what was read before."""
    live = tx.execute(_LIVE).all()
    changed = {
        row.id: row for row in live if row.id not in earlier or earlier[row.id].jobs_epoch != row.jobs_epoch
    }
    read_ones: dict[str, VersionJobs] = {}
    for some in batches(sorted(changed)):
        read_ones |= _read(tx, registry, [changed[version] for version in some])
    return {
        row.id: (read_ones.get(row.id) or earlier[row.id]).with_status(VersionStatus(row.status), bool(row.serves))
        for row in live
    }


def _read(tx: Tx, registry: Registry, versions: Sequence[Any]) -> dict[str, VersionJobs]:
    these = {"these": [row.id for row in versions]}
    inputs, outputs = _read_inputs(tx, these), _read_outputs(tx, these)
    rows: dict[str, list[Any]] = {}
    for row in tx.execute(_JOBS, these):
        rows.setdefault(row.version_id, []).append(row)
    return {
        version.id: _version_jobs(version, rows.get(version.id, ()), registry, inputs, outputs.get(version.id, {}))
        for version in versions
    }


def _version_jobs(
    version: Any,
    rows: Sequence[Any],
    registry: Registry,
    inputs: Mapping[str, Sequence[PlannedInput]],
    outputs: Mapping[str, Sequence[PlannedOutput]],
) -> VersionJobs:
    return VersionJobs(
        version.jobs_epoch,
        VersionStatus(version.status),
        bool(version.serves),
        tuple(
            _live_job(row, version, registry, tuple(inputs.get(row.id, ())), tuple(outputs.get(row.name, ())))
            for row in rows
        ),
        {each.dataset_id: each.generation_id for of_job in outputs.values() for each in of_job},
    )


def _live_job(
    row: Any,
    version: Any,
    registry: Registry,
    inputs: tuple[PlannedInput, ...],
    outputs: tuple[PlannedOutput, ...],
) -> LiveJob:
    job = msgspec.convert(row.definition, Job)
    missing, runtime = registry.missing_reason(job), registry.runtimes.get(job.runtime)
    # The row says what the registry said at the deploy; what it says now counts, if it knows the job.
    return LiveJob(
        id=row.id,
        edition_id=row.edition_id,
        logical_id=row.logical_id,
        dag=row.dag,
        version_id=row.version_id,
        version_number=version.number,
        status=VersionStatus(version.status),
        queue=(runtime.queue_of(job) if runtime is not None else None) or row.queue,
        job=job,
        config_hash=row.config_hash,
        inputs=inputs,
        outputs=outputs,
        timeout_s=row.timeout_seconds if runtime is None else runtime.timeout_s(job),
        bundle=row.bundle,
        missing=missing,
    )


def _read_inputs(tx: Tx, these: Mapping[str, Sequence[str]]) -> Mapping[str, list[PlannedInput]]:
    """Return the inputs of the jobs of these versions, by the id of the job's row."""
    inputs: dict[str, list[PlannedInput]] = {}
    for row in tx.execute(_INPUTS, these):
        planned = PlannedInput(
            row.position, row.name, row.dataset_id, row.generation_id, row.trigger_, row.where_ or {}
        )
        inputs.setdefault(row.job_id, []).append(planned)
    return inputs


def _read_outputs(tx: Tx, these: Mapping[str, Sequence[str]]) -> Mapping[str, dict[str, list[PlannedOutput]]]:
    """Return the outputs of the jobs of these versions, by version and by name of the job."""
    outputs: dict[str, dict[str, list[PlannedOutput]]] = {}
    for row in tx.execute(_OUTPUTS, these):
        planned = PlannedOutput(row.output, row.dataset_id, row.generation_id)
        outputs.setdefault(row.version_id, {}).setdefault(row.job, []).append(planned)
    return outputs
