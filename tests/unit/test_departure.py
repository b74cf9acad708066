"""A worker that has stopped takes charge of nothing more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.config.origins import load
from qo.core.task import Status
from qo.errors import UsageError
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.store.port import PutResult
from qo.testing import virtual
from qo.worker.loop.state import State
from qo.worker.service import worker_config
from qo.worker.worker import Worker
from support.stores.queues import app_of, config

pytestmark = pytest.mark.fast


class Hanging(MemoryStore):
    """Does not answer a claim until it is let go."""

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if key.startswith("tasks/") and if_match is not None and not self.answers.is_set():
            self.asked.set()
            await asyncio.shield(self.answers.wait())
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


def test_a_claim_that_is_answered_after_the_worker_has_stopped_is_nobodys() -> None:
    ran: list[Any] = []

    async def work(input: Any) -> None:
        ran.append(input)

    async def story() -> None:
        store = Hanging()
        queue = Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
        task = await queue.submit("work")
        worker = Worker(queue, app_of(work), config(shutdown_grace_s=1.0, cancel_grace_s=1.0))
        running = asyncio.create_task(worker.run())
        await store.asked.wait()
        worker.stop()
        stats = await running
        assert worker.state is State.STOPPED
        store.answers.set()
        await asyncio.sleep(5)
        assert (stats.claimed, stats.released, stats.held, ran) == (0, 0, 0, [])
        assert (await queue.get(task.id)).status is Status.PENDING

    virtual.run(story())


def test_a_worker_that_is_cancelled_leaves_in_order_though_its_last_report_is_not_answered() -> None:
    async def story() -> None:
        store = Hanging()
        store.answers.set()
        queue = Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
        task = await queue.submit("work")
        begun = asyncio.Event()

        async def work(input: Any) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = Worker(queue, app_of(work), config(cancel_grace_s=1.0, lease_s=60.0))
        running = asyncio.create_task(worker.run())
        await begun.wait()
        store.answers.clear()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert worker.state is State.STOPPED
        assert (worker.stats.held, worker.stats.lost, worker.stats.released) == (0, 1, 0)
        assert (await queue.get(task.id)).status is Status.RUNNING  # Until its lease runs out.

    virtual.run(story())


def test_a_lease_that_is_shorter_than_clocks_may_differ_is_refused_with_what_to_set() -> None:
    with pytest.raises(UsageError, match="QO_LEASE_S to 5 or more"):
        config(lease_s=1.0, clock_doubt_s=1.5)
    assert config(lease_s=5.0, clock_doubt_s=1.5).lease_margin_s == 1.5
    assert config(lease_s=60.0, clock_doubt_s=1.5).lease_margin_s == 5.0
    assert config(lease_s=1.0).lease_margin_s == pytest.approx(1 / 12)


@pytest.mark.parametrize(("store", "margin_s"), [("s3://bucket/queue", 1.5), ("local:.qo", 0.5)])
def test_the_margin_of_a_lease_on_a_bucket_counts_that_clocks_differ(store: str, margin_s: float) -> None:
    settings = load({"store": store, "worker.lease_s": 6})
    assert worker_config(Queue(MemoryStore()), settings, False).lease_margin_s == margin_s
