"""Deploy a DAG: write down the version that a file means, and let its jobs live beside those that serve.

A version is known by its content, so deploying a file again changes nothing:

    live already               nothing happens
    deployed before, not live  staged again under its old number; what was cancelled then is taken up where it stood
    rolled back                refused, unless the caller says that it knows (``again``); else as above
    new, nothing is active     active at once: nobody is served by anything else
    new, nothing to rebuild    ready at once; still somebody says when (``cutover.activate``)
    new, otherwise             staged: built beside the active version until somebody calls it ready

A DAG has at most one version that is staged or ready: another one takes its place, and it is abandoned.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
from qo.dispatcher.tasks import backlog
from qo.dispatcher.versions import cutover, publishing, records, side_inputs
from qo.errors import Refused
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
    gone: Collection[str] = (),
    again: bool = False,
) -> DeployAnswer:
    """Deploy a resolved, validated DAG.

    ``source``: the file as it was sent. ``bundle``: the code of its jobs. ``gone``: bundles whose files are missing.
    ``again``: also one that was rolled back.

    Raises UsageError for a dataset that nobody publishes and for a bundle that is not there, Refused for a name that
    belongs to another DAG or that another one would miss, and for a version that was rolled back.
    """
    topology.hold(tx)
    wanted = planned(tx, dag)
    job_code.check(tx, dag, bundle)
    compared = _compared(tx, wanted)
    known = _known_version(tx, wanted)
    if known is not None and known["status"] in LIVE:
        if job_code.adopt(tx, known["id"], bundle, gone):
            topology.bump(tx)
        return _answer(known, compared, created=False, changed=False)
    if known is not None and compared.rolled_back and not again:
        raise Refused(
            f"version {known['number']} of {dag.name!r} was rolled back{_rollback_words(compared)}: deploy it again "
            "with --again (again: true), or change the file"
        )
    made = [made.generation_id for job in wanted.jobs for made in job.outputs]
    retention.require_kept(tx, made, f"this version of {dag.name!r}")
    bundles = job_code.bundles_of(tx, known["id"] if known is not None else None, bundle, gone)
    version_id = _write_version(tx, wanted, source, by, known)
    _write_jobs(tx, wanted, version_id, registry, bundles)
    _write_datasets(tx, wanted, version_id)
    _write_sources(tx, wanted)
    abandoned = _stage(tx, wanted, version_id, by, rebuilds=bool(compared.rebuilt))
    written = tx.one(sa.select(_versions).where(_versions.c.id == version_id))
    assert written is not None
    return _answer(written, compared, created=known is None, changed=True, abandoned=abandoned)


def diff(tx: Tx, dag: Dag, registry: Registry) -> DiffAnswer:
    """What deploying it would change. Raises as ``deploy`` does."""
    wanted = planned(tx, dag)
    for job in wanted.jobs:
        registry.get(job.job.runtime)
    return _compared(tx, wanted)


def planned(tx: Tx, dag: Dag) -> Plan:
    """What it would be. Raises as ``deploy`` does."""
    wanted = plan(dag, publishing.resolve(tx, dag))
    publishing.check(tx, wanted)
    publishing.check_loop(tx, wanted)
    return wanted


def _known_version(tx: Tx, wanted: Plan) -> sa.RowMapping | None:
    """The version that was deployed with the same content."""
    same = sa.and_(_versions.c.dag == wanted.dag.name, _versions.c.content_hash == wanted.content_hash)
    return tx.one(sa.select(_versions).where(same))


def _rollback_words(compared: DiffAnswer) -> str:
    at = f" on {compared.rolled_back_at:%Y-%m-%d %H:%M} UTC" if compared.rolled_back_at is not None else ""
    return at + (f" by {compared.rolled_back_by}" if compared.rolled_back_by is not None else "")


def _compared(tx: Tx, wanted: Plan) -> DiffAnswer:
    known = _known_version(tx, wanted)
    rollback = records.find_rollback(tx, known)
    now = cutover.active(tx, wanted.dag.name)
    found = differences.diff(cutover.stored_plan(tx, now) if now is not None else None, wanted)
    return DiffAnswer(
        dag=wanted.dag.name,
        against=now["number"] if now is not None else None,
        same=now is not None and now["content_hash"] == wanted.content_hash,
        added=list(found.added),
        removed=list(found.removed),
        edited=[EditedJob(job=each.job, fields=list(each.fields)) for each in found.edited],
        operational=[EditedJob(job=each.job, fields=list(each.fields)) for each in found.operational],
        rebuilt=[RebuiltJob(job=each.job, why=each.why) for each in found.rebuilt],
        carried_over=list(found.carried_over),
        version=known["number"] if known is not None else None,
        rolled_back=rollback is not None,
        rolled_back_at=rollback.at if rollback is not None else None,
        rolled_back_by=rollback.by if rollback is not None else None,
    )


def _write_version(tx: Tx, wanted: Plan, source: str, by: str, known: sa.RowMapping | None) -> str:
    """A new version, or the known one made as good as new."""
    if known is not None:
        # Its jobs are written afresh: a name of another DAG may stand for another dataset by now.
        of_version = sa.select(_jobs.c.id).where(_jobs.c.version_id == known["id"])
        tx.execute(sa.delete(schema.job_inputs).where(schema.job_inputs.c.job_id.in_(of_version)))
        tx.execute(sa.delete(_jobs).where(_jobs.c.version_id == known["id"]))
        pointers = schema.version_generations
        tx.execute(sa.delete(pointers).where(pointers.c.version_id == known["id"]))
        return known["id"]
    name = wanted.dag.name
    last = tx.value(sa.select(sa.func.max(_versions.c.number)).where(_versions.c.dag == name)) or 0
    version_id = derive_id("version", name, wanted.content_hash)
    row = {
        "id": version_id,
        "dag": name,
        "number": last + 1,
        "content_hash": wanted.content_hash,
        "document": to_json(wanted.dag).decode(),
        "source": source,
        "status": VersionStatus.STAGED,
        "created_at": tx.now,
        "created_by": by,
    }
    tx.insert_absent(schema.dags, [{"name": name, "updated_at": tx.now}], schema.dags.c.name)
    tx.insert(_versions, [row])
    return version_id


def _write_jobs(tx: Tx, wanted: Plan, version_id: str, registry: Registry, bundles: Mapping[str, str]) -> None:
    """``bundles``: the hash of the code of each job that does not run the workers' own."""
    rows: list[dict[str, Any]] = []
    inputs: list[dict[str, Any]] = []
    for each in wanted.jobs:
        job_id = derive_id("version job", version_id, each.job.name)
        runtime = registry.get(each.job.runtime)
        rows.append(
            {
                "id": job_id,
                "version_id": version_id,
                "dag": wanted.dag.name,
                "name": each.job.name,
                "logical_id": each.logical_id,
                "edition_id": each.edition_id,
                "config_hash": each.config_hash,
                "queue": runtime.queue,
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


def _write_datasets(tx: Tx, wanted: Plan, version_id: str) -> None:
    made = [(job, output) for job in wanted.jobs for output in job.outputs]
    datasets = [
        {
            "id": output.dataset_id,
            "dag": wanted.dag.name,
            "job": job.job.name,
            "output": output.index,
            "created_at": tx.now,
        }
        for job, output in made
    ]
    generations = [
        {
            "id": output.generation_id,
            "dataset_id": output.dataset_id,
            "edition_id": job.edition_id,
            "config_hash": job.config_hash,
            "created_at": tx.now,
        }
        for job, output in made
    ]
    pointers = [
        {"version_id": version_id, "dataset_id": output.dataset_id, "generation_id": output.generation_id}
        for _, output in made
    ]
    tx.insert_absent(schema.datasets, datasets, schema.datasets.c.id)
    tx.insert_absent(schema.generations, generations, schema.generations.c.id)
    tx.insert(schema.version_generations, pointers)


def _write_sources(tx: Tx, wanted: Plan) -> None:
    """A source stands in ``sources`` as long as its edition lives; what it remembers from earlier, it keeps."""
    rows = [_source(job, wanted.dag.name) | {"updated_at": tx.now} for job in wanted.jobs if job.job.is_source]
    tx.insert_absent(schema.sources, rows, schema.sources.c.edition_id)


def _source(job: PlannedJob, dag: str) -> dict[str, str | int]:
    kind = job.job.source.kind if job.job.source is not None else SourceKind.MANUAL
    # Only an always_on source has something to start; the others are there as soon as they are written down.
    state = SourceState.PENDING if kind is SourceKind.ALWAYS_ON else SourceState.RUNNING
    return {
        "edition_id": job.edition_id,
        "dag": dag,
        "job": job.job.name,
        "kind": kind,
        "state": state,
        "restarts": 0,
    }


def _stage(tx: Tx, wanted: Plan, version_id: str, by: str, *, rebuilds: bool) -> int | None:
    """Let the version live. The number of the one whose place it took."""
    dag = wanted.dag.name
    waiting = tx.one(
        sa.select(_versions).where(
            _versions.c.dag == dag, _versions.c.status.in_(list(cutover.STAGED)), _versions.c.id != version_id
        )
    )
    status = VersionStatus.STAGED if rebuilds else VersionStatus.READY
    tx.execute(
        sa.update(_versions)
        .where(_versions.c.id == version_id)
        .values(status=status, ready_at=None if rebuilds else tx.now)
    )
    epoch = topology.bump(tx)
    if waiting is not None:
        cutover.abandon(tx, dag, waiting["number"], by)
    backlog.revive(tx, _editions(wanted.jobs), token=derive_id("revive", version_id, epoch))
    _compare_again(tx, wanted)
    if cutover.active(tx, dag) is None:
        number = tx.value(sa.select(_versions.c.number).where(_versions.c.id == version_id))
        cutover.activate(tx, dag, number, by, force=True)
    return waiting["number"] if waiting is not None else None


def _compare_again(tx: Tx, wanted: Plan) -> None:
    """What the jobs of the version that read something beside have made is compared with that before they go on."""
    editions = _editions(wanted.jobs)
    side_inputs.forget(tx, editions)
    waiting = side_inputs.rebuilds(tx, topology.load(tx))
    # A wake-up that is on its way would be claimed before that.
    backlog.withhold(tx, [edition for edition in editions if edition in waiting and waiting[edition].waits_for])


def _editions(jobs: Iterable[PlannedJob]) -> frozenset[str]:
    return frozenset(job.edition_id for job in jobs)


def _answer(
    version: sa.RowMapping, compared: DiffAnswer, *, created: bool, changed: bool, abandoned: int | None = None
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
        diff=compared,
    )
