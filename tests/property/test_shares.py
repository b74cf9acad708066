"""How queues share slots: by weight while they have work, without starvation, and no slot idles for nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.core.shares import grant_slots, pass_on_return
from qo.queue.options import NewTask
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.loop.slot_share import SharedSlots
from qo.worker.worker import Worker
from support.stores.queues import config, virtual_queue

pytestmark = pytest.mark.fast

NAMES = ("a", "b", "c")
weights = st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES})
passes = st.fixed_dictionaries({name: st.floats(0, 10) for name in NAMES})
wantings = st.sets(st.sampled_from(NAMES))


@given(passes=passes, weights=weights, wanting=wantings, free=st.integers(0, 40))
def test_every_free_slot_goes_to_a_queue_that_wants_one(
    passes: dict[str, float], weights: dict[str, int], wanting: set[str], free: int
) -> None:
    grants = grant_slots(passes, weights, wanting, free)
    assert set(grants) == wanting
    assert sum(grants.values()) == (free if wanting else 0)


@given(weights=weights, rounds=st.integers(1, 30))
def test_while_all_want_slots_they_get_them_by_weight(weights: dict[str, int], rounds: int) -> None:
    total = rounds * sum(weights.values())
    grants = grant_slots(dict.fromkeys(NAMES, 0.0), weights, NAMES, total)
    for name in NAMES:
        assert abs(grants[name] - rounds * weights[name]) <= 1


@given(passes=passes, weights=weights, wanting=wantings.filter(bool))
def test_a_queue_that_comes_back_neither_waits_nor_makes_up_for_its_absence(
    passes: dict[str, float], weights: dict[str, int], wanting: set[str]
) -> None:
    for name in NAMES:
        back = pass_on_return(passes, wanting, name)
        assert back >= passes[name]
        others = [passes[each] for each in wanting if each != name]
        assert not others or back <= max(passes[name], min(others))


class Shop:
    """Workers of several queues in virtual time, that share their slots."""

    def __init__(self, slots: int, weights: dict[str, int]) -> None:
        self.shared = SharedSlots(slots, weights)
        self.queues = {name: virtual_queue() for name in weights}
        self.started: list[str] = []
        self.running = self.peak = 0

    def worker(self, name: str, slots: int) -> Worker:
        app = App()

        @app.task("work")
        async def work(input: float) -> None:
            self.started.append(name)
            self.running += 1
            self.peak = max(self.peak, self.running)
            try:
                await asyncio.sleep(input)
            finally:
                self.running -= 1

        settings = config(concurrency=slots, inbox_capacity=0, stop_when_empty=True)
        return Worker(self.queues[name], app, settings, slot_share=self.shared.join(name))

    async def drain(self, slots: int) -> None:
        async def run(name: str) -> None:
            await self.worker(name, slots).run()
            self.shared.leave(name)

        await asyncio.gather(*(run(name) for name in self.queues))


@settings(deadline=None, max_examples=25)
@given(
    slots=st.integers(1, 6), weights=weights, tasks=st.integers(1, 40), seconds=st.sampled_from([0.2, 1.0, 3.0])
)
def test_workers_of_several_queues_share_slots_and_finish_everything(
    slots: int, weights: dict[str, int], tasks: int, seconds: float
) -> None:
    async def main() -> Shop:
        shop = Shop(slots, weights)
        for queue in shop.queues.values():
            await queue.submit_many([NewTask("work", seconds) for _ in range(tasks)])
        await shop.drain(slots)
        return shop

    shop = virtual.run(main())
    assert Counter(shop.started) == dict.fromkeys(NAMES, tasks)
    assert shop.peak <= slots


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_two_full_queues_start_tasks_three_to_one_and_neither_starves(slots: int) -> None:
    async def main() -> Shop:
        shop = Shop(slots, {"high": 3, "low": 1})
        for queue in shop.queues.values():
            await queue.submit_many([NewTask("work", 1.0) for _ in range(160)])
        await shop.drain(slots)
        return shop

    shop = virtual.run(main())
    counts = Counter(shop.started[:160])
    assert counts["high"] == pytest.approx(120, abs=8 + 2 * slots)
    for start in range(0, 150, 30):
        assert "low" in shop.started[start : start + 30]


def test_an_empty_queue_leaves_its_slots_to_the_others() -> None:
    async def main() -> tuple[Shop, float]:
        shop = Shop(4, {"high": 9, "low": 1})
        await shop.queues["low"].submit_many([NewTask("work", 1.0) for _ in range(40)])
        began = asyncio.get_running_loop().time()
        await shop.drain(4)
        return shop, asyncio.get_running_loop().time() - began

    shop, seconds = virtual.run(main())
    assert shop.peak == 4
    assert seconds < 16, "ten rounds of four, with a little to find them"
