"""Routes for workers, and for the processes that watch sources."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Response
from pydantic import Field

from qo.api.contract.source import EmitAnswer, EmitRequest, MemoryRequest, SourcesAnswer
from qo.api.contract.task import Claimed, ClaimRequest, NextRequest, NotClaimed, TaskState
from qo.dispatcher.attempts import claiming, next_tasks
from qo.dispatcher.attempts import running as attempts
from qo.dispatcher.auth import credentials as minting
from qo.dispatcher.auth import scopes
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.callers import Caller
from qo.dispatcher.http.routes import After, Call, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.http.sources import emit
from qo.dispatcher.sources import live_sources
from qo.dispatcher.state.database import Tx
from qo.dispatcher.tasks.places import task_places
from qo.errors import Forbidden, Unavailable

KEYS_FRESH_S = 60  # Verifiers may cache the keys for so long: a new key is published well before it signs.

Name = Annotated[str, Path(max_length=200)]
TaskId = Annotated[str, Query(min_length=1, max_length=36)]
ClaimAnswer = Annotated[Claimed | NotClaimed, Field(discriminator="status")]


def claim_task(context: ContextParam, caller: CallerParam, body: ClaimRequest) -> ClaimAnswer:
    """Claim a task, or learn why it cannot be claimed.

    A repeated request with the same lease_id returns the same answer.
    """
    return claim_together(context, [Call(caller, body)])[0]


def claim_together(context: Context, calls: Sequence[Call]) -> list[Claimed | NotClaimed]:
    """As ``claim_task``, for several tasks in one transaction. All or none."""
    data = context.settings.dispatcher.data_root
    with context.state.write() as tx:
        require_bound(tx, [(each.caller, each.body.task_id) for each in calls])
        answers = claiming.claim_all(tx, [each.body for each in calls], data)
        now = tx.now
    # Signed after the transaction, which others wait for. A claim whose answer is lost can be repeated.
    return [each if isinstance(each, NotClaimed) else _with_token(context, each, now) for each in answers]


def claim_next_together(context: Context, caller: Caller, requests: Sequence[NextRequest]) -> list[Claimed | None]:
    """Claim the next tasks of queues, one for each request, in one transaction."""
    if not requests:
        return []
    with context.state.write() as tx:
        answers = next_tasks.claim_next(tx, requests, context.settings.dispatcher.data_root)
        # Within the transaction, which a refusal undoes.
        require_bound(tx, [(caller, each.work.task_id) for each in answers if each is not None])
        now = tx.now if any(answers) else None
    return [None if each is None or now is None else _with_token(context, each, now) for each in answers]


def _with_token(context: Context, claimed: Claimed, now: datetime) -> Claimed:
    mints = minting.mints(context.settings)
    return claimed.model_copy(
        update={"capability_token": _token(context, claimed, now), "mints_credentials": mints}
    )


def require_bound(tx: Tx, requests: Sequence[tuple[Caller, str]]) -> None:
    """Raise Forbidden for a task that the token of its caller is not for. Tasks that do not exist are nobody's."""
    bound = {task_id: caller for caller, task_id in requests if caller.binding.is_bound}
    if not bound:
        return
    for task_id, (runtime, queue) in task_places(tx, list(bound)).items():
        caller = bound[task_id]
        if not caller.binding.admits(runtime, queue):
            raise Forbidden(
                f"the token {caller.name} is for tasks of {caller.binding}, and task {task_id} is one of runtime "
                f"{runtime}, queue {queue}"
            )


def _token(context: Context, claimed: Claimed, now: datetime) -> str:
    data, token_id = context.settings.dispatcher.data_root, context.state.ambient.task_id()
    return scopes.token_for(context.keyring, claimed.work, claimed.lease_id, data, token_id=token_id, now=now)


def fetch_task(context: ContextParam, caller: CallerParam, task_id: TaskId) -> TaskState:
    """Show the state of a task; while it runs, with its work."""
    with context.state.read() as tx:
        require_bound(tx, [(caller, task_id)])
        return attempts.fetch(tx, task_id, context.settings.dispatcher.data_root)


def task_keys(context: ContextParam) -> Response:
    """Show the public keys that verify capabilities, as a JWK set.

    Those that sign, will sign, or have signed tokens that may still be valid. A request with the ETag of the last
    answer as If-None-Match gets 304 while nothing has changed.
    """
    body = msgspec.json.encode(context.keyring.jwks(_read_time(context)))
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"Cache-Control": f"public, max-age={KEYS_FRESH_S}", "ETag": etag}
    return Response(body, media_type="application/json", headers=headers)


def _read_time(context: Context) -> datetime | None:
    """Return the database's time; None while it is away: verifiers need the keys all the same."""
    try:
        if (now := context.state.now()) is not None:
            return now
        with context.state.read() as tx:
            return tx.now
    except Unavailable:
        return None


def watched_sources(context: ContextParam, after: After = None, limit: Limit = 500) -> SourcesAnswer:
    """List the live sources with their memory, and the time of the database."""
    with context.state.read() as tx:
        return live_sources.list_sources(tx, after, limit)


def remember_source(
    context: ContextParam, edition_id: Annotated[str, Path(max_length=36)], body: MemoryRequest
) -> Response:
    """Store the memory of a source, or why its watcher fails."""
    with context.state.write() as tx:
        live_sources.remember(tx, edition_id, body.memory, body.error)
    return Response(status_code=204)


def emit_source(context: ContextParam, caller: CallerParam, dag: Name, job: Name, body: EmitRequest) -> EmitAnswer:
    """Emit events of a source.

    A repeated idempotency_key with the same events returns the same answer and does nothing.
    """
    return emit(context, caller, dag, job, body)


def install(routes: Routes) -> None:
    routes.post("/internal/task-claim", claim_task, frequent=True, together=claim_together)
    routes.get("/internal/task-fetch", fetch_task, 404)
    routes.get("/internal/jwks/task", task_keys, response_model=dict[str, Any])
    routes.get("/internal/sources", watched_sources)
    routes.put("/internal/sources/{edition_id}/memory", remember_source, 404, status_code=204)
    routes.post("/internal/sources/{dag}/{job}/events", emit_source, 404, 409)
