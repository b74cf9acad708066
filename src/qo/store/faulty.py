"""A store with injected faults, drawn from a seed: for tests and simulation.

The faults are those of a network, and none of them breaks the contract of the port: a 409 or a 503 that wrote nothing,
a write whose reply was lost, a write that was repeated on the way and so got a 412 although it succeeded, slow
replies, and outages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from qo.ambient import Ambient
from qo.errors import ConcurrentWrite, PreconditionFailed, Unavailable, UsageError
from qo.store.port import (
    LIST_LIMIT_MAX,
    Deletion,
    ObjectStore,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionMark,
    VersionPage,
)

T = TypeVar("T")


class Fault(StrEnum):
    REFUSED = "refused"  # 500 or 503: nothing happened.
    LOST_REPLY = "lost_reply"  # It happened, and the reply was lost.
    CONFLICT = "conflict"  # 409 to a conditional write: nothing was written.
    OWN_412 = "own_412"  # Written, the reply lost, and the repeated write refused because of the first.
    OUTAGE = "outage"  # The store is unreachable: nothing happened.


# The faults that each kind of request can have. Only conditional writes can be refused by another write.
_ANY = (Fault.REFUSED, Fault.LOST_REPLY)
_CONDITIONAL_PUT = (*_ANY, Fault.CONFLICT, Fault.OWN_412)
_CONDITIONAL_DELETE = (*_ANY, Fault.CONFLICT)
_BEFORE = (Fault.OUTAGE, Fault.REFUSED, Fault.CONFLICT)  # Raised before the store acts; the others after it.


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How likely each fault is, between 0 and 1; their sum is at most 1."""

    refused: float = 0.0
    lost_reply: float = 0.0
    conflict: float = 0.0
    own_412: float = 0.0
    latency_s: tuple[float, float] = (0.0, 0.0)  # Least and most; half before the store acts, half after.
    outages_s: tuple[tuple[float, float], ...] = ()  # From and until, counted from when the store was made.

    def __post_init__(self) -> None:
        chances = (self.refused, self.lost_reply, self.conflict, self.own_412)
        if min(chances) < 0 or sum(chances) > 1:
            raise UsageError(f"probabilities of faults must lie in [0, 1] and add up to at most 1: {self}")

    def chance(self, fault: Fault) -> float:
        return float(getattr(self, fault.value))


KINDS = ("get", "put", "delete", "delete_many", "list", "versions", "list_versions", "versioned")


@dataclass(slots=True)
class _InjectedFault:
    """A fault that ``inject`` planned for certain requests."""

    fault: Fault
    on: str | None
    under: str
    spared: int  # Requests that it still lets pass.
    remaining: int  # Requests that it then hits.

    def hits(self, kind: str, key: str, possible: Sequence[Fault]) -> bool:
        """Whether this request gets the fault. Counts the requests that could."""
        might = self.fault is Fault.OUTAGE or self.fault in possible
        if not self.remaining or not might or self.on not in (None, kind) or not key.startswith(self.under):
            return False
        if self.spared:
            self.spared -= 1
            return False
        self.remaining -= 1
        return True


class Faulty:
    """Wraps a store and injects faults. The same seed and the same order of calls give the same faults.

    ``now``, ``presign`` and ``close`` never fail: they need no request.
    """

    def __init__(self, store: ObjectStore, plan: FaultPlan | None = None, ambient: Ambient | None = None) -> None:
        """Without an ``ambient``, faults are drawn from the seed 1."""
        self.store = store
        self.plan = plan or FaultPlan()
        self.injected: Counter[Fault] = Counter()
        self._ambient = ambient or Ambient.seeded(1)
        self._injections: list[_InjectedFault] = []
        self._away = False
        self._made_at = self._ambient.monotonic()

    def inject(
        self, fault: Fault, *, on: str | None = None, under: str = "", nth: int = 1, times: int = 1
    ) -> None:
        """Inject a fault into the ``nth`` request from now on, and into the following ones, ``times`` in all.

        Counts only requests of the kind ``on`` (any, if None) to keys that begin with ``under`` (a delete of many has
        no key). Only a conditional write can have a CONFLICT or an OWN_412.
        """
        if on not in (None, *KINDS):
            raise UsageError(f"{on!r} is no kind of request: use one of {', '.join(KINDS)}")
        if nth < 1 or times < 1:
            raise UsageError(f"requests are counted from 1: nth={nth}, times={times}")
        self._injections.append(_InjectedFault(fault, on, under, nth - 1, times))

    def outage(self, away: bool) -> None:
        """Start or end an outage."""
        self._away = away

    def _is_away(self) -> bool:
        age_s = self._ambient.monotonic() - self._made_at
        return self._away or any(start <= age_s < end for start, end in self.plan.outages_s)

    def _draw(self, possible: Sequence[Fault]) -> Fault | None:
        remaining = self._ambient.unit()
        for fault in possible:
            remaining -= self.plan.chance(fault)
            if remaining < 0:
                return fault
        return None

    def _injected_fault(self, what: str, possible: Sequence[Fault]) -> Fault | None:
        """Return the first fault planned for this request. All planned faults count the request."""
        kind, _, key = what.partition(" ")
        faults = [each.fault for each in self._injections if each.hits(kind, key, possible)]
        return faults[0] if faults else None

    async def _run_with_fault(
        self, what: str, act: Callable[[], Awaitable[T]], possible: Sequence[Fault] = _ANY
    ) -> T:
        least_s, most_s = self.plan.latency_s
        pause_s = self._ambient.rng.uniform(least_s, most_s) / 2
        fault = self._draw(possible)
        await _rest(pause_s)
        fault = self._injected_fault(what, possible) or fault
        if self._is_away():
            fault = Fault.OUTAGE
        if fault is not None and fault in _BEFORE:
            raise self._error(fault, what)
        result = await act()
        await _rest(pause_s)
        if fault is not None:
            raise self._error(fault, what)
        return result

    def _error(self, fault: Fault, what: str) -> Exception:
        self.injected[fault] += 1
        message = f"injected {fault.value}: {what}"
        if fault is Fault.CONFLICT:
            return ConcurrentWrite(message)
        if fault is Fault.OWN_412:
            return PreconditionFailed(message)
        return Unavailable(message)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        return await self._run_with_fault(f"get {key}", lambda: self.store.get(key, version=version))

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        return await self._run_with_fault(f"get {key}", lambda: self.store.get_if_changed(key, etag))

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        possible = _ANY if if_match is None and not if_absent else _CONDITIONAL_PUT
        return await self._run_with_fault(
            f"put {key}",
            lambda: self.store.put(key, body, if_match=if_match, if_absent=if_absent),
            possible,
        )

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        possible = _ANY if if_match is None else _CONDITIONAL_DELETE
        await self._run_with_fault(
            f"delete {key}", lambda: self.store.delete(key, if_match=if_match, version=version), possible
        )

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        await self._run_with_fault("delete_many", lambda: self.store.delete_many(deletions))

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        return await self._run_with_fault(
            f"list {prefix}", lambda: self.store.list(prefix, start_after=start_after, limit=limit)
        )

    async def versions(self, key: str) -> Sequence[Version]:
        return await self._run_with_fault(f"versions {key}", lambda: self.store.versions(key))

    async def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> VersionPage:
        return await self._run_with_fault(
            f"list_versions {prefix}", lambda: self.store.list_versions(prefix, after=after, limit=limit)
        )

    async def versioned(self) -> bool:
        return await self._run_with_fault("versioned", self.store.versioned)

    async def presign(self, key: str, *, expires_s: int, method: str = "GET") -> str:
        return await self.store.presign(key, expires_s=expires_s, method=method)

    async def now(self) -> datetime:
        return await self.store.now()

    async def close(self) -> None:
        await self.store.close()


async def _rest(pause_s: float) -> None:
    if pause_s > 0:
        await asyncio.sleep(pause_s)
