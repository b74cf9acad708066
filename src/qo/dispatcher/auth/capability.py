"""The capability of one attempt: what its holder is, may read and may write, signed.

It is good for as long as its attempt runs. Who answers to it must do all three:

    capability = verify(ring, token, tx.now)    the token is ours and has not ended
    bind(capability, fence)                     the request speaks of the same attempt
    still_valid(tx, capability)                 the attempt is still under way

Completion skips the third: it has a fence of its own, and repeats its answer to who lost it.
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
from qo.dispatcher.auth.keys import TOKEN_TTL_MAX, KeyRing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.errors import Forbidden, LeaseLost, Unauthenticated

ISSUER, AUDIENCE, ORG = "qo", "qo.task", "default"
GRACE = timedelta(minutes=5)  # Beyond the timeout of the attempt, to say how it ended.
CHARS_MAX = 4096  # A longer token leaves out its lists, and the state tells them.
SKEW = timedelta(seconds=60)  # How far ahead of us another dispatcher may have issued.

_T = TypeVar("_T")
_MALFORMED = "the token lacks a claim, or holds one that is not as it should be"


@dataclass(frozen=True, slots=True)
class Grant:
    """A dataset the attempt may look into."""

    dataset_id: str
    generation_id: str
    storage_ref: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scope:
    """What an attempt may touch. Prefixes are canonical: ``s3://bucket/prefix/``."""

    datasets: tuple[Grant, ...] = ()
    read_prefixes: tuple[str, ...] = ()
    write_prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Capability:
    task_id: str
    attempt: int
    lease_hash: str  # Of the lease, never the lease itself: the token alone must not be able to finish the task.
    token_id: str
    org_id: str
    issued_at: datetime
    expires_at: datetime
    scope: Scope
    capability_id: str | None = None  # Set: the scope was too long to carry; ask the state.


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
    """A token for the attempt, good until its timeout and a grace, at most a day."""
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
    """How long a token lives. An attempt without a timeout gets the longest, and a fresh one in time."""
    if timeout_s is None:
        return TOKEN_TTL_MAX
    return min(timedelta(seconds=min(timeout_s, 86_400.0)) + GRACE, TOKEN_TTL_MAX)


def near_its_end(capability: Capability, now: datetime) -> bool:
    """Whether to give its holder a fresh one: three quarters of its life are over."""
    return now >= capability.issued_at + (capability.expires_at - capability.issued_at) * 0.75


def capability_id(task_id: str, attempt: int) -> str:
    return derive_id("capability", task_id, attempt)


def lease_hash(lease_id: str) -> str:
    return hashlib.sha256(f"qo.lease:{lease_id}".encode()).hexdigest()


def verify(ring: KeyRing, token: str, now: datetime) -> Capability:
    """The capability that the token carries. Raises Unauthenticated for anything else than a whole, valid one."""
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
    """Raises Forbidden unless the request speaks of the attempt that the token is for."""
    if (capability.task_id, capability.attempt) != (fence.task_id, fence.attempt):
        raise Forbidden("the token belongs to another task or attempt than the request names")
    if capability.lease_hash != lease_hash(fence.lease_id):
        raise Forbidden("the token belongs to another lease than the request names")


def still_valid(tx: Tx, capability: Capability, *, leased: bool = False) -> None:
    """Raises LeaseLost when the attempt is over; with ``leased``, also when its lease has run out unrenewed."""
    tasks = schema.tasks.c
    row = tx.one(
        sa.select(tasks.status, tasks.attempt, tasks.lease_id, tasks.lease_expires_at).where(
            tasks.id == capability.task_id
        )
    )
    current = row is not None and row["status"] == "running" and row["attempt"] == capability.attempt
    if row is None or not current or lease_hash(row["lease_id"] or "") != capability.lease_hash:
        raise LeaseLost("the attempt is over: stop working, its token is good for nothing any more")
    if leased and (row["lease_expires_at"] is None or row["lease_expires_at"] <= tx.now):
        raise LeaseLost("the lease has run out: send a heartbeat first")


def with_scope(capability: Capability, scope: Scope) -> Capability:
    """The capability with the lists that its token had to leave out."""
    return replace(capability, scope=scope)


def _capability(claims: Mapping[str, Any]) -> Capability:
    """Every claim present and of its type, or Unauthenticated."""
    task_id, attempt = _of(str, claims, "task_id"), _of(int, claims, "attempt")
    reference = _of(str, claims, "capability_id") if "capability_id" in claims else None
    if reference is not None and reference != capability_id(task_id, attempt):
        raise Unauthenticated(_MALFORMED)
    return Capability(
        task_id=task_id,
        attempt=attempt,
        lease_hash=_of(str, claims, "lease_hash"),
        token_id=_of(str, claims, "jti"),
        org_id=_of(str, claims, "org_id"),
        issued_at=_moment(claims, "iat"),
        expires_at=_moment(claims, "exp"),
        scope=Scope() if reference is not None else _scope(claims),
        capability_id=reference,
    )


def _scope(claims: Mapping[str, Any]) -> Scope:
    s3 = _object(claims.get("s3"))
    listed = [_object(each) for each in cast("list[Any]", _of(list, claims, "datasets"))]
    datasets = tuple(
        Grant(_of(str, each, "dataset_id"), _of(str, each, "generation_id"), _object(each.get("storage_ref")))
        for each in listed
    )
    return Scope(datasets, _texts(s3, "read_prefixes"), _texts(s3, "write_prefixes"))


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unauthenticated(_MALFORMED)
    return cast("Mapping[str, Any]", value)


def _texts(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    texts = cast("list[Any]", _of(list, claims, name))
    if not all(isinstance(each, str) for each in texts):
        raise Unauthenticated(_MALFORMED)
    return tuple(texts)


def _moment(claims: Mapping[str, Any], name: str) -> datetime:
    seconds = _of(int, claims, name)
    if not 0 <= seconds < 2**37:
        raise Unauthenticated(_MALFORMED)
    return datetime.fromtimestamp(seconds, UTC)


def _of(kind: type[_T], claims: Mapping[str, Any], name: str) -> _T:
    value = claims.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or value == "":
        raise Unauthenticated(_MALFORMED)
    return value
