"""Who asks: a person, a worker, or the attempt of a task. Each has tokens of its own kind.

    people     ``qo_…``, created by an admin; only a hash is kept, in the state
    workers    one token that all share, from the settings or a file; also tokens of the role ``worker``
    tasks      signed, see ``qo.dispatcher.auth.capability``

Tokens never stand in a log, an error or a repr.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa

from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.auth.secret_files import draw, kept_secret
from qo.dispatcher.contract.token import CreateToken, Role, TokenAnswer, TokenCreated, TokenPage
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import ConfigError, Forbidden, NotFound, Unauthenticated

USER_PREFIX, WORKER_PREFIX = "qo_", "qow_"
WORKER_TOKEN_CHARS_MIN = 16

_RANK = {Role.READER: 1, Role.WRITER: 2, Role.ADMIN: 3}
_tokens = schema.api_tokens


class Kind(StrEnum):
    USER = "user"
    WORKER = "worker"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is behind a request. ``name`` is what changes are attributed to."""

    kind: Kind
    name: str
    role: Role | None = None  # Of people.

    def require(self, least: Role) -> None:
        """Raises Forbidden unless this is a person of at least that role."""
        if self.kind is not Kind.USER or self.role is None or _RANK[self.role] < _RANK[least]:
            raise Forbidden(f"this needs a token of the role {least.value}, and {self.name} has none")

    def require_worker(self) -> None:
        """Raises Forbidden unless this is a worker: not even an admin may pass for one."""
        if self.kind is not Kind.WORKER:
            raise Forbidden(f"this needs a worker's token, and {self.name} has none")


@dataclass(frozen=True, slots=True)
class LocalTokens:
    """Tokens that are not in the state: the workers' and, for use on one machine, an admin's."""

    workers: tuple[str, ...] = field(repr=False)
    admin: str | None = field(default=None, repr=False)


def local_tokens(settings: DispatcherSettings) -> LocalTokens:
    """Read, or drawn and kept in ``secrets_dir`` when there are none. Raises ConfigError."""
    return LocalTokens(worker_tokens(settings), local_admin_token(settings))


def worker_tokens(settings: DispatcherSettings) -> tuple[str, ...]:
    """Those that are accepted. A worker presents the last one, the newest."""
    if settings.worker_token is None:
        return (kept_secret(Path(settings.secrets_dir) / "worker.token", WORKER_PREFIX),)
    given = tuple(each.strip() for each in settings.worker_token.split(",") if each.strip())
    if not given or any(len(each) < WORKER_TOKEN_CHARS_MIN for each in given):
        raise ConfigError(
            f"the worker token is too short to be a secret: take {WORKER_TOKEN_CHARS_MIN} characters or more, "
            "for example of openssl rand -hex 32"
        )
    return given


@dataclass(frozen=True, slots=True)
class Presented:
    """The token that a worker or a scheduler shows, and where it has it from: a setting or a file."""

    token: str = field(repr=False)
    origin: str

    def refused(self, error: Unauthenticated | Forbidden) -> Unauthenticated:
        """The error of a dispatcher that does not know it, for whoever set this process up."""
        return Unauthenticated(f"{error}; the token is that of {self.origin}: {_WHENCE}")


_WHENCE = (
    "set QO_WORKER_TOKEN to the token of that dispatcher's workers, or QO_SECRETS_DIR to its directory of secrets"
)


def presented_token(settings: DispatcherSettings) -> Presented:
    """The newest of the workers' tokens. For a dispatcher on another machine none is drawn: it would not know it. One
    on this machine may find it when it starts. Raises ConfigError."""
    if settings.worker_token is not None:
        return Presented(worker_tokens(settings)[-1], "QO_WORKER_TOKEN")
    path = Path(settings.secrets_dir, "worker.token").absolute()
    if settings.internal_url is not None and not _is_here(settings.internal_url) and not path.exists():
        raise ConfigError(f"there is no token for the dispatcher at {settings.internal_url} in {path}: {_WHENCE}")
    return Presented(worker_tokens(settings)[-1], str(path))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def local_admin_token(settings: DispatcherSettings) -> str:
    """The token of whoever can read the secrets of this machine, who is an admin anyway."""
    return kept_secret(Path(settings.secrets_dir) / "admin.token", USER_PREFIX)


def identify(tx: Tx, secret: str, local: LocalTokens) -> Principal:
    """Who the token belongs to. Raises Unauthenticated for one that is unknown, expired or revoked."""
    if _one_of(secret, local.workers):
        return Principal(Kind.WORKER, "worker")
    if local.admin is not None and _one_of(secret, (local.admin,)):
        return Principal(Kind.USER, "local-admin", Role.ADMIN)
    # Found by its hash: how long the search takes tells nothing about the secret.
    row = tx.one(sa.select(_tokens).where(_tokens.c.hash == _hash(secret)))
    if row is None or row["revoked_at"] is not None:
        raise Unauthenticated("the token is not known here: ask an admin for one, see qo token create")
    if row["expires_at"] is not None and row["expires_at"] <= tx.now:
        raise Unauthenticated("the token has expired: ask an admin for a new one, see qo token create")
    role = Role(row["role"])
    if role is Role.WORKER:
        return Principal(Kind.WORKER, row["name"])
    return Principal(Kind.USER, row["name"], role)


def create_token(tx: Tx, wanted: CreateToken) -> TokenCreated:
    """A new token. The answer is the only place where it is ever seen."""
    secret = draw(WORKER_PREFIX if wanted.role is Role.WORKER else USER_PREFIX)
    row: dict[str, Any] = {
        "id": tx.ambient.task_id(),
        "name": wanted.name,
        "role": wanted.role.value,
        "hash": _hash(secret),
        "created_at": tx.now,
        "expires_at": None if wanted.ttl_s is None else tx.now + timedelta(seconds=wanted.ttl_s),
        "revoked_at": None,
    }
    tx.insert(_tokens, [row])
    return TokenCreated(token=secret, **{key: value for key, value in row.items() if key != "hash"})


def revoke_token(tx: Tx, token_id: str) -> TokenAnswer:
    """From now on it is refused. Revoking again changes nothing. Raises NotFound."""
    row = tx.one(tx.lock(sa.select(_tokens).where(_tokens.c.id == token_id)))
    if row is None:
        raise NotFound(f"there is no token {token_id!r}: qo token list shows their ids")
    if row["revoked_at"] is not None:
        return TokenAnswer(**row)
    tx.execute(sa.update(_tokens).where(_tokens.c.id == token_id).values(revoked_at=tx.now))
    return TokenAnswer(**row).model_copy(update={"revoked_at": tx.now})


def list_tokens(tx: Tx, after: str | None = None, limit: int = 100) -> TokenPage:
    """In order of id; revoked and expired ones too."""
    query = sa.select(_tokens).order_by(_tokens.c.id).limit(limit + 1)
    if after is not None:
        query = query.where(_tokens.c.id > after)
    rows = tx.all(query)
    page = [TokenAnswer(**row) for row in rows[:limit]]
    return TokenPage(tokens=page, next=page[-1].id if len(rows) > limit else None)


def _one_of(secret: str, known: tuple[str, ...]) -> bool:
    # All are compared, each in constant time.
    return any([hmac.compare_digest(_hash(secret), _hash(each)) for each in known])


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
