"""The clock of a store inside this machine: it hides jitter, and follows a machine whose clock was set."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from qo.core.storetime import CLOCK_SET
from qo.store.embedded import Clock, machine_time

pytestmark = pytest.mark.fast

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Machine:
    def __init__(self) -> None:
        self.time = NOON

    def read(self) -> datetime:
        return self.time


def test_jitter_never_makes_time_run_backwards() -> None:
    machine = Machine()
    clock = Clock(machine.read)
    told: list[datetime] = []
    for step_s in (0, 1, -1.5, 0.5, 0.5, 3, -2, 1, 2):
        machine.time += timedelta(seconds=step_s)
        told.append(clock.now())
    assert told == sorted(told)
    assert told[-1] == machine.time


def test_processes_from_before_and_after_the_clock_was_set_back_agree() -> None:
    machine = Machine()
    old = Clock(machine.read)
    old.now()
    machine.time -= timedelta(hours=1)
    new = Clock(machine.read)
    for _ in range(3):
        assert old.now() == new.now() == machine.time
        machine.time += timedelta(seconds=5)


def test_a_clock_that_was_set_back_holds_still_from_there() -> None:
    machine = Machine()
    clock = Clock(machine.read)
    clock.now()
    machine.time -= timedelta(hours=1)
    assert clock.now() == NOON - timedelta(hours=1)
    machine.time -= CLOCK_SET
    assert clock.now() == NOON - timedelta(hours=1)


def test_a_clock_set_ahead_is_followed() -> None:
    machine = Machine()
    clock = Clock(machine.read)
    clock.now()
    machine.time += timedelta(days=1)
    assert clock.now() == machine.time


def test_threads_that_share_a_clock_see_no_time_run_backwards() -> None:
    clock = Clock(lambda: machine_time() - timedelta(seconds=next(jitter)))
    jitter = iter([0.0, 0.5, 0.1, 1.5] * 1000)
    seen: list[list[datetime]] = [[] for _ in range(4)]

    def look(told: list[datetime]) -> None:
        told.extend(clock.now() for _ in range(1000))

    threads = [threading.Thread(target=look, args=(told,)) for told in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(told) == 1000 for told in seen)
    assert all(earlier <= later for told in seen for earlier, later in pairwise(told))
