"""Who may call: a token in the header, checked before the body is read, and a rate for each token."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.requests import Request

from qo.ambient import SYSTEM, Ambient
from qo.core.token_bucket import TokenBucket
from qo.errors import Forbidden, Unauthenticated
from qo.queue_api.api_rights import RIGHTS, names_of
from qo.queue_api.token_file import TokenFile
from qo.store.port import ObjectStore

log = logging.getLogger(__name__)

BURST_S = 5.0
REFUSALS_PER_S = 2.0
BUCKETS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    name: str  # Changes are attributed to it.
    token_id: str


class Guard(Protocol):
    async def authorise(self, request: Request, operation: str) -> Caller:
        """Return the caller of the operation, from the headers alone. Raises Unauthenticated or Forbidden."""
        ...


class RefusalLog:
    """Logs refused requests, a few a second: anybody can send them, and must not fill the disk."""

    def __init__(self, ambient: Ambient) -> None:
        self._monotonic = ambient.monotonic
        self._bucket = TokenBucket.full(REFUSALS_PER_S, REFUSALS_PER_S * BURST_S, now=ambient.monotonic())
        self._left_out = 0

    def note(self, refusal: str) -> None:
        self._bucket, wait_s = self._bucket.take(now=self._monotonic())
        if wait_s > 0:
            self._left_out += 1
            return
        more = f" ({self._left_out:,} more were not logged)" if self._left_out else ""
        self._left_out = 0
        log.warning("%s%s", refusal, more)


class TokenGuard:
    """Accepts the tokens of a file."""

    def __init__(self, tokens: TokenFile, store: ObjectStore) -> None:
        self._tokens = tokens
        self._store = store  # Its clock says whether a token has expired.
        self._refusals = RefusalLog(SYSTEM)

    async def authorise(self, request: Request, operation: str) -> Caller:
        try:
            return await self._identify(request.headers, operation)
        except (Unauthenticated, Forbidden) as error:
            address = request.client.host if request.client is not None else "a local caller"
            self._refusals.note(f"{operation} was refused to {address}: {error}")
            raise

    async def _identify(self, headers: Mapping[str, str], operation: str) -> Caller:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated(
                "no credentials: present a token as 'Authorization: Bearer TOKEN', see qo serve token create"
            )
        entry = self._tokens.find(token.strip())
        if entry is None:
            raise Unauthenticated("the token is not known here: ask for one, see qo serve token create")
        if entry.expires_at is not None and entry.is_expired(await self._store.now()):
            raise Unauthenticated("the token has expired: ask for a new one, see qo serve token create")
        if entry.role not in RIGHTS[operation]:
            raise Forbidden(
                f"this needs a token of the role {names_of(RIGHTS[operation])}, and {entry.name} is a {entry.role}"
            )
        return Caller(entry.name, entry.id)


class WaitShares:
    """How many requests of each caller wait at a time: at most half of all that may, which leaves room for others."""

    def __init__(self, waits_max: int) -> None:
        self._share = max(1, waits_max // 2)
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def hold(self, caller: Caller) -> Generator[None]:
        """Count a request while it waits. Raises HTTPException 429 if that is one too many."""
        if self._waiting[caller.token_id] >= self._share:
            reason = (
                f"{self._share} requests of this token wait already: end some of them, or raise serve.waits_max"
            )
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, reason, headers={"Retry-After": "1"})
        self._waiting[caller.token_id] += 1
        try:
            yield
        finally:
            self._waiting[caller.token_id] -= 1
            self._waiting += Counter()  # Drops callers without any.


class Rates:
    """A rate of requests for each caller. The state is this process's: with several servers, each allows the rate."""

    def __init__(self, rate_per_s: float, ambient: Ambient) -> None:
        self._rate = rate_per_s
        self._monotonic = ambient.monotonic
        self._buckets: dict[str, TokenBucket] = {}

    def spend(self, caller: Caller) -> None:
        """Count a request. Raises HTTPException 429 if that is one too many."""
        if self._rate <= 0:
            return
        now = self._monotonic()
        self._buckets[caller.token_id], wait_s = self._bucket(caller, now).take(now=now)
        if wait_s > 0:
            reason = f"too many requests: {self._rate:g} a second are allowed; repeat it after {wait_s:.1f} s"
            later = {"Retry-After": str(math.ceil(wait_s))}
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, reason, headers=later)

    def owe(self, caller: Caller, count: int) -> None:
        """Count more of what a request does. It goes through, and the caller's next ones have to wait."""
        if self._rate > 0 and count > 0:
            now = self._monotonic()
            self._buckets[caller.token_id] = self._bucket(caller, now).owe(count, now=now)

    def _bucket(self, caller: Caller, now: float) -> TokenBucket:
        bucket = self._buckets.get(caller.token_id)
        if bucket is None:
            self._drop_full(now)
            bucket = TokenBucket.full(self._rate, max(1.0, self._rate * BURST_S), now=now)
        return bucket

    def _drop_full(self, now: float) -> None:
        """A full bucket is the same as none."""
        if len(self._buckets) >= BUCKETS_MAX:
            self._buckets = {name: each for name, each in self._buckets.items() if not each.is_full(now=now)}
