"""Deploy a DAG: store the version that a file describes, and make its jobs live beside those of the active version.

A version is identified by its content, so deploying a file again changes nothing:

    already live               nothing happens
    deployed before, not live  staged again under its old number; its cancelled tasks are revived
    rolled back                refused, unless the caller confirms it (``again``); else as above
    new, no active version     active at once
    new, nothing to rebuild    ready at once; somebody must still activate it (``cutover.activate``)
    new, otherwise             staged: built beside the active version until somebody marks it ready

A DAG has at most one version that is staged or ready. Deploying another one abandons it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from qo.api.contract.dag import DeployAnswer, DeployBundle, DiffAnswer, EditedJob, RebuiltJob
from qo.core.pipeline import diff as differences
from qo.core.pipeline.dag import Dag, SourceKind, to_json
from qo.core.pipeline.plan import Plan, PlannedJob, derive_id, plan
from qo.core.pipeline.supervision import SourceState
from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.dispatcher.bundles import job_code
from qo.dispatcher.commits import retention
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog, bulk_changes
from qo.dispatcher.versions import cutover, publishing, records, side_inputs
from qo.errors import Refused, UsageError
from qo.pipeline.registry import Registry

_versions, _jobs = schema.dag_versions, schema.jobs


def deploy(
    tx: Tx,
    dag: Dag,
    source: str,
    by: str,
    registry: Registry,
    bundle: DeployBundle | None = None,
    *,
    missing_bundles: Collection[str] = (),
    again: bool = False,
) -> DeployAnswer:
    """Deploy a resolved, validated DAG.

    ``source``: the file as it was sent. ``bundle``: the code of its jobs. ``missing_bundles``: bundles whose files are
    missing. ``again``: deploy even a version that was rolled back.

    Raises UsageError for a dataset that nobody publishes and for a missing bundle; Refused for a published name that
    belongs to another DAG, for one that another DAG still reads, and for a version that was rolled back.
    """
    topology.hold(tx)
    target = _plan_version(tx, dag)
    _require_runtimes(target, registry)
    job_code.check(tx, dag, bundle)
    changes = _compare(tx, target).changes
    earlier = _find_same_content(tx, target)
    if earlier is not None and earlier["status"] in LIVE:
        if job_code.adopt(tx, earlier["id"], bundle, missing_bundles):
            topology.bump(tx, rewritten=earlier["id"])
        return _answer(earlier, changes, created=False, changed=False)
    if earlier is not None and changes.rolled_back and not again:
        raise Refused(
            f"version {earlier['number']} of {dag.name!r} was rolled back{_rollback_details(changes)}: deploy it again "
            "with --again (again: true), or change the file"
        )
    generations = [output.generation_id for job in target.jobs for output in job.outputs]
    retention.require_kept(tx, generations, f"this version of {dag.name!r}")
    bundles = job_code.bundles_of(tx, earlier["id"] if earlier is not None else None, bundle, missing_bundles)
    version_id = _write_version(tx, target, source, by, earlier)
    _write_jobs(tx, target, version_id, registry, bundles)
    _write_datasets(tx, target, version_id)
    _write_sources(tx, target)
    abandoned = _stage(tx, target, version_id, by, rebuilds=bool(changes.rebuilt))
    version = tx.one(sa.select(_versions).where(_versions.c.id == version_id))
    assert version is not None
    return _answer(version, changes, created=earlier is None, changed=True, abandoned=abandoned)


def diff(tx: Tx, dag: Dag, registry: Registry) -> DiffAnswer:
    """Return what deploying a DAG would change. Raises as ``deploy`` does."""
    return compare(tx, dag, registry).changes


@dataclass(frozen=True, slots=True)
class Comparison:
    target: Plan  # Of the version that deploying would create.
    serving: Plan | None  # Of the active version.
    changes: DiffAnswer


def compare(tx: Tx, dag: Dag, registry: Registry) -> Comparison:
    """Compare a DAG with its active version. Raises as ``deploy`` does."""
    target = _plan_version(tx, dag)
    _require_runtimes(target, registry)
    return _compare(tx, target)


def _require_runtimes(target: Plan, registry: Registry) -> None:
    """Raise NotFound if the registry lacks the runtime of a job, UsageError if it lacks a queue."""
    for each in target.jobs:
        runtime = registry.get(each.job.runtime)
        if runtime.queue_of(each.job) is None:
            raise UsageError(
                f"job {each.job.name!r}: the runtime {runtime.name} has no queue {each.job.queue!r}; it has "
                f"{', '.join(runtime.queues)}"
            )


def _plan_version(tx: Tx, dag: Dag) -> Plan:
    """Return the plan of the version that deploying would create. Raises as ``deploy`` does."""
    target = plan(dag, publishing.resolve(tx, dag))
    publishing.check(tx, target)
    publishing.check_loop(tx, target)
    return target


def _find_same_content(tx: Tx, target: Plan) -> sa.RowMapping | None:
    """Return the version that was deployed with the same content."""
    same = sa.and_(_versions.c.dag == target.dag.name, _versions.c.content_hash == target.content_hash)
    return tx.one(sa.select(_versions).where(same))


def _rollback_details(changes: DiffAnswer) -> str:
    at = f" on {changes.rolled_back_at:%Y-%m-%d %H:%M} UTC" if changes.rolled_back_at is not None else ""
    return at + (f" by {changes.rolled_back_by}" if changes.rolled_back_by is not None else "")


def _compare(tx: Tx, target: Plan) -> Comparison:
    earlier = _find_same_content(tx, target)
    rollback = records.find_rollback(tx, earlier)
    now = cutover.active(tx, target.dag.name)
    serving = cutover.stored_plan(tx, now) if now is not None else None
    changes = differences.diff(serving, target)
    answer = DiffAnswer(
        dag=target.dag.name,
        against=now["number"] if now is not None else None,
        same=now is not None and now["content_hash"] == target.content_hash,
        added=list(changes.added),
        removed=list(changes.removed),
        edited=[EditedJob(job=each.job, fields=list(each.fields)) for each in changes.edited],
        operational=[EditedJob(job=each.job, fields=list(each.fields)) for each in changes.operational],
        rebuilt=[RebuiltJob(job=each.job, why=each.why) for each in changes.rebuilt],
        carried_over=list(changes.carried_over),
        version=earlier["number"] if earlier is not None else None,
        rolled_back=rollback is not None,
        rolled_back_at=rollback.at if rollback is not None else None,
        rolled_back_by=rollback.by if rollback is not None else None,
    )
    return Comparison(target, serving, answer)


def _write_version(tx: Tx, target: Plan, source: str, by: str, earlier: sa.RowMapping | None) -> str:
    """Insert the version, or clear the jobs of the earlier one with the same content; return its id."""
    if earlier is not None:
        # The jobs are written anew: a published name of another DAG may stand for another dataset by now.
        of_version = sa.select(_jobs.c.id).where(_jobs.c.version_id == earlier["id"])
        tx.execute(sa.delete(schema.job_inputs).where(schema.job_inputs.c.job_id.in_(of_version)))
        tx.execute(sa.delete(_jobs).where(_jobs.c.version_id == earlier["id"]))
        pointers = schema.version_generations
        tx.execute(sa.delete(pointers).where(pointers.c.version_id == earlier["id"]))
        return earlier["id"]
    name = target.dag.name
    last = tx.value(sa.select(sa.func.max(_versions.c.number)).where(_versions.c.dag == name)) or 0
    version_id = derive_id("version", name, target.content_hash)
    row = {
        "id": version_id,
        "dag": name,
        "number": last + 1,
        "content_hash": target.content_hash,
        "document": to_json(target.dag).decode(),
        "source": source,
        "status": VersionStatus.STAGED,
        "created_at": tx.now,
        "created_by": by,
    }
    tx.insert_absent(schema.dags, [{"name": name, "updated_at": tx.now}], schema.dags.c.name)
    tx.insert(_versions, [row])
    return version_id


def _write_jobs(tx: Tx, target: Plan, version_id: str, registry: Registry, bundles: Mapping[str, str]) -> None:
    """``bundles``: the code's hash for each job that does not run the workers' own code."""
    rows: list[dict[str, Any]] = []
    inputs: list[dict[str, Any]] = []
    for each in target.jobs:
        job_id = derive_id("version job", version_id, each.job.name)
        runtime = registry.get(each.job.runtime)
        rows.append(
            {
                "id": job_id,
                "version_id": version_id,
                "dag": target.dag.name,
                "name": each.job.name,
                "logical_id": each.logical_id,
                "edition_id": each.edition_id,
                "config_hash": each.config_hash,
                "queue": runtime.queue_of(each.job) or runtime.queues[0],
                "timeout_seconds": runtime.timeout_s(each.job),
                "definition": msgspec.to_builtins(each.job),
                "bundle": bundles.get(each.job.name),
            }
        )
        inputs.extend(
            {
                "job_id": job_id,
                "position": read.position,
                "name": read.name,
                "dataset_id": read.dataset_id,
                "generation_id": read.generation_id,
                "trigger_": read.trigger,
                "where_": dict(read.where) or None,
            }
            for read in each.inputs
        )
    tx.insert(_jobs, rows)
    tx.insert(schema.job_inputs, inputs)


def _write_datasets(tx: Tx, target: Plan, version_id: str) -> None:
    outputs = [(job, output) for job in target.jobs for output in job.outputs]
    datasets = [
        {
            "id": output.dataset_id,
            "dag": target.dag.name,
            "job": job.job.name,
            "output": output.index,
            "created_at": tx.now,
        }
        for job, output in outputs
    ]
    generations = [
        {
            "id": output.generation_id,
            "dataset_id": output.dataset_id,
            "edition_id": job.edition_id,
            "config_hash": job.config_hash,
            "created_at": tx.now,
        }
        for job, output in outputs
    ]
    pointers = [
        {"version_id": version_id, "dataset_id": output.dataset_id, "generation_id": output.generation_id}
        for _, output in outputs
    ]
    tx.insert_absent(schema.datasets, datasets, schema.datasets.c.id)
    tx.insert_absent(schema.generation_rows, generations, schema.generation_rows.c.id)
    tx.insert(schema.version_generations, pointers)


def _write_sources(tx: Tx, target: Plan) -> None:
    """Insert the sources that are new. The row of a source that was live before keeps its memory."""
    rows = [_source_row(job, target.dag.name) | {"updated_at": tx.now} for job in target.jobs if job.job.is_source]
    tx.insert_absent(schema.sources, rows, schema.sources.c.edition_id)


def _source_row(job: PlannedJob, dag: str) -> dict[str, str | int]:
    kind = job.job.source.kind if job.job.source is not None else SourceKind.MANUAL
    # Only an always-on source has a task to start.
    state = SourceState.PENDING if kind is SourceKind.ALWAYS_ON else SourceState.RUNNING
    return {
        "edition_id": job.edition_id,
        "dag": dag,
        "job": job.job.name,
        "kind": kind,
        "state": state,
        "restarts": 0,
    }


def _stage(tx: Tx, target: Plan, version_id: str, by: str, *, rebuilds: bool) -> int | None:
    """Make the version live. Return the number of the staged version that was abandoned for it."""
    dag = target.dag.name
    waiting = tx.one(
        sa.select(_versions).where(
            _versions.c.dag == dag, _versions.c.status.in_(list(cutover.STAGED)), _versions.c.id != version_id
        )
    )
    status = VersionStatus.STAGED if rebuilds else VersionStatus.READY
    tx.execute(
        sa.update(_versions)
        .where(_versions.c.id == version_id)
        .values(status=status, ready_at=None if rebuilds else tx.now, ended_at=None)
    )
    epoch = topology.bump(tx, rewritten=version_id)
    if waiting is not None:
        cutover.abandon(tx, dag, waiting["number"], by)
    bulk_changes.revive(tx, _editions(target.jobs), token=derive_id("revive", version_id, epoch))
    _compare_again(tx, target)
    if cutover.active(tx, dag) is None:
        number = tx.value(sa.select(_versions.c.number).where(_versions.c.id == version_id))
        cutover.activate(tx, dag, number, by, force=True)
    return waiting["number"] if waiting is not None else None


def _compare_again(tx: Tx, target: Plan) -> None:
    """Have the output of jobs with side inputs compared with those inputs before the jobs continue."""
    editions = _editions(target.jobs)
    side_inputs.forget(tx, editions)
    waiting = side_inputs.rebuilds(tx, topology.load(tx))
    # A wake-up that is already published would be claimed before the comparison.
    backlog.withhold(tx, [edition for edition in editions if edition in waiting and waiting[edition].waits_for])


def _editions(jobs: Iterable[PlannedJob]) -> frozenset[str]:
    return frozenset(job.edition_id for job in jobs)


def _answer(
    version: sa.RowMapping, changes: DiffAnswer, *, created: bool, changed: bool, abandoned: int | None = None
) -> DeployAnswer:
    return DeployAnswer(
        dag=version["dag"],
        version=version["number"],
        version_id=version["id"],
        status=version["status"],
        content_hash=version["content_hash"],
        created=created,
        changed=changed,
        abandoned=abandoned,
        diff=changes,
    )
