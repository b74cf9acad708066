"""Principals: a person, a worker, or the attempt of a task. Each has tokens of its own kind.

    people     ``qo_…``, created by an admin; the state stores only a hash
    workers    one token that all share, from the settings or a file; also tokens of the role ``worker``
    tasks      signed, see ``qo.dispatcher.auth.capability``

Tokens never appear in a log, an error or a repr.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from qo.api.contract.token import CreateToken, Role, TokenAnswer, TokenCreated, TokenPage
from qo.dispatcher.auth.local_tokens import PAGE_ROLES, USER_PREFIX, WORKER_PREFIX, LocalTokens, page_token
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import Forbidden, NotFound, Unauthenticated
from qo.store.secret_files import generate_secret

_RANK = {Role.READER: 1, Role.WRITER: 2, Role.ADMIN: 3}
# The roles that may do what a role of no rank may.
_INCLUDED_IN = {Role.SCALER: {Role.SCALER, Role.WRITER, Role.ADMIN}}
_tokens = schema.api_tokens


class Kind(StrEnum):
    USER = "user"
    WORKER = "worker"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Binding:
    """What a worker's token is for. None: all of them."""

    runtimes: frozenset[str] | None = None
    queues: frozenset[str] | None = None

    def admits(self, runtime: str, queue: str) -> bool:
        """Whether the worker may have tasks of that runtime and that queue."""
        of_runtime = self.runtimes is None or runtime in self.runtimes
        return of_runtime and (self.queues is None or queue in self.queues)

    @property
    def is_bound(self) -> bool:
        return self.runtimes is not None or self.queues is not None

    def __str__(self) -> str:
        parts = {"runtime": self.runtimes, "queue": self.queues}
        texts = [f"{kind} {', '.join(sorted(names))}" for kind, names in parts.items() if names is not None]
        return " and ".join(texts) or "everything"


UNBOUND = Binding()


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. Changes are attributed to its ``name``."""

    kind: Kind
    name: str
    role: Role | None = None  # Of people.
    binding: Binding = UNBOUND  # Of workers.

    def require(self, least: Role) -> None:
        """Raise Forbidden unless this is a person of at least that role."""
        if self.kind is not Kind.USER or self.role not in _holders(least):
            raise Forbidden(f"this needs a token of the role {least.value}, and {self.name} has none")

    def require_worker(self) -> None:
        """Raise Forbidden unless this is a worker: not even an admin counts as one."""
        if self.kind is not Kind.WORKER:
            raise Forbidden(f"this needs a worker's token, and {self.name} has none")

    def require_unbound_worker(self) -> None:
        """Raise Forbidden unless this is a worker that is bound to nothing: sources and sinks belong to no runtime."""
        self.require_worker()
        if self.binding.is_bound:
            raise Forbidden(
                f"this needs a worker's token that is bound to nothing, and {self.name} is for tasks of {self.binding}"
            )


def _holders(least: Role) -> set[Role]:
    """Return the roles that have the rights of a role."""
    return _INCLUDED_IN.get(least) or {role for role, rank in _RANK.items() if rank >= _RANK[least]}


def local_principal(secret: str, local: LocalTokens) -> Principal | None:
    """Return the owner of a token that is not in the state; None if it is none of those."""
    if _is_among(secret, local.workers):
        return Principal(Kind.WORKER, "worker")
    if local.admin is None:
        return None
    if _is_among(secret, (local.admin,)):
        return Principal(Kind.USER, "local-admin", Role.ADMIN)
    pages = [role for role in PAGE_ROLES if _is_among(secret, (page_token(local.admin, role),))]
    return Principal(Kind.USER, "dashboard", Role(pages[0])) if pages else None


def identify(tx: Tx, secret: str, local: LocalTokens) -> Principal:
    """Return the owner of the token. Raises Unauthenticated for one that is unknown, expired or revoked."""
    if (principal := local_principal(secret, local)) is not None:
        return principal
    # Searched by its hash, so that the duration of the search reveals nothing about the secret.
    row = tx.one(sa.select(_tokens).where(_tokens.c.hash == _hash(secret)))
    if row is None or row["revoked_at"] is not None:
        raise Unauthenticated("the token is not known here: ask an admin for one, see qo token create")
    if row["expires_at"] is not None and row["expires_at"] <= tx.now:
        raise Unauthenticated("the token has expired: ask an admin for a new one, see qo token create")
    role = Role(row["role"])
    if role is Role.WORKER:
        return Principal(Kind.WORKER, row["name"], binding=_binding(row))
    return Principal(Kind.USER, row["name"], role)


def _binding(row: sa.RowMapping) -> Binding:
    runtimes, queues = row["runtimes"], row["queues"]
    return Binding(
        None if runtimes is None else frozenset(runtimes), None if queues is None else frozenset(queues)
    )


def create_token(tx: Tx, request: CreateToken) -> TokenCreated:
    """Create a token. Only the answer ever shows it."""
    secret = generate_secret(WORKER_PREFIX if request.role is Role.WORKER else USER_PREFIX)
    row: dict[str, Any] = {
        "id": tx.ambient.task_id(),
        "name": request.name,
        "role": request.role.value,
        "hash": _hash(secret),
        "created_at": tx.now,
        "expires_at": None if request.ttl_s is None else tx.now + timedelta(seconds=request.ttl_s),
        "revoked_at": None,
        "runtimes": request.runtimes,
        "queues": request.queues,
    }
    tx.insert(_tokens, [row])
    return TokenCreated(token=secret, **{key: value for key, value in row.items() if key != "hash"})


def revoke_token(tx: Tx, token_id: str) -> TokenAnswer:
    """Revoke a token. Revoking it again changes nothing. Raises NotFound."""
    row = tx.one(tx.lock(sa.select(_tokens).where(_tokens.c.id == token_id)))
    if row is None:
        raise NotFound(f"there is no token {token_id!r}: qo token list shows their ids")
    if row["revoked_at"] is not None:
        return TokenAnswer(**row)
    tx.execute(sa.update(_tokens).where(_tokens.c.id == token_id).values(revoked_at=tx.now))
    return TokenAnswer(**row).model_copy(update={"revoked_at": tx.now})


def list_tokens(tx: Tx, after: str | None = None, limit: int = 100) -> TokenPage:
    """List the tokens in order of id, including revoked and expired ones."""
    query = sa.select(_tokens).order_by(_tokens.c.id).limit(limit + 1)
    if after is not None:
        query = query.where(_tokens.c.id > after)
    rows = tx.all(query)
    page = [TokenAnswer(**row) for row in rows[:limit]]
    return TokenPage(tokens=page, next=page[-1].id if len(rows) > limit else None)


def _is_among(secret: str, candidates: tuple[str, ...]) -> bool:
    # All are compared, each in constant time.
    return any([hmac.compare_digest(_hash(secret), _hash(each)) for each in candidates])


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
