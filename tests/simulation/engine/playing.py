"""One seed of one part, from beginning to end; and what to type to see it again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from simulation.engine import dispatcher, limits, machines, purges, queue, shards, worker
from simulation.engine.faults import Faults
from support.servers.postgres import PostgresServer

CPU_MAX_S = 120.0  # Of a seed; the dearest take a tenth of that.


class Runaway(KeyboardInterrupt):
    """A callback of the loop does not end. Neither the code that runs nor the loop may catch this."""


@contextmanager
def limit_cpu(seconds: float = CPU_MAX_S) -> Generator[None]:
    """Fail where more processor time is used, for example by a loop that awaits nothing: no count of turns ends it."""

    def refuse(*_: object) -> NoReturn:
        raise Runaway

    before = signal.signal(signal.SIGVTALRM, refuse)
    signal.setitimer(
        signal.ITIMER_VIRTUAL, seconds, seconds / 10
    )  # Again: what is left is cancelled, and may also loop.
    try:
        yield
    except Runaway as error:
        raise AssertionError(f"still running after {seconds:g} s of processor time") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _in_virtual_time(simulate: Callable[[Faults], Any], faults: Faults) -> None:
    machines.run(simulate(faults))


PARTS: dict[str, Callable[[Faults], None]] = {
    "queue": partial(_in_virtual_time, queue.simulate),
    "worker": partial(_in_virtual_time, worker.simulate),
    "shards": partial(_in_virtual_time, shards.simulate),
    "purges": partial(_in_virtual_time, purges.simulate),
    "limits": partial(_in_virtual_time, limits.simulate),
    "dispatcher": dispatcher.simulate,
}


@dataclass(frozen=True, slots=True)
class Played:
    digest: str  # Of everything that happened.
    struck: dict[str, str]  # The faults, in order.
    failure: BaseException | None


@dataclass(frozen=True, slots=True)
class OnPostgres:
    """How the part ``dispatcher`` is run on PostgreSQL."""

    server: PostgresServer
    steps: int = dispatcher.STEPS


def play(
    part: str,
    seed: int,
    only: Collection[str] | None = None,
    *,
    loud: bool = False,
    postgres: OnPostgres | None = None,
) -> Played:
    faults = Faults(seed, only, loud=loud)
    failure: BaseException | None = None
    try:
        with limit_cpu():
            if postgres is None:
                PARTS[part](faults)
            else:
                assert part == "dispatcher", "no other part has a state database"
                dispatcher.simulate(faults, postgres.server, postgres.steps)
    except Exception as error:
        failure = error
    return Played(faults.trace.digest, faults.struck, failure)


def command(
    part: str,
    seed: int,
    only: Iterable[str] | None = None,
    mutant: str | None = None,
    postgres_steps: int | None = None,
) -> str:
    """What replays it, from the root of the repository. ``postgres_steps``: on PostgreSQL, with so many steps."""
    chosen = "" if only is None else f" --only={','.join(only)}"
    planted = "" if mutant is None else f" --mutant {mutant}"
    there = "" if postgres_steps is None else f" --postgres {postgres_steps}"
    return f"PYTHONPATH=tests .venv/bin/python -m simulation.engine {part} --seed {seed}{there}{planted}{chosen}"


def check(part: str, seed: int, postgres: OnPostgres | None = None) -> None:
    """For tests: whatever goes wrong, the way to see it again is told."""
    if (failure := play(part, seed, postgres=postgres).failure) is not None:
        steps = None if postgres is None else postgres.steps
        failure.add_note(f"replay and shrink it: {command(part, seed, postgres_steps=steps)}")
        raise failure
