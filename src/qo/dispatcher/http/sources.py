"""Routes for sources: events from people and webhooks, and the state of sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from qo.api.contract.pressure import HeldAnswer
from qo.api.contract.source import EmitAnswer, EmitRequest, SourcesAnswer
from qo.dispatcher.engine.release_limits import thresholds
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.secrets.secret_store import WEBHOOKS
from qo.dispatcher.sources import emission, webhooks
from qo.dispatcher.sources import live_sources as live
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views import held
from qo.errors import Unauthenticated

Name = Annotated[str, Path(max_length=200)]


def list_sources(
    context: ContextParam,
    kind: Annotated[str | None, Query(max_length=20, description="Only this kind.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> SourcesAnswer:
    """List the live sources with their state."""
    with context.state.read() as tx:
        return live.list_sources(tx, after, limit, kind)


def list_held(context: ContextParam) -> HeldAnswer:
    """List what is held back, by which threshold of which queue or job, and what must happen for it to go on."""
    limits = thresholds(context.settings.dispatcher.pressure)
    with context.state.read() as tx:
        return held.list_held(tx, limits)


def emit(context: ContextParam, caller: CallerParam, dag: Name, job: Name, body: EmitRequest) -> EmitAnswer:
    """Emit events of a source.

    A repeated idempotency_key with the same events returns the same answer and does nothing.
    """
    with context.state.write() as tx:
        context.prepare(tx)
        answer = emission.emit(
            tx,
            dag,
            job,
            key=body.idempotency_key,
            events=body.events,
            by=caller.name,
            edition_id=body.edition_id,
            coalesced=body.coalesced,
        )
        after_commit = context.fast_path(tx)
    after_commit()
    return answer


def _admit_webhook(context: Context, request: Request) -> None:
    """Check the headers of a webhook before its body is read: it has no token, so anybody may call."""
    secrets, path = context.keyring.secrets, request.path_params["path"]
    _authenticate(context, lambda tx: webhooks.admit(tx, path, request.headers, secrets))


def _authenticate(context: Context, check: Callable[[Tx], object]) -> None:
    """Call ``check``; once more if it refuses a message and the secrets of webhooks have changed meanwhile."""
    secrets = context.keyring.secrets
    entries = secrets.entries(WEBHOOKS)
    try:
        with context.state.read() as tx:
            check(tx)
        return
    except Unauthenticated:
        secrets.refresh()
        if secrets.entries(WEBHOOKS) == entries:
            raise
    with context.state.read() as tx:
        check(tx)


async def _read_body(request: Request) -> bytes:
    return await request.body()


def webhook(
    context: ContextParam,
    request: Request,
    path: Annotated[str, Path(max_length=400)],
    body: Annotated[bytes, Depends(_read_body)],
) -> EmitAnswer:
    """Receive a signed message for the source that listens at the path.

    Signed as X-Qo-Signature: t=SECONDS,v1=HEX or X-Hub-Signature-256: sha256=HEX, with the secret of the source.
    """
    secrets, headers = context.keyring.secrets, request.headers
    # A refused message must not wait for a writer.
    _authenticate(context, lambda tx: webhooks.examine(tx, path, headers, body, secrets))
    with context.state.write() as tx:
        context.prepare(tx)
        answer = webhooks.receive(tx, path, headers, body, secrets)
        after_commit = context.fast_path(tx)
    after_commit()
    return answer


_MESSAGE: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": EmitRequest.model_json_schema()}}}
}


def install(routes: Routes) -> None:
    routes.get("/v1/sources", list_sources)
    routes.get("/v1/held", list_held)
    routes.post("/v1/sources/{dag}/{job}/events", emit, 404, 409, 429)
    routes.post("/v1/webhooks/{path:path}", webhook, 404, 409, 429, extra=_MESSAGE, admit=_admit_webhook)
