"""Routes for DAGs: deploy, diff, activate, roll back, pause."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError

from qo.api.contract.body import Body
from qo.api.contract.dag import (
    CutoverAnswer,
    DagsPage,
    DeployAnswer,
    DeployRequest,
    DiffAnswer,
    PauseAnswer,
    PauseRequest,
    ReadyRequest,
    RebuildAnswer,
    VersionShown,
    VersionsPage,
)
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.plan import content_hash
from qo.dispatcher.bundles import job_code
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.state.database import Tx
from qo.dispatcher.versions import cutover, deploy, overview, pausing, publishing, rebuilding
from qo.errors import UsageError
from qo.pipeline.parsing import read

Name = Annotated[str, Path(max_length=200, description="The DAG's name.")]
Number = Annotated[int, Path(ge=1, le=2**31 - 1, description="The version's number.")]
Scope = Annotated[str, Path(max_length=401, description="A DAG, or a job of it as dag.job.")]


class ActivateRequest(Body):
    version: int = Field(ge=1, le=2**31 - 1)
    force: bool = False  # Also a version that is not marked ready, or that has failed tasks.


class RollbackRequest(Body):
    # The version to roll back. If another one is active by now, nothing is changed.
    replaces: int | None = Field(default=None, ge=1, le=2**31 - 1)


async def _read_request(request: Request) -> DeployRequest:
    """Read the file: as ``source`` of a JSON body, which may have further fields, or as the whole body."""
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            return DeployRequest.model_validate_json(body)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            if wrong[0]["type"] == "json_invalid":
                raise UsageError(f"the body is not JSON: {wrong[0].get('ctx', {}).get('error')}") from None
            raise RequestValidationError(wrong) from None
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError("the body is not text in UTF-8: send the file as it is, or {source: text}") from None
    if not text.strip():
        raise UsageError("the body is empty: send the file as it is, or {source: text}")
    # Without validation: the middleware limits the length of a bare file.
    return DeployRequest.model_construct(source=text)


async def _read_source(request: Request) -> str:
    return (await _read_request(request)).source


DeployParam = Annotated[DeployRequest, Depends(_read_request)]
SourceParam = Annotated[str, Depends(_read_source)]
FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": DeployRequest.model_json_schema()},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


def read_definition(context: Context, dag: str, source: str) -> Dag:
    """Read the definition of ``dag``. Raises DefinitionError, or UsageError if it defines another DAG."""
    with context.state.read() as tx:
        publishers = publishing.list_names(tx)
    definition = read(source, file=f"{dag}.yaml", registry=context.registry, known_datasets=publishers)
    name = definition.name
    if name != dag:
        raise UsageError(f"the file defines {name!r}, and was sent to {dag!r}: send it to /v1/dags/{name}")
    return definition


def list_dags(
    context: ContextParam,
    dag: Annotated[str | None, Query(max_length=200, description="Only the DAG of this name.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> DagsPage:
    """List the DAGs, each with its active version."""
    with context.state.read() as tx:
        return overview.list_dags(tx, after, limit, dag)


def show_dag(context: ContextParam, dag: Name) -> VersionShown:
    """Show a DAG as its active version defines it; without an active version, as its newest does."""
    with context.state.read() as tx:
        active = cutover.active(tx, dag)
        return overview.show(tx, dag, None if active is not None else _newest(tx, dag))


def _newest(tx: Tx, dag: str) -> int:
    """Return the number of the newest version. Raises NotFound for a DAG that was never deployed."""
    return overview.list_versions(tx, dag, limit=1).versions[0].version


def list_versions(context: ContextParam, dag: Name, after: After = None, limit: Limit = 100) -> VersionsPage:
    """List the versions of a DAG, newest first."""
    with context.state.read() as tx:
        return overview.list_versions(tx, dag, after, limit)


def show_version(context: ContextParam, dag: Name, number: Number) -> VersionShown:
    """Show a version of a DAG."""
    with context.state.read() as tx:
        return overview.show(tx, dag, number)


def deploy_version(
    context: ContextParam,
    caller: CallerParam,
    dag: Name,
    request: DeployParam,
    dry_run: Annotated[bool, Query(description="Only compare with the active version.")] = False,
    again: Annotated[bool, Query(description="Deploy the version even if it was rolled back.")] = False,
) -> DeployAnswer | DiffAnswer:
    """Deploy a version of a DAG; it is built beside the active version until it is activated.

    The body is the file as YAML, or JSON {source}, which may name the bundle of its code. Deploying the same file again
    changes nothing. A version that was rolled back is refused, unless the body or the query sets again.
    """
    definition = read_definition(context, dag, request.source)
    if dry_run:
        with context.state.read() as tx:
            return deploy.diff(tx, definition, context.registry)
    with context.state.read() as tx:
        bundles = job_code.named_bundles(tx, dag, content_hash(definition))
    missing = job_code.find_missing(BundleStore(context.settings), bundles)
    with context.state.write() as tx:
        answer = deploy.deploy(
            tx,
            definition,
            request.source,
            caller.name,
            context.registry,
            request.bundle,
            missing_bundles=missing,
            again=again or request.again,
        )
    context.deployed()
    return answer


def mark_ready(
    context: ContextParam, caller: CallerParam, dag: Name, number: Number, body: ReadyRequest | None = None
) -> CutoverAnswer:
    """Mark a staged version as ready to be activated. One with failed tasks is refused, unless force is set."""
    with context.state.write() as tx:
        return cutover.mark_ready(tx, dag, number, caller.name, body is not None and body.force)


def activate_version(
    context: ContextParam, caller: CallerParam, dag: Name, body: ActivateRequest
) -> CutoverAnswer:
    """Activate a version, all its datasets at once. One with failed tasks is refused, unless force is set."""
    with context.state.write() as tx:
        answer = cutover.activate(tx, dag, body.version, caller.name, body.force)
    context.deployed()
    return answer


def rollback_dag(
    context: ContextParam, caller: CallerParam, dag: Name, body: RollbackRequest | None = None
) -> CutoverAnswer:
    """Roll back to the version that was active before."""
    with context.state.write() as tx:
        answer = cutover.rollback(tx, dag, caller.name, body.replaces if body is not None else None)
    context.deployed()
    return answer


def rebuild_progress(
    context: ContextParam,
    dag: Name,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Unset: the newest.")] = None,
) -> RebuildAnswer:
    """Show how much a version still has to build."""
    with context.state.read() as tx:
        return rebuilding.rebuild(tx, dag, version if version is not None else _newest(tx, dag))


def pause(
    context: ContextParam, caller: CallerParam, scope: Scope, body: PauseRequest | None = None
) -> PauseAnswer:
    """Pause a DAG or a job: none of its tasks are released; running ones continue."""
    with context.state.write() as tx:
        return pausing.pause(tx, scope, body.reason if body is not None else "", caller.name)


def resume(context: ContextParam, caller: CallerParam, scope: Scope) -> PauseAnswer:
    """Resume a DAG or a job."""
    with context.state.write() as tx:
        answer = pausing.resume(tx, scope, caller.name)
    context.deployed()
    return answer


def install(routes: Routes) -> None:
    routes.get("/v1/dags", list_dags)
    routes.get("/v1/dags/{dag}", show_dag, 404)
    routes.get("/v1/dags/{dag}/versions", list_versions, 404)
    routes.post("/v1/dags/{dag}/versions", deploy_version, 409, extra=FILE)
    routes.get("/v1/dags/{dag}/versions/{number}", show_version, 404)
    routes.post("/v1/dags/{dag}/versions/{number}/ready", mark_ready, 404, 409)
    routes.put("/v1/dags/{dag}/active", activate_version, 404, 409)
    routes.post("/v1/dags/{dag}/rollback", rollback_dag, 404, 409)
    routes.get("/v1/dags/{dag}/rebuild", rebuild_progress, 404)
    routes.post("/v1/dags/{scope}/pause", pause, 404)
    routes.post("/v1/dags/{scope}/resume", resume, 404)
