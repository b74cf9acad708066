"""The protocol of claims, leases and fences, as ``Tasks.apply`` and a worker follow it, over the real ``decide``.

Clients 0 to n-1 are workers; the last one is the monitor, and the lookout that empties inboxes. Each has its own idea
of the store's clock. A worker reads the task, claims it, runs it, and settles it: well or badly. It stops its handler
when its lease is nearly gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from model.explorer import Explored, explore
from model.network import GONE, OLD, Client, Object, Rules, State, changed, fresh, send, steps
from qo.core import lifecycle
from qo.core.lifecycle import Claim, Command, Complete, Fail, Lapse, Offer, Rejected
from qo.core.sweep import is_lapsed
from qo.core.task import RetryPolicy, Status, Task

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
AT_ONCE = RetryPolicy(initial_interval_ms=0, max_interval_ms=0, jitter_percent=0)
LEASE = 3  # Ticks.
MARGIN = 2  # Before the end of its lease a handler is stopped; more than two clocks may be apart.

Decide = Callable[[Task, Command, datetime], Task | Rejected]


class Kept(NamedTuple):
    """What of a task makes a difference, with instants relative to now."""

    status: str
    attempt: int
    retries: int
    lease: int  # A name; 0: none.
    expires: int
    settled: int
    output: int
    routed: int = 0  # Whether it is in the inbox of a worker.


NAMES = Kept._fields.index("lease"), Kept._fields.index("settled")


def _instant(at: int) -> datetime:
    return NOW + timedelta(seconds=at)


def _task(there: Object, retries_max: int) -> Task:
    kept = Kept(*there.value)
    held = kept.status == Status.RUNNING
    return Task(
        id="t",
        task_type="t",
        shard="0",
        status=Status(kept.status),
        token=str(there.token),
        available_at=LONG_AGO,
        created_at=LONG_AGO,
        updated_at=LONG_AGO,
        attempt=kept.attempt,
        retry_count=kept.retries,
        max_retries=retries_max,
        max_deliveries=100,
        retry_policy=AT_ONCE,
        lease_id=str(kept.lease) if held else None,
        lease_expires_at=_instant(kept.expires) if held else None,
        settled_lease_id=str(kept.settled) if kept.settled else None,
        output=kept.output or None,
        inbox="w" if kept.routed else None,
    )


def _kept(task: Task) -> Kept:
    expires = OLD if task.lease_expires_at is None else int((task.lease_expires_at - NOW).total_seconds())
    return Kept(
        str(task.status),
        task.attempt,
        task.retry_count,
        int(task.lease_id or 0),
        max(OLD, expires),
        int(task.settled_lease_id or 0),
        task.output or 0,
        int(task.inbox is not None),
    )


def _command(want: tuple[Any, ...]) -> Command:
    kind, token, lease, *rest = want
    match kind:
        case "claim":
            return Claim(str(token), str(lease), "w", float(LEASE))
        case "complete":
            return Complete(str(token), str(lease), output=rest[0])
        case "fail":
            return Fail(str(token), str(lease), error="no", unit=0.5, delay_s=0)
        case "offer":
            return Offer(str(token))
        case _:
            return Lapse(str(token), str(lease), 0.5)


@dataclass(frozen=True, slots=True)
class Config:
    skews: tuple[int, ...] = (0, 1)  # Of the workers' clocks.
    monitor_skew: int = 1
    faults: int = 2
    retries_max: int = 1
    decide: Decide = lambda task, command, now: lifecycle.decide(task, command, now=now)
    conditional: bool = True
    stops_in_time: bool = True
    routed: bool = False  # Whether it begins in an inbox, from which the monitor may offer it to all.


class Claims:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._skews = (*config.skews, config.monitor_skew)
        self._monitor = len(config.skews)
        self._decided = cache(self._decide)
        self.rules = Rules(
            acts=self._acts,
            won=self._won,
            moved=self._moved,
            shift=lambda value: tuple(Kept(*value)._replace(expires=max(OLD, value[4] - 1))),
            urgent=lambda client: config.stops_in_time and client.phase == "running" and client.until <= MARGIN,
            judge=_judge,
            idles=lambda client: client.want is not None and client.want[0] in ("claim", "lapse"),
            alike=(*config.skews, -1),
            conditional=config.conditional,
            named=NAMES,
        )

    def explore(self) -> Explored[State]:
        new = Object(1, tuple(Kept("pending", 0, 0, 0, OLD, 0, 0, int(self._config.routed))))
        start = State(new, (Client(),) * len(self._skews), faults=self._config.faults)
        return explore(start, lambda state: steps(state, self.rules), problem, _ended)

    def _decide(self, there: Object, want: tuple[Any, ...], clock: int) -> Object | None:
        """What to write; the same object if that has happened already; None: rejected."""
        task = _task(there, self._config.retries_max)
        decision = self._config.decide(task, _command(want), _instant(clock))
        if isinstance(decision, Rejected):
            return None
        return there if decision is task else Object(want[1], tuple(_kept(decision)))

    def _acts(self, state: State, n: int) -> Iterator[tuple[str, State]]:
        client, there = state.clients[n], state.stored
        kept = Kept(*there.value)
        if client.phase == "idle":
            moves = ("running", "pending") if kept.routed else ("running",)  # What the monitor moves.
            if kept.status in (moves if n == self._monitor else ("pending",)):
                yield from self._begun(state, n, there)
        elif client.phase == "running":
            yield from self._finished(state, n, client)
            yield f"{n} gives up its handler", changed(state, n, Client())

    def _begun(self, state: State, n: int, seen: Object) -> Iterator[tuple[str, State]]:
        kept, token = Kept(*seen.value), fresh(state, NAMES)
        if n != self._monitor:
            want = "claim", token, token + 1
        elif kept.status == "pending":
            want = "offer", token, 0
        elif is_lapsed(_task(seen, 0), _instant(self._skews[n])):
            want = "lapse", token, kept.lease
        else:
            return
        yield f"{n} sends {want[0]}", self._sent(changed(state, n, state.clients[n]._replace(want=want)), n, seen)

    def _finished(self, state: State, n: int, client: Client) -> Iterator[tuple[str, State]]:
        assert client.seen is not None
        assert client.want is not None
        _, lease, _, attempt = client.want
        for want in (("complete", fresh(state, NAMES), lease, attempt), ("fail", fresh(state, NAMES), lease)):
            asked = changed(state, n, client._replace(phase="settling", want=want))
            yield f"{n} sends {want[0]}", self._sent(asked, n, client.seen)

    def _sent(self, state: State, n: int, seen: Object) -> State:
        """Decide on what was seen, and write it unless there is nothing to write."""
        client = state.clients[n]
        assert client.want is not None
        if seen is GONE:
            return send(state, n, GONE, 0)
        decided = self._decided(seen, client.want, self._skews[n])
        if decided is None:
            return changed(state, n, Client())
        if decided == seen:
            return self._won(state, n, seen)
        return send(state, n, decided, seen.token)

    def _moved(self, state: State, n: int, there: Object) -> State:
        return self._sent(changed(state, n, state.clients[n]._replace(put=None)), n, there)

    def _won(self, state: State, n: int, there: Object) -> State:
        client = state.clients[n]
        assert client.want is not None
        kind, lease = client.want[0], client.want[2]
        if kind == "complete":
            kept = Kept(*state.stored.value)
            if (kept.status, kept.output) != ("completed", client.want[3]):
                state = state._replace(broken=f"{n} was told that it is done, and it is {kept.status}")
        until = client.sent_at + LEASE
        if kind != "claim" or (self._config.stops_in_time and until <= MARGIN):
            return changed(state, n, Client())
        kept = Kept(*there.value)._replace(expires=OLD)  # Who settles does not look at it.
        seen, want = Object(there.token, tuple(kept)), ("run", lease, 0, kept.attempt)
        return changed(state, n, Client("running", seen, want, until=until, excused=client.excused))


def _judge(before: Object, after: Object) -> str:
    old, new = Kept(*before.value), Kept(*after.value)
    if old.status not in ("pending", "running"):
        return f"it was {old.status}, and what has ended stays ended"
    if new.status == "running" and (old.status != "pending" or new.attempt != old.attempt + 1):
        return "taken over from who holds it"
    if new.status != "running" and new.attempt != old.attempt:
        return "moved by a holder that has lost it"
    return ""


def problem(state: State) -> str | None:
    if state.broken:
        return state.broken
    running = [client for client in state.clients if client.phase == "running" and not client.excused]
    if len(running) > 1:
        return "two handlers run at once"
    kept = Kept(*state.stored.value)
    if kept.status == "completed" and kept.output != kept.attempt:
        return f"the result of attempt {kept.output} stands, and attempt {kept.attempt} has begun"
    return None


def _ended(state: State) -> bool:
    return Kept(*state.stored.value).status in ("completed", "failed") and all(
        client.phase == "idle" for client in state.clients
    )
