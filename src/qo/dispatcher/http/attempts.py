"""Routes for running tasks. Each is called with the capability of an attempt, and affects that attempt only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Response

from qo.api.contract.credential import CredentialsAnswer, CredentialsRequest
from qo.api.contract.task import (
    NUMBER_MAX,
    CompleteAnswer,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    InputPart,
    KeptAnswer,
    KeptRequest,
    PiecesAnswer,
    StandingAnswer,
)
from qo.dispatcher.attempts import completion, pins
from qo.dispatcher.attempts import running as attempts
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import credentials as minting
from qo.dispatcher.auth import scopes
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.commits import keeping, replacing
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.routes import AfterPiece, Call, CallerParam, ContextParam, Routes
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound


class ZipResponse(Response):
    media_type = "application/zip"


def heartbeat(context: ContextParam, caller: CallerParam, body: HeartbeatRequest) -> HeartbeatAnswer:
    """Renew the lease of the attempt, and learn whether to continue.

    The answer holds a new capability when the old one is about to expire.
    """
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        answer = attempts.heartbeat(tx, body)
        if not capabilities.needs_renewal(caller.capability, tx.now):
            return answer
        return answer.model_copy(update={"capability_token": _renew_capability(context, tx, body)})


def _renew_capability(context: Context, tx: Tx, fence: HeartbeatRequest) -> str | None:
    data = context.settings.dispatcher.data_root
    work = attempts.fetch(tx, fence.task_id, data).work
    if work is None:
        return None
    token_id = tx.ambient.task_id()
    return scopes.token_for(context.keyring, work, fence.lease_id, data, token_id=token_id, now=tx.now)


def emit_events(context: ContextParam, caller: CallerParam, body: EventsRequest) -> EventsAnswer:
    """Emit events for the outputs of the attempt before it ends."""
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        context.prepare(tx)
        answer = attempts.emit(tx, body)
        after_commit = context.fast_path(tx)
    after_commit()
    return answer


def complete(context: ContextParam, caller: CallerParam, body: CompleteRequest) -> CompleteAnswer:
    """End the attempt: commit its outputs, or report how it failed.

    A repeated request returns the same answer and changes nothing.
    """
    return complete_together(context, [Call(caller, body)])[0]


def complete_together(context: Context, calls: Sequence[Call]) -> list[CompleteAnswer]:
    """As ``complete``, for several attempts in one transaction. All or none."""
    for each in calls:
        capabilities.bind(each.caller.capability, each.body)
    endings = [completion.Ending(each.body) for each in calls]
    with context.state.write() as tx:
        context.prepare(tx)
        answers = completion.complete_all(tx, endings, context.settings.dispatcher.data_root)
        after_commit = context.fast_path(tx)
    after_commit()
    return answers


def credentials(context: ContextParam, caller: CallerParam, body: CredentialsRequest) -> CredentialsAnswer:
    """Get credentials of the bucket, limited to the prefixes of the attempt."""
    return minting.mint(context.state, body, caller.capability, context.settings)


def task_inputs(
    context: ContextParam,
    caller: CallerParam,
    position: Annotated[int, Query(ge=0, le=1000, description="Which input of the task.")],
    after: AfterPiece = None,
    part: Annotated[
        InputPart, Query(description="Which part of an input that is read by changes.")
    ] = InputPart.ADDED,
    limit: Annotated[int, Query(ge=1, le=pins.PIECES_MAX)] = pins.PIECES_MAX,
) -> PiecesAnswer:
    """List further pieces of an input, if the claim did not hold them all."""
    with context.state.read() as tx:
        capabilities.require_running(tx, caller.capability)
        pieces, rest = pins.page(tx, caller.capability.task_id, position, after, limit, part)
        return PiecesAnswer(pieces=pieces, after=rest)


def task_standing(
    context: ContextParam,
    caller: CallerParam,
    output: Annotated[int, Query(ge=0, le=1000, description="Which output of the task.")],
    after: AfterPiece = None,
    revision: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="As of this revision: that of the first page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=pins.PIECES_MAX)] = pins.PIECES_MAX,
) -> StandingAnswer:
    """List the committed pieces of an output, except those that the task replaces, for tasks that append to it."""
    if revision is None:
        revision = replacing.fix_revision(context.state, caller.capability.task_id, output)
    with context.state.read() as tx:
        capabilities.require_running(tx, caller.capability)
        return replacing.others(tx, caller.capability.task_id, output, after, revision, limit)


def task_kept(context: ContextParam, caller: CallerParam, body: KeptRequest) -> KeptAnswer:
    """Get the output that an earlier task committed under the same key, if it cannot be made again."""
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        capabilities.require_running(tx, caller.capability)
        return keeping.keep(tx, body.task_id, body.output)


def task_bundle(context: ContextParam, caller: CallerParam) -> Response:
    """Get the bundle of the attempt's function, as a zip."""
    with context.state.read() as tx:
        capabilities.require_running(tx, caller.capability)
        work = attempts.fetch(tx, caller.capability.task_id, context.settings.dispatcher.data_root).work
        if work is None or work.bundle_id is None:
            raise NotFound("the task runs no bundle")
        bundle = bundle_store.usable(tx, work.bundle_id)
    return ZipResponse(BundleStore(context.settings).read(bundle.sha256))


def install(routes: Routes) -> None:
    routes.post("/v1/task/heartbeat", heartbeat, 404, 409, frequent=True)
    routes.post("/v1/task/events", emit_events, 404, 409)
    routes.post("/v1/task/complete", complete, 404, 409, frequent=True, together=complete_together)
    routes.post("/v1/task/credentials", credentials, 409)
    routes.get("/v1/task/inputs", task_inputs, 400, 404, 409)
    routes.get("/v1/task/bundle", task_bundle, 404, 409, response_class=ZipResponse)
    routes.get("/v1/task/standing", task_standing, 400, 404, 409)
    routes.post("/v1/task/kept", task_kept, 404, 409)
