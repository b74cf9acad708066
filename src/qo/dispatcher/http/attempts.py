"""Routes for running tasks. Each is called with the capability of an attempt, and speaks of that attempt only."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.credential import CredentialsAnswer, CredentialsRequest
from qo.api.contract.task import (
    NUMBER_MAX,
    CompleteAnswer,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
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
from qo.dispatcher.commits import keeping, replacing
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.routes import CallerParam, ContextParam, Routes
from qo.dispatcher.state.database import Tx


def heartbeat(context: ContextParam, caller: CallerParam, body: HeartbeatRequest) -> HeartbeatAnswer:
    """Renew the lease of the attempt, and hear whether to go on.

    Brings a fresh capability when the old one is near its end.
    """
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        answer = attempts.heartbeat(tx, body)
        if not capabilities.near_its_end(caller.capability, tx.now):
            return answer
        return answer.model_copy(update={"capability_token": _fresh(context, tx, body)})


def _fresh(context: Context, tx: Tx, fence: HeartbeatRequest) -> str | None:
    data = context.settings.dispatcher.data_root
    found = attempts.fetch(tx, fence.task_id, data)
    if found.work is None:
        return None
    return scopes.token_for(tx, context.keyring, found.work, fence.lease_id, data)


def emit_events(context: ContextParam, caller: CallerParam, body: EventsRequest) -> EventsAnswer:
    """Announce what is new in the outputs of the attempt, before it ends."""
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        answer = attempts.emit(tx, body)
    context.nudge()
    return answer


def complete(context: ContextParam, caller: CallerParam, body: CompleteRequest) -> CompleteAnswer:
    """End the attempt: commit its outputs, or say how it failed.

    Repeated, it is answered as before and changes nothing.
    """
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        answer = completion.complete(tx, body, context.settings.dispatcher.data_root)
        go_on = context.onward(tx)
    go_on()
    return answer


def credentials(context: ContextParam, caller: CallerParam, body: CredentialsRequest) -> CredentialsAnswer:
    """Get credentials of the bucket, for the prefixes of the attempt and nothing else."""
    return minting.mint(context.state, body, caller.capability, context.settings)


def task_inputs(
    context: ContextParam,
    caller: CallerParam,
    position: Annotated[int, Query(ge=0, le=1000, description="Which input of the task.")],
    after: Annotated[
        str | None, Query(max_length=500, description="Where the page before ended: its after.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=pins.PIECES_MAX)] = pins.PIECES_MAX,
) -> PiecesAnswer:
    """List further pieces of an input, where the claim did not hold them all."""
    with context.state.read() as tx:
        capabilities.still_valid(tx, caller.capability)
        found, rest = pins.page(tx, caller.capability.task_id, position, after, limit)
        return PiecesAnswer(pieces=found, after=rest)


def task_standing(
    context: ContextParam,
    caller: CallerParam,
    output: Annotated[int, Query(ge=0, le=1000, description="Which output of the task.")],
    after: Annotated[
        str | None, Query(max_length=500, description="Where the page before ended: its after.")
    ] = None,
    revision: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="As of this one: that of the first page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=pins.PIECES_MAX)] = pins.PIECES_MAX,
) -> StandingAnswer:
    """List what is committed of an output but for what the task replaces, for those that append to it."""
    with context.state.read() as tx:
        capabilities.still_valid(tx, caller.capability)
        return replacing.others(tx, caller.capability.task_id, output, after, revision, limit)


def task_kept(context: ContextParam, caller: CallerParam, body: KeptRequest) -> KeptAnswer:
    """Get what was committed before under the key of the task, where it cannot be made again."""
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        capabilities.still_valid(tx, caller.capability)
        return keeping.keep(tx, body.task_id, body.output)


def install(routes: Routes) -> None:
    routes.post("/v1/task/heartbeat", heartbeat, 404, 409, frequent=True)
    routes.post("/v1/task/events", emit_events, 404, 409)
    routes.post("/v1/task/complete", complete, 404, 409, frequent=True)
    routes.post("/v1/task/credentials", credentials, 409)
    routes.get("/v1/task/inputs", task_inputs, 400, 404, 409)
    routes.get("/v1/task/standing", task_standing, 400, 404, 409)
    routes.post("/v1/task/kept", task_kept, 404, 409)
