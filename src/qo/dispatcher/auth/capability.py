"""The capability of one attempt: a signed token that names the attempt, and what it may read and write.

It is valid while its attempt runs. An endpoint that accepts it must check three things:

    capability = verify(ring, token, tx.now)    the token is signed by us and has not expired
    bind(capability, fence)                     the request names the same attempt
    require_running(tx, capability)             the attempt still runs

Completion skips the third: it checks the fence itself, and repeats its answer when the first one was lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import sqlalchemy as sa

from qo.api.contract.task import Fence
from qo.core.pipeline.plan import derive_id
from qo.dispatcher.auth.signing_keys import TOKEN_TTL_MAX, KeyRing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import Forbidden, LeaseLost, Unauthenticated

ISSUER, AUDIENCE, ORG = "qo", "qo.task", "default"
GRACE = timedelta(minutes=5)  # Beyond the timeout of the attempt, to report how it ended.
CHARS_MAX = 4096  # A longer token leaves out its lists; they are then looked up in the state.
SKEW = timedelta(seconds=60)  # How far ahead the clock of the dispatcher that issued the token may be.

_T = TypeVar("_T")
_MALFORMED = "the token lacks a claim, or holds one that is not as it should be"


@dataclass(frozen=True, slots=True)
class Grant:
    """A dataset that the attempt may access."""

    dataset_id: str
    generation_id: str
    storage_ref: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """The data that an attempt may access. Prefixes are canonical: ``s3://bucket/prefix/``."""

    datasets: tuple[Grant, ...] = ()
    read_prefixes: tuple[str, ...] = ()
    write_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capability:
    task_id: str
    attempt: int
    lease_hash: str  # Not the lease itself: the token alone must not suffice to complete the task.
    token_id: str
    org_id: str
    issued_at: datetime
    expires_at: datetime
    scope: Scope
    capability_id: str | None = None  # Set if the scope was too long for the token: look it up in the state.


def issue(
    ring: KeyRing,
    *,
    task_id: str,
    attempt: int,
    lease_id: str,
    timeout_s: float | None,
    token_id: str,
    now: datetime,
    scope: Scope | None = None,
) -> str:
    """Sign a token for the attempt, valid until its timeout and a grace, at most a day."""
    scope = scope or Scope()
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": f"task:{task_id}",
        "iat": int(now.timestamp()),
        "exp": int((now + ttl(timeout_s)).timestamp()),
        "jti": token_id,
        "org_id": ORG,
        "task_id": task_id,
        "attempt": attempt,
        "lease_hash": lease_hash(lease_id),
    }
    lists = {
        "datasets": [
            {"dataset_id": each.dataset_id, "generation_id": each.generation_id, "storage_ref": each.storage_ref}
            for each in scope.datasets
        ],
        "s3": {"read_prefixes": scope.read_prefixes, "write_prefixes": scope.write_prefixes},
    }
    token = ring.sign(claims | lists, now)
    if len(token) <= CHARS_MAX:
        return token
    return ring.sign(claims | {"capability_id": capability_id(task_id, attempt)}, now)


def ttl(timeout_s: float | None) -> timedelta:
    """Return how long a token is valid. An attempt without a timeout gets the maximum, and a new token in time."""
    if timeout_s is None:
        return TOKEN_TTL_MAX
    return min(timedelta(seconds=min(timeout_s, 86_400.0)) + GRACE, TOKEN_TTL_MAX)


def needs_renewal(capability: Capability, now: datetime) -> bool:
    """Whether three quarters of its validity are over, so that its holder should get a new one."""
    return now >= capability.issued_at + (capability.expires_at - capability.issued_at) * 0.75


def capability_id(task_id: str, attempt: int) -> str:
    return derive_id("capability", task_id, attempt)


def lease_hash(lease_id: str) -> str:
    return hashlib.sha256(f"qo.lease:{lease_id}".encode()).hexdigest()


def verify(ring: KeyRing, token: str, now: datetime) -> Capability:
    """Return the capability in the token. Raises Unauthenticated unless the token is complete and valid."""
    claims = ring.verify(token, now)
    if claims.get("iss") != ISSUER or claims.get("aud") != AUDIENCE:
        raise Unauthenticated("the token was not made for tasks of this dispatcher")
    capability = _capability(claims)
    if claims.get("sub") != f"task:{capability.task_id}":
        raise Unauthenticated(_MALFORMED)
    if capability.issued_at > now + SKEW:
        raise Unauthenticated("the token comes from the future: compare the clocks of the state databases")
    if capability.expires_at <= now:
        raise Unauthenticated("the token has expired: claim the task again")
    if capability.expires_at > capability.issued_at + TOKEN_TTL_MAX:
        raise Unauthenticated(_MALFORMED)
    return capability


def bind(capability: Capability, fence: Fence) -> None:
    """Raise Forbidden unless the request names the attempt that the token is for."""
    if (capability.task_id, capability.attempt) != (fence.task_id, fence.attempt):
        raise Forbidden("the token belongs to another task or attempt than the request names")
    if capability.lease_hash != lease_hash(fence.lease_id):
        raise Forbidden("the token belongs to another lease than the request names")


def require_running(tx: Tx, capability: Capability, *, leased: bool = False) -> None:
    """Raise LeaseLost if the attempt is over; with ``leased``, also if its lease has expired."""
    tasks = schema.tasks.c
    row = tx.one(
        sa.select(tasks.status, tasks.attempt, tasks.lease_id, tasks.lease_expires_at).where(
            tasks.id == capability.task_id
        )
    )
    current = row is not None and row["status"] == "running" and row["attempt"] == capability.attempt
    if row is None or not current or lease_hash(row["lease_id"] or "") != capability.lease_hash:
        raise LeaseLost("the attempt is over: stop working, its token is no longer valid")
    if leased and (row["lease_expires_at"] is None or row["lease_expires_at"] <= tx.now):
        raise LeaseLost("the lease has run out: send a heartbeat first")


def with_scope(capability: Capability, scope: Scope) -> Capability:
    """Return the capability with the lists that its token had to leave out."""
    return replace(capability, scope=scope)


def _capability(claims: Mapping[str, Any]) -> Capability:
    """Raises Unauthenticated unless every claim is present and has its type."""
    task_id, attempt = _claim(str, claims, "task_id"), _claim(int, claims, "attempt")
    reference = _claim(str, claims, "capability_id") if "capability_id" in claims else None
    if reference is not None and reference != capability_id(task_id, attempt):
        raise Unauthenticated(_MALFORMED)
    return Capability(
        task_id=task_id,
        attempt=attempt,
        lease_hash=_claim(str, claims, "lease_hash"),
        token_id=_claim(str, claims, "jti"),
        org_id=_claim(str, claims, "org_id"),
        issued_at=_moment(claims, "iat"),
        expires_at=_moment(claims, "exp"),
        scope=Scope() if reference is not None else _scope(claims),
        capability_id=reference,
    )


def _scope(claims: Mapping[str, Any]) -> Scope:
    s3 = _object(claims.get("s3"))
    listed = [_object(each) for each in cast("list[Any]", _claim(list, claims, "datasets"))]
    datasets = tuple(
        Grant(
            _claim(str, each, "dataset_id"), _claim(str, each, "generation_id"), _object(each.get("storage_ref"))
        )
        for each in listed
    )
    return Scope(datasets, _texts(s3, "read_prefixes"), _texts(s3, "write_prefixes"))


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unauthenticated(_MALFORMED)
    return cast("Mapping[str, Any]", value)


def _texts(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = cast("list[Any]", _claim(list, claims, name))
    if not all(isinstance(each, str) for each in texts):
        raise Unauthenticated(_MALFORMED)
    return tuple(texts)


def _moment(claims: Mapping[str, Any], name: str) -> datetime:
    seconds = _claim(int, claims, name)
    if not 0 <= seconds < 2**37:
        raise Unauthenticated(_MALFORMED)
    return datetime.fromtimestamp(seconds, UTC)


def _claim(kind: type[_T], claims: Mapping[str, Any], name: str) -> _T:
    value = claims.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise Unauthenticated(_MALFORMED)
    return value
