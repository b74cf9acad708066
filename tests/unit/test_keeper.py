"""The keeper of leases, in virtual time: what it renews, how long it tries, and what it does when all is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.errors import Unavailable
from qo.queue.queue import Queue
from qo.testing import virtual
from qo.worker.api.handler import make_handler
from qo.worker.config import LeaseTimes
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import Clock, lease_time, now
from qo.worker.loop.hold import Hold, Holds, Phase
from qo.worker.loop.keeper import Keeper
from qo.worker.observe.stats import Stats
from support.stores.queues import claimed, virtual_queue

pytestmark = pytest.mark.fast

LEASE_S = 60.0


def work(input: Any) -> None: ...


class Bench:
    """A keeper with one hold in its hands."""

    def __init__(
        self, queue: Queue, hold: Hold, keeper: Keeper, stats: Stats, news: list[tuple[float, Why]]
    ) -> None:
        self.queue, self.hold, self.keeper, self.stats, self.news = queue, hold, keeper, stats, news

    async def lease_s(self) -> float:
        """How long the task is still held, by the store's clock."""
        task = await self.queue.get(self.hold.task.id)
        assert task.lease_expires_at is not None
        return (task.lease_expires_at - await self.queue.store.now()).total_seconds()


async def bench(*, timeout_s: float | None = None) -> Bench:
    queue, holds, stats = virtual_queue(), Holds(), Stats()
    task = await queue.submit("work")
    claim = await claimed(queue, task.id, lease_s=LEASE_S)
    hold = Hold(
        claim, make_handler("work", work), Clock(timeout_s), now=now(), leased_until=lease_time() + LEASE_S
    )
    hold.enter(Phase.RUNNING, now())
    holds.add(hold)
    news: list[tuple[float, Why]] = []
    begun = now()

    def tell(told: Hold, why: Why) -> None:
        assert told is hold
        if told.cancel.request(why):
            news.append((now() - begun, why))

    return Bench(queue, hold, Keeper(holds, stats, LeaseTimes(LEASE_S, 20.0, 5.0), stop_attempt=tell), stats, news)


def run(scene: Any) -> None:
    async def main() -> None:
        made = await bench(timeout_s=scene.__kwdefaults__["timeout_s"] if scene.__kwdefaults__ else None)

        async def own() -> Queue:
            return made.queue

        keeping = asyncio.create_task(made.keeper.run(own))
        try:
            await scene(made)
        finally:
            keeping.cancel()

    virtual.run(main())


def test_a_lease_never_has_less_than_half_of_its_time_left_while_the_store_answers() -> None:
    async def scene(b: Bench) -> None:
        for _ in range(100):
            await asyncio.sleep(7)
            assert await b.lease_s() > LEASE_S / 2
        assert b.stats.renewals == pytest.approx(700 / 20, abs=3), "and it is not renewed more often than needed"
        assert b.news == []

    run(scene)


def test_a_renewal_that_fails_is_tried_again_until_the_lease_is_nearly_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(b: Bench) -> None:
        async def fails(*arguments: Any, **options: Any) -> None:
            raise Unavailable("away")

        monkeypatch.setattr(b.queue, "renew", fails)
        await asyncio.sleep(LEASE_S)
        assert b.stats.renew_failures > 10
        ((at, why),) = b.news
        assert why is Why.LOST
        assert LEASE_S * 0.85 < at < LEASE_S, "in time for the handler to stop before somebody else begins"

    run(scene)


def test_an_outage_shorter_than_the_lease_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(b: Bench) -> None:
        renew, away_until = b.queue.renew, now() + 45

        async def away(*arguments: Any, **options: Any) -> Any:
            if now() < away_until:
                raise Unavailable("away")
            return await renew(*arguments, **options)

        monkeypatch.setattr(b.queue, "renew", away)
        await asyncio.sleep(300)
        assert b.news == []
        assert await b.lease_s() > LEASE_S / 2

    run(scene)


def test_a_task_that_should_have_been_stopped_long_ago_is_let_go() -> None:
    async def scene(b: Bench, *, timeout_s: float = 100.0) -> None:
        b.hold.clock.start(lambda: None)  # Nothing stops it: its event loop is blocked, say.
        await asyncio.sleep(100 + LEASE_S)
        assert b.news == []
        await asyncio.sleep(2 * LEASE_S)
        assert [why for _, why in b.news] == [Why.LOST]
        assert await b.lease_s() < 0

    run(scene)


def test_a_request_to_cancel_is_told_at_the_next_renewal() -> None:
    async def scene(b: Bench) -> None:
        await b.queue.cancel(b.hold.task.id)
        await asyncio.sleep(25)
        assert [why for _, why in b.news] == [Why.CANCELLED]

    run(scene)


def test_a_claim_that_was_settled_during_its_renewal_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(b: Bench) -> None:
        renew = b.queue.renew

        async def late(*arguments: Any, **options: Any) -> Any:
            b.hold.enter(Phase.SETTLING, now())
            await b.queue.complete(b.hold.claim)
            return await renew(*arguments, **options)

        monkeypatch.setattr(b.queue, "renew", late)
        await asyncio.sleep(40)
        assert b.news == []

    run(scene)


def test_a_surprise_in_one_turn_costs_nobody_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(b: Bench) -> None:
        turn, surprises = b.keeper._renew_due, iter([ZeroDivisionError()])

        def surprised(open_queue: Any) -> None:
            if (error := next(surprises, None)) is not None:
                raise error
            turn(open_queue)

        monkeypatch.setattr(b.keeper, "_renew_due", surprised)
        await asyncio.sleep(200)
        assert b.news == []
        assert await b.lease_s() > LEASE_S / 2
        assert "ZeroDivisionError" in caplog.text

    run(scene)
