"""Authentication and authorisation of a caller, from the headers alone and before the body is read."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from qo.api.contract.token import Role
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import principals
from qo.dispatcher.auth.capability import Capability
from qo.dispatcher.auth.principals import UNBOUND, Binding, Kind, Principal
from qo.dispatcher.auth.signing_keys import UnknownKey
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.rights import Need
from qo.errors import Forbidden, Unauthenticated

log = logging.getLogger(__name__)

CAPABILITY = "x-qo-task-capability"

_ROLES = {
    Need.READER: Role.READER,
    Need.SCALER: Role.SCALER,
    Need.WRITER: Role.WRITER,
    Need.ADMIN: Role.ADMIN,
}
_WORKER_CREDENTIALS = "the workers' token as 'Authorization: Bearer TOKEN': see QO_WORKER_TOKEN"
_CREDENTIALS = {
    Need.WORKER: _WORKER_CREDENTIALS,
    Need.SCHEDULER: _WORKER_CREDENTIALS,
    Need.TASK: "the capability of the attempt as 'X-Qo-Task-Capability: TOKEN': it comes with the claim",
}
_USER_CREDENTIALS = "a token as 'Authorization: Bearer TOKEN': an admin gives it out with qo token create"


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sent a request; without a principal on routes that need no token."""

    principal: Principal | None = None
    granted: Capability | None = None  # Of a task.

    @property
    def name(self) -> str:
        """The name that changes are attributed to."""
        return "nobody" if self.principal is None else self.principal.name

    @property
    def binding(self) -> Binding:
        """The runtimes and queues whose tasks the caller may have."""
        return UNBOUND if self.principal is None else self.principal.binding

    @property
    def capability(self) -> Capability:
        """The capability of the calling task. Raises Forbidden if the caller is not a task."""
        if self.granted is None:
            raise Forbidden("this is for running tasks only")
        return self.granted


async def authorise(
    request: Request,
    context: Context,
    operation: str,
    need: Need,
    run: Callable[..., Awaitable[Any]] = run_in_threadpool,
) -> Caller:
    """Return the caller of the operation. ``run`` calls a blocking function on a thread.

    Raises Unauthenticated or Forbidden, and logs who was refused.
    """
    try:
        caller = recognise(context, need, request.headers)
        return caller or await run(identify, context, need, request.headers)
    except (Unauthenticated, Forbidden) as error:
        address = request.client.host if request.client is not None else "a local caller"
        log.warning("%s was refused to %s: %s", operation, address, error)
        raise


def recognise(context: Context, need: Need, headers: Mapping[str, str]) -> Caller | None:
    """Identify the caller without the database; None if the database has to be asked."""
    if need in (Need.NOTHING, Need.SIGNATURE):
        return Caller()
    if need is Need.TASK:
        now = context.state.now()  # A capability expires by the database's clock.
        try:
            return None if now is None else _task_caller(context, _token(need, headers), now)
        except UnknownKey:
            return None  # Another dispatcher may have created it just now.
    principal = principals.local_principal(_token(need, headers), context.tokens)
    return None if principal is None else _authorised_caller(principal, need)


def identify(context: Context, need: Need, headers: Mapping[str, str]) -> Caller:
    """Identify the caller. Blocking.

    Raises Unauthenticated without a valid token, Forbidden if the token does not grant ``need``.
    """
    if (caller := recognise(context, need, headers)) is not None:
        return caller
    token = _token(need, headers)
    if need is Need.TASK:
        return _identify_task(context, token)
    with context.state.read() as tx:
        principal = principals.identify(tx, token, context.tokens)
    return _authorised_caller(principal, need)


def _identify_task(context: Context, token: str) -> Caller:
    """Identify a task; if its token's key is unknown, once more after a look for new keys."""
    with context.state.read() as tx:
        now = tx.now
    try:
        return _task_caller(context, token, now)
    except UnknownKey:
        context.keyring.secrets.refresh()
    return _task_caller(context, token, now)


def _task_caller(context: Context, token: str, now: datetime) -> Caller:
    granted = capabilities.verify(context.keyring, token, now)
    return Caller(Principal(Kind.TASK, f"task:{granted.task_id}:{granted.attempt}"), granted)


def _authorised_caller(principal: Principal, need: Need) -> Caller:
    if need is Need.WORKER:
        principal.require_worker()
    elif need is Need.SCHEDULER:
        principal.require_unbound_worker()
    else:
        principal.require(_ROLES[need])
    return Caller(principal)


def _token(need: Need, headers: Mapping[str, str]) -> str:
    if need is Need.TASK and (own := headers.get(CAPABILITY)):
        return own.strip()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(f"no credentials: present {_CREDENTIALS.get(need, _USER_CREDENTIALS)}")
    return token.strip()
