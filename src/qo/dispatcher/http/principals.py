"""Who calls: found out from the headers alone, before anything else of the request is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from qo.api.contract.token import Role
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import principals
from qo.dispatcher.auth.capability import Capability
from qo.dispatcher.auth.principals import Kind, Principal
from qo.dispatcher.http.context import Context
from qo.dispatcher.http.rights import Need
from qo.errors import Forbidden, Unauthenticated

CAPABILITY = "x-qo-task-capability"

_ROLES = {Need.READER: Role.READER, Need.WRITER: Role.WRITER, Need.ADMIN: Role.ADMIN}
_ASKED_FOR = {
    Need.WORKER: "the workers' token as 'Authorization: Bearer TOKEN': see QO_WORKER_TOKEN",
    Need.TASK: "the capability of the attempt as 'X-Qo-Task-Capability: TOKEN': it comes with the claim",
}
_A_USERS = "a token as 'Authorization: Bearer TOKEN': an admin gives it out with qo token create"


@dataclass(frozen=True, slots=True)
class Who:
    principal: Principal | None = None
    granted: Capability | None = None  # Of a task.

    @property
    def name(self) -> str:
        """What changes are attributed to."""
        return "nobody" if self.principal is None else self.principal.name

    @property
    def capability(self) -> Capability:
        """Of a task: its routes need one, so there is one. Raises Forbidden where there is none after all."""
        if self.granted is None:
            raise Forbidden("this is for running tasks only")
        return self.granted


def recognise(context: Context, need: Need, headers: Mapping[str, str]) -> Who | None:
    """As ``identify``, where no database has to be asked; None: it has to be."""
    if need in (Need.NOTHING, Need.SIGNATURE):
        return Who()
    if need is Need.TASK:
        now = context.state.now()  # Its capability ends by the database's clock.
        return None if now is None else _holder(context, _token(need, headers), now)
    found = principals.local_principal(_token(need, headers), context.tokens)
    return None if found is None else _allowed(found, need)


def identify(context: Context, need: Need, headers: Mapping[str, str]) -> Who:
    """Blocking. Raises Unauthenticated or Forbidden for who may not call what needs this."""
    if (known := recognise(context, need, headers)) is not None:
        return known
    token = _token(need, headers)
    with context.state.read() as tx:
        if need is Need.TASK:
            return _holder(context, token, tx.now)
        who = principals.identify(tx, token, context.tokens)
    return _allowed(who, need)


def _holder(context: Context, token: str, now: datetime) -> Who:
    granted = capabilities.verify(context.keyring, token, now)
    return Who(Principal(Kind.TASK, f"task:{granted.task_id}:{granted.attempt}"), granted)


def _allowed(who: Principal, need: Need) -> Who:
    if need is Need.WORKER:
        who.require_worker()
    else:
        who.require(_ROLES[need])
    return Who(who)


def _token(need: Need, headers: Mapping[str, str]) -> str:
    if need is Need.TASK and (own := headers.get(CAPABILITY)):
        return own.strip()
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated(f"who asks? Present {_ASKED_FOR.get(need, _A_USERS)}")
    return token.strip()
