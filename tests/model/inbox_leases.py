"""The protocol of the lease on an inbox: written on condition, by workers of the same name, over the real ``may_own``.

Who holds the lease believes in it until a moment that it counts from before its request was sent. Of all of them one
believes at most, whatever is slow, lost or stopped on the way; and from wherever it has come to, somebody can again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from model.explorer import Explored, explore
from model.network import GONE, OLD, Client, Object, Rules, State, changed, fresh, send, steps
from qo.core.dispatch import InboxOwner, may_own

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TTL = 4  # Ticks.
MARGIN = 1  # Not less than two clocks may be apart.


class Lease(NamedTuple):
    token: str
    expires_at: datetime


class Acquire(NamedTuple):
    token: str
    ttl_s: float
    tokens: frozenset[str]  # Of our earlier writes: what bears one is ours.


class Release(NamedTuple):
    token: str
    tokens: frozenset[str]


Decide = Callable[[Lease | None, Acquire | Release, datetime], Lease | None]


def own_inbox(
    lease: Lease | None, want: Acquire | Release, now: datetime, *, abandoned: bool = False
) -> Lease | None:
    """Return the lease to write, or None. A record that its owner removes is as good as one that has run out."""
    if isinstance(want, Release):
        return Lease(want.token, now) if lease is not None and lease.token in want.tokens else None
    owner = None if lease is None else InboxOwner(lease.token, lease.expires_at)
    if not may_own(owner, want.tokens, now=now, is_abandoned=abandoned):
        return None
    return Lease(want.token, now + timedelta(seconds=want.ttl_s))


class Kept(NamedTuple):
    held: int  # 0: nobody has ever held it.
    expires: int


def _instant(at: int) -> datetime:
    return NOW + timedelta(seconds=at)


@dataclass(frozen=True, slots=True)
class Config:
    skews: tuple[int, ...] = (0, 1)
    faults: int = 2
    decide: Decide = own_inbox
    conditional: bool = True
    counts_from_request: bool = True


class Leases:
    def __init__(self, config: Config) -> None:
        self._config = config
        self.rules = Rules(
            acts=self._acts,
            won=self._won,
            moved=self._moved,
            shift=lambda value: (value[0], max(OLD, value[1] - 1)),
            urgent=lambda client: False,
            judge=lambda before, after: "",
            idles=lambda client: client.until == OLD,
            alike=config.skews,
            conditional=config.conditional,
        )

    def explore(self) -> Explored[State]:
        start = State(
            Object(1, tuple(Kept(0, OLD))), (Client(),) * len(self._config.skews), faults=self._config.faults
        )
        return explore(
            start, lambda state: steps(state, self.rules), problem, lambda state: bool(believers(state))
        )

    def _decided(self, there: Object, want: tuple[Any, ...], n: int) -> Object | None:
        held, expires = there.value
        lease = None
        if held:
            at = _instant(expires)
            lease = Lease(str(there.token), at)
        kind, token, known = want
        asked = (
            Release(str(token), frozenset(map(str, known)))
            if kind == "release"
            else Acquire(str(token), float(TTL), frozenset(map(str, known)))
        )
        decided = self._config.decide(lease, asked, _instant(self._config.skews[n]))
        if decided is None:
            return None
        expires = int((decided.expires_at - NOW).total_seconds())
        return Object(token, (1, max(OLD, expires)))

    def _acts(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        client = state.clients[n]
        if client.phase == "idle":
            yield f"{n} asks for it", self._asked(state, n, "acquire", state.stored, ())
        elif client.phase == "held" and client.seen is not None:
            known = (client.seen.token,)
            if client.until > 0:  # Who believes no longer is no owner; it asks again all the same.
                yield f"{n} gives it back", self._asked(_disbelieving(state, n), n, "release", client.seen, known)
            yield f"{n} renews it", self._asked(state, n, "acquire", client.seen, known)

    def _asked(self, state: State, n: int, kind: str, seen: Object, known: tuple[int, ...]) -> State:
        if seen is GONE:
            return send(changed(state, n, state.clients[n]._replace(want=(kind, 0, 0))), n, GONE, 0)
        want = kind, fresh(state), known
        decided = self._decided(seen, want, n)
        if decided is None:
            return changed(state, n, Client())
        asked = state.clients[n]._replace(want=(kind, want[1], 0))
        return send(changed(state, n, asked), n, decided, seen.token)

    def _won(self, state: State, n: int, there: Object) -> State:
        client = state.clients[n]
        assert client.want is not None
        if client.want[0] == "release":
            return changed(state, n, Client())
        begun = client.sent_at if self._config.counts_from_request else 0
        return changed(state, n, Client("held", there, until=begun + TTL - MARGIN))

    def _moved(self, state: State, n: int, there: Object) -> State:
        return changed(state, n, Client())  # Somebody was quicker.


def _disbelieving(state: State, n: int) -> State:
    return changed(state, n, state.clients[n]._replace(until=OLD))


def believers(state: State) -> list[int]:
    return [n for n, client in enumerate(state.clients) if client.until > 0]


def problem(state: State) -> str | None:
    found = believers(state)
    return None if len(found) <= 1 else f"{found} all believe that they own it"
