"""Laws of the limits, over random arrivals, durations and cancellations, in virtual time."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.testing import virtual
from qo.worker.api.request import Overloaded, Request
from qo.worker.layers import concurrency_limit, rate_limit
from qo.worker.layers.stack import Layer
from qo.worker.loop.outcome import Outcome
from support.worker.layer_requests import attempt, calling

pytestmark = pytest.mark.fast

EPSILON_S = 1e-6


class Arrival(NamedTuple):
    after_s: float
    takes_s: float
    patient: bool
    gives_up_after_s: float | None


TIMES = st.floats(0, 3, allow_nan=False)
ARRIVALS = st.lists(
    st.builds(Arrival, st.just(0.0) | TIMES, TIMES, st.booleans(), st.none() | TIMES), min_size=1, max_size=30
)


class Run:
    """What a limit made of the arrivals."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, float]] = []
        self.running = 0
        self.peak = 0
        self.refused: dict[int, float] = {}  # For how long each is to stay away.

    async def drive(self, limit: Layer, arrivals: list[Arrival]) -> None:
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[None]] = []
        for number, arrival in enumerate(arrivals):
            await asyncio.sleep(arrival.after_s)
            tasks.append(asyncio.create_task(self._one(limit, number, arrival)))
            if arrival.gives_up_after_s is not None:
                loop.call_later(arrival.gives_up_after_s, tasks[-1].cancel)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, limit: Layer, number: int, arrival: Arrival) -> None:
        async def work(request: Request) -> Outcome | None:
            self.begun.append((number, asyncio.get_running_loop().time()))
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await asyncio.sleep(arrival.takes_s)
            finally:
                self.running -= 1

        try:
            await limit(calling(work))(attempt(str(number), may_wait=arrival.patient))
        except Overloaded as refused:
            self.refused[number] = refused.retry_after_s


def in_order(run: Run) -> bool:
    begun = [number for number, _ in run.begun]
    return begun == sorted(begun)


@given(starts=st.integers(1, 6), per_s=st.floats(0.1, 5, allow_nan=False), arrivals=ARRIVALS)
def test_a_rate_limit_never_lets_more_start_in_any_window_than_it_says(
    starts: int, per_s: float, arrivals: list[Arrival]
) -> None:
    run = Run()
    virtual.run(run.drive(rate_limit(starts, per_s), arrivals))
    times = [at for _, at in run.begun]
    for first, since in enumerate(times):
        assert sum(at < since + per_s - EPSILON_S for at in times[first:]) <= starts
    assert all(after_s > 0 for after_s in run.refused.values())
    assert in_order(run)


@given(starts=st.integers(1, 6), per_s=st.floats(0.1, 5, allow_nan=False), count=st.integers(1, 40))
def test_a_rate_limit_wastes_nothing_while_requests_wait(starts: int, per_s: float, count: int) -> None:
    run = Run()
    virtual.run(run.drive(rate_limit(starts, per_s), [Arrival(0, 0, True, None)] * count))
    assert len(run.begun) == count
    assert run.begun[-1][1] == pytest.approx((count - 1) // starts * per_s)


@given(n=st.integers(1, 5), arrivals=ARRIVALS)
def test_a_concurrency_limit_is_kept_in_order_and_all_its_permits_come_back(
    n: int, arrivals: list[Arrival]
) -> None:
    run, limit = Run(), concurrency_limit(n)
    virtual.run(run.drive(limit, arrivals))
    assert run.peak <= n
    assert limit.room() == n
    assert in_order(run)
    waited_for = {number for number, arrival in enumerate(arrivals) if arrival.gives_up_after_s is None}
    assert {number for number, _ in run.begun} >= waited_for - set(run.refused)
