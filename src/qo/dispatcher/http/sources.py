"""Routes for sources: what people and webhooks have to say for them, and how they and the queues are."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Path, Query, Request

from qo.api.contract.body import Answer
from qo.api.contract.source import EmitAnswer, EmitRequest, SourcesAnswer
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.sources import emission, webhooks
from qo.dispatcher.sources import live_sources as live
from qo.dispatcher.state import schema

QUEUES_MAX = 1000  # One for each runtime: a handful.

Name = Annotated[str, Path(max_length=200)]


class QueueLine(Answer):
    name: str
    depth: int
    oldest_s: float
    tripped_at: datetime | None = None  # Set while the producers of the queue are paused.
    reason: str | None = None
    measured_at: datetime


class QueuesAnswer(Answer):
    queues: list[QueueLine]


def list_sources(
    context: ContextParam,
    kind: Annotated[str | None, Query(max_length=20, description="Only of this kind.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> SourcesAnswer:
    """List the live sources, and how they are."""
    with context.state.read() as tx:
        return live.list_sources(tx, after, limit, kind)


def list_queues(context: ContextParam) -> QueuesAnswer:
    """List the queues with their pressure, as last measured."""
    with context.state.read() as tx:
        rows = tx.all(sa.select(schema.queues).order_by(schema.queues.c.name).limit(QUEUES_MAX))
        return QueuesAnswer(queues=[QueueLine.model_validate(dict(row)) for row in rows])


def emit(context: ContextParam, caller: CallerParam, dag: Name, job: Name, body: EmitRequest) -> EmitAnswer:
    """Say that a source has something new.

    The same idempotency_key again, with the same events, is answered as before and does nothing.
    """
    with context.state.write() as tx:
        answer = emission.emit(
            tx, dag, job, key=body.idempotency_key, events=body.events, by=caller.name, edition_id=body.edition_id
        )
    context.nudge()
    return answer


def _admit_webhook(context: Context, request: Request) -> None:
    """A webhook has no token, so anybody may call: what its headers show is looked at before the body is read."""
    with context.state.read() as tx:
        webhooks.admit(tx, request.path_params["path"], request.headers, _secrets(context))


def _secrets(context: Context) -> FilePath:
    return FilePath(context.settings.dispatcher.secrets_dir)


async def _body(request: Request) -> bytes:
    return await request.body()


def webhook(
    context: ContextParam,
    request: Request,
    path: Annotated[str, Path(max_length=400)],
    body: Annotated[bytes, Depends(_body)],
) -> EmitAnswer:
    """Take a signed message for the source that listens at the path.

    Signed as X-Qo-Signature: t=SECONDS,v1=HEX or X-Hub-Signature-256: sha256=HEX, with the secret of the source.
    """
    secrets = _secrets(context)
    with context.state.read() as tx:
        webhooks.examine(tx, path, request.headers, body, secrets)  # Who is refused keeps no writer waiting.
    with context.state.write() as tx:
        answer = webhooks.receive(tx, path, request.headers, body, secrets)
    context.nudge()
    return answer


_MESSAGE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": EmitRequest.model_json_schema()}}}
}


def install(routes: Routes) -> None:
    routes.get("/v1/sources", list_sources)
    routes.get("/v1/queues", list_queues)
    routes.post("/v1/sources/{dag}/{job}/events", emit, 404, 409)
    routes.post("/v1/webhooks/{path:path}", webhook, 404, 409, extra=_MESSAGE, admit=_admit_webhook)
