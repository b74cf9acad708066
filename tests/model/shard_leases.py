"""The protocol of shard leases: a plan that gives a shard to one worker or another, and workers that read its number.

A worker goes by a plan for some time after it sent the request that showed its number, and begins to own what is newly
granted some time after it heard of it. So of all workers one owns the shard at most, whatever is slow, lost or stopped
on the way; and from wherever it has come to, somebody can again. All times are relative to now. Nobody has to do
anything before time passes, so everybody may be stopped anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from model.explorer import Explored, explore

TTL = 2  # Ticks for which a worker goes by a plan.
MARGIN = 1
UNKNOWN = -1


class Read(NamedTuple):
    """A request for the board: how long ago it was sent, and what it found once the store has answered."""

    age: int = 0
    plan: int = UNKNOWN
    grant: int = 0


class Worker(NamedTuple):
    plan: int = 0  # That it goes by; 0: none.
    grant: int = 0  # Of the shard, by that plan; 0: it is another's.
    start: int = 0  # When the grant comes into effect.
    until: int = 0  # How long it goes by the plan.
    read: Read | None = None


class State(NamedTuple):
    plan: int
    owner: int  # By the plan; -1: nobody.
    grant: int
    workers: tuple[Worker, ...]
    faults: int


@dataclass(frozen=True, slots=True)
class Config:
    workers: int = 2
    faults: int = 2
    wait: int = TTL
    counts_from_request: bool = True
    numbers_grants: bool = True  # A shard that comes back to a worker is a new grant.


class Leases:
    def __init__(self, config: Config) -> None:
        self._config = config

    def explore(self) -> Explored[State]:
        start = State(1, -1, 0, (Worker(),) * self._config.workers, self._config.faults)
        return explore(start, self._named_steps, problem, lambda state: bool(owners(state)))

    def _named_steps(self, state: State) -> Iterator[tuple[str, State]]:
        for label, after in self._steps(state):
            yield label, _renamed(after)

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for owner in range(-1, len(state.workers)):
            if owner != state.owner:
                grant = _fresh_grant(state) if self._config.numbers_grants else owner + 1
                grant = grant if owner >= 0 else 0
                yield (
                    f"the plan gives it to {owner}",
                    state._replace(plan=_fresh_plan(state), owner=owner, grant=grant),
                )
        yield "the plan changes elsewhere", state._replace(plan=_fresh_plan(state))
        for n, worker in enumerate(state.workers):
            for label, after, faults in self._acts(state, n, worker):
                workers = (*state.workers[:n], after, *state.workers[n + 1 :])
                yield f"{n} {label}", state._replace(workers=workers, faults=state.faults - faults)
        yield "time passes", state._replace(workers=tuple(map(_later, state.workers)))

    def _acts(self, state: State, n: int, worker: Worker) -> Iterator[tuple[str, Worker, int]]:
        read = worker.read
        if read is None:
            yield "asks", worker._replace(read=Read()), 0
        elif read.plan != UNKNOWN:
            yield "hears", self._heard(worker, read), 0
        if read is not None and read.plan == UNKNOWN:
            grant = state.grant if state.owner == n else 0
            yield "is answered", worker._replace(read=Read(read.age, state.plan, grant)), 0
        if state.faults:
            if read is not None:
                yield "gets no answer", worker._replace(read=None), 1
            yield "dies", Worker(), 1

    def _heard(self, worker: Worker, read: Read) -> Worker:
        age = read.age if self._config.counts_from_request else 0
        until = max(0, TTL - MARGIN - age)
        if read.plan == worker.plan:
            return worker._replace(until=max(worker.until, until), read=None)
        start = worker.start if read.grant == worker.grant else self._config.wait
        return Worker(read.plan, read.grant, start if read.grant else 0, until)


def _later(worker: Worker) -> Worker:
    read = worker.read and worker.read._replace(age=min(TTL, worker.read.age + 1))
    return worker._replace(start=max(0, worker.start - 1), until=max(0, worker.until - 1), read=read)


def _fresh_plan(state: State) -> int:
    return 1 + max(
        state.plan, *(max(worker.plan, worker.read.plan if worker.read else 0) for worker in state.workers)
    )


def _fresh_grant(state: State) -> int:
    return 1 + max(
        state.grant, *(max(worker.grant, worker.read.grant if worker.read else 0) for worker in state.workers)
    )


def _renamed(state: State) -> State:
    """With small numbers, and without what makes no difference. It matters whether a plan or a grant is the present
    one, or the one that is on its way to the same worker; which other one it is does not matter."""
    workers = tuple(_renamed_worker(state, each) for each in state.workers)
    return state._replace(plan=1, grant=min(1, state.grant), workers=workers)


def _renamed_worker(state: State, worker: Worker) -> Worker:
    read = worker.read
    read_plan, read_grant = (UNKNOWN, 0) if read is None else (read.plan, read.grant)

    def small(number: int, present: int, on_its_way: int) -> int:
        if number in (0, UNKNOWN):
            return number
        return 1 if number == present else 2 if number == on_its_way else 3

    plan = small(worker.plan, state.plan, read_plan)
    grant = small(worker.grant, state.grant, read_grant)
    if plan == 3 and grant == 3 and not worker.until:
        plan = grant = 0  # Nothing will ever renew it.
    if not grant:
        worker = worker._replace(start=0, until=0)
    if read is not None:
        read = Read(read.age, small(read_plan, state.plan, read_plan), small(read_grant, state.grant, read_grant))
    return worker._replace(plan=plan, grant=grant, read=read)


def owners(state: State) -> list[int]:
    return [n for n, each in enumerate(state.workers) if each.grant and not each.start and each.until]


def problem(state: State) -> str | None:
    found = owners(state)
    return None if len(found) <= 1 else f"{found} all own it"
