"""Read-only lists of DAGs and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from qo.api.contract.dag import DagLine, DagsPage, JobLine, VersionAnswer, VersionShown, VersionsPage
from qo.core.pipeline.dag import Dag, Input, from_json
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks import backlog, failures
from qo.dispatcher.versions import cutover, rebuilding
from qo.dispatcher.versions.rebuilding import rebuild
from qo.errors import NotFound, UsageError

PAGE_MAX = 1000

__all__ = ["list_dags", "list_versions", "rebuild", "require", "show"]

_versions, _dags, _jobs = schema.dag_versions, schema.dags, schema.jobs


def list_dags(tx: Tx, after: str | None = None, limit: int = 100, dag: str | None = None) -> DagsPage:
    """List all DAGs by name, or only the one of this name."""
    active, previous, waiting = _versions.alias("active"), _versions.alias("previous"), _versions.alias("waiting")
    size = sa.select(sa.func.count()).where(_jobs.c.version_id == _dags.c.active_version_id).scalar_subquery()
    query = (
        sa.select(
            _dags.c.name,
            _dags.c.updated_at,
            active.c.number.label("active"),
            previous.c.number.label("previous"),
            waiting.c.number.label("next"),
            waiting.c.status.label("next_status"),
            schema.pauses.c.reason.label("paused"),
            size.label("jobs"),
        )
        .outerjoin(active, active.c.id == _dags.c.active_version_id)
        .outerjoin(previous, previous.c.id == _dags.c.previous_version_id)
        .outerjoin(waiting, (waiting.c.dag == _dags.c.name) & waiting.c.status.in_(list(cutover.STAGED)))
        .outerjoin(schema.pauses, schema.pauses.c.scope == _dags.c.name)
        .order_by(_dags.c.name)
        .limit(_check_limit(limit) + 1)
    )
    if after is not None:
        query = query.where(_dags.c.name > after)
    if dag is not None:
        query = query.where(_dags.c.name == dag)
    lines = [DagLine.model_validate(dict(row)) for row in tx.all(query)]
    return DagsPage(dags=lines[:limit], next=lines[limit - 1].name if len(lines) > limit else None)


def require(tx: Tx, dag: str, job: str | None = None) -> None:
    """Raises NotFound for a DAG that was never deployed, and for a job that no version of it has had."""
    if tx.one(sa.select(_dags.c.name).where(_dags.c.name == dag)) is None:
        raise NotFound(f"there is no DAG {dag!r}: see qo dag list")
    known_jobs = sa.select(_jobs.c.id).join(_versions, _versions.c.id == _jobs.c.version_id)
    if job is not None and tx.one(known_jobs.where(_versions.c.dag == dag, _jobs.c.name == job).limit(1)) is None:
        raise NotFound(f"DAG {dag!r} has no job {job!r}: see qo dag show {dag}")


def list_versions(tx: Tx, dag: str, after: str | None = None, limit: int = 100) -> VersionsPage:
    """List the versions of a DAG, newest first. Raises NotFound."""
    query = sa.select(_versions).where(_versions.c.dag == dag).order_by(_versions.c.number.desc())
    if after is not None:
        if not after.isdecimal() or int(after) >= 2**31:
            raise UsageError(f"{after!r} is not a page position: pass the next of the page before")
        query = query.where(_versions.c.number < int(after))
    rows = tx.all(query.limit(_check_limit(limit) + 1))
    if not rows and tx.one(sa.select(_dags.c.name).where(_dags.c.name == dag)) is None:
        raise NotFound(f"there is no DAG {dag!r}: see qo dag list")
    versions = [VersionAnswer.model_validate(_fields(row)) for row in rows]
    return VersionsPage(
        versions=versions[:limit], next=str(versions[limit - 1].version) if len(versions) > limit else None
    )


def show(tx: Tx, dag: str, number: int | None = None) -> VersionShown:
    """Return a version and the state of its jobs; without a number, the active version. Raises NotFound."""
    serving = cutover.active(tx, dag)
    version = serving if number is None and serving is not None else cutover.find(tx, dag, number)
    document = from_json(version["document"])
    paused = _pauses(tx, document)
    return VersionShown(
        **_fields(version),
        active=serving["number"] if serving is not None else None,
        paused=paused.get(dag),
        publish={
            name: f"{each.from_.job}[{each.from_.output}]" if each.from_.output else str(each.from_.job)
            for name, each in document.publish.items()
        },
        jobs=_job_lines(tx, version, serving, document, paused),
        source=version["source"],
    )


def _job_lines(
    tx: Tx, version: sa.RowMapping, serving: sa.RowMapping | None, document: Dag, paused: Mapping[str, str]
) -> list[JobLine]:
    rows = tx.all(
        sa.select(_jobs, schema.holds.c.reason.label("hold"), schema.sources.c.state.label("source"))
        .outerjoin(schema.holds, schema.holds.c.edition_id == _jobs.c.edition_id)
        .outerjoin(schema.sources, schema.sources.c.edition_id == _jobs.c.edition_id)
        .where(_jobs.c.version_id == version["id"])
        .order_by(_jobs.c.name)
    )
    shared = backlog.editions(tx, serving["id"]) if serving is not None else frozenset[str]()
    tasks = failures.counts(tx, {row["edition_id"] for row in rows})
    live = topology.load(tx)
    definitions = {job.name: job for job in document.jobs}
    return [
        JobLine(
            name=row["name"],
            edition_id=row["edition_id"],
            activation=definitions[row["name"]].activation,
            runtime=definitions[row["name"]].runtime,
            operator=definitions[row["name"]].operator,
            queue=row["queue"],
            group=definitions[row["name"]].group,
            reads=[_input_name(each) for each in definitions[row["name"]].inputs],
            outputs=definitions[row["name"]].outputs,
            rebuilt=row["edition_id"] not in shared,
            tasks=tasks.get(row["edition_id"], {}),
            # The stored reason of a job that waits for side inputs has no numbers; people see it with numbers.
            hold=row["hold"] and (rebuilding.why_held(tx, live, row["edition_id"]) or row["hold"]),
            paused=paused.get(f"{document.name}.{row['name']}", paused.get(document.name)),
            source=row["source"],
            code=definitions[row["name"]].code,
            bundle=row["bundle"],
        )
        for row in rows
    ]


def _input_name(each: Input) -> str:
    name = each.from_.job or each.from_.dataset or ""
    return f"{name}[{each.from_.output}]" if each.from_.output else name


def _pauses(tx: Tx, dag: Dag) -> dict[str, str]:
    scope = schema.pauses.c.scope
    mine = (scope == dag.name) | scope.startswith(f"{dag.name}.", autoescape=True)
    return {row.scope: row.reason for row in tx.execute(sa.select(scope, schema.pauses.c.reason).where(mine))}


def _fields(row: sa.RowMapping) -> dict[str, Any]:
    names = ("dag", "status", "content_hash", "created_at", "created_by", "ready_at", "activated_at")
    return {"version": row["number"], "version_id": row["id"]} | {name: row[name] for name in names}


def _check_limit(limit: int) -> int:
    if not 1 <= limit <= PAGE_MAX:
        raise UsageError(f"limit must be between 1 and {PAGE_MAX}, not {limit}")
    return limit
