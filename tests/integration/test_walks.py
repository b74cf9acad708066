"""One wake-up is enough for many tasks: a worker that is awake goes on by itself, and the bucket hears little of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from qo.agent.agent import WAKE, Agent
from qo.agent.heartbeats import HeartbeatThread
from qo.agent.operators import PythonExecutor
from qo.agent.walk import AttemptContext, Walk
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, NotClaimed, Outcome
from qo.api.internal_client import DispatcherClient
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.wake_spread import SPREAD
from qo.dispatcher.attempts import claiming
from qo.dispatcher.auth.local_tokens import worker_tokens
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox import publisher
from qo.dispatcher.outbox.queue_watch import QueueWatch
from qo.dispatcher.outbox.queues import open_queue
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import Unavailable
from qo.queue.queue import Queue
from qo.store.blocking_files import BlockingFiles
from qo.worker.api.app import App
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.outcome import Acked
from qo.worker.loop.slot_share import SharedSlots
from qo.worker.worker import Worker
from support.dispatcher.in_process_dispatcher import dispatching
from support.dispatcher.pipeline_tasks import ROOT
from support.dispatcher.pipelines import dag, deployed, job, source
from support.dispatcher.sites import Site, embedded, pipeline
from support.dispatcher.sites import job as site_job
from support.dispatcher.states import Clock
from support.stores.queues import config, until

__all__ = ["embedded"]  # A fixture.

REQUESTS_MAX = 1.0  # To the bucket, for a task under load, of dispatcher and worker together. It may become lower.
SHOP = dag(
    "shop",
    source("orders", runtime="dispatcher", operator="noop"),
    job("clean", reads="orders", operator="runner_operators:copy_async"),
)


# The bucket


@asynccontextmanager
async def working(directory: Path, wanted: Dag) -> AsyncIterator[tuple[State, Queue]]:
    """A dispatcher, and a worker whose requests to the queue are counted."""
    async with dispatching(directory, wanted) as (state, settings, addresses):
        token = worker_tokens(settings.dispatcher)[-1]
        heart = HeartbeatThread(lambda: DispatcherClient(addresses.internal, token))
        storage = BlockingFiles(settings, asyncio.get_running_loop())
        heart.start()
        queue = await open_queue(settings, "python")
        client, app = DispatcherClient(addresses.internal, token), App()
        app.task(WAKE, timeout_s=None)(Agent(client, heart, PythonExecutor(), storage).wake)
        worker = Worker(queue, app, config(concurrency=8))
        running = asyncio.create_task(worker.run())
        try:
            yield state, queue
        finally:
            worker.stop()
            await running
            heart.stop()
            await client.close()
            await storage.close()
            await queue.close()


def completed(state: State) -> int:
    tasks = schema.tasks
    with state.read() as tx:
        return int(
            tx.value(sa.select(sa.func.count()).where(tasks.c.job == "clean", tasks.c.status == "completed"))
        )


async def test_a_burst_costs_the_bucket_less_than_a_request_a_task(tmp_path: Path) -> None:
    count = 200
    async with working(tmp_path, SHOP) as (state, queue):
        with state.write() as tx:
            events = [EventBody(partition_key=f"p{number}") for number in range(count)]
            emission.emit(tx, "shop", "orders", key="all", events=events, by="tests")
        await until(lambda: asyncio.to_thread(lambda: completed(state) == count), within_s=60)
        meter = queue.meter
        assert meter is not None
        asked = meter.snapshot().requests
        messages = await queue.list(limit=1000)
    submitted = 3 * len(messages)  # The task, its hint, and at most one notice on the board.
    assert asked + submitted < REQUESTS_MAX * count, f"{asked} of the worker, {len(messages)} wake-ups"


# What the dispatcher sends


class Queues:
    """Delivers every wake-up, in order."""

    def __init__(self) -> None:
        self.waiting: list[WakeUp] = []
        self.sent = 0

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        assert queue == "python"
        self.waiting += wakes
        self.sent += len(wakes)


def emit(state: State, count: int) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        events = [EventBody(partition_key=f"p{number}") for number in range(count)]
        emission.emit(tx, "shop", "orders", key="all", events=events, by="tests")
    while router.tick(state) or release.tick(state, Limits()):
        pass


async def test_a_burst_is_announced_by_a_few_wake_ups(state: State) -> None:
    emit(state, 150)
    queues = Queues()
    assert await publisher.tick(state, queues, watch=QueueWatch(state)) == 150
    assert queues.sent == SPREAD
    assert await publisher.tick(state, queues, watch=QueueWatch(state)) == 0, "all have been seen to"


async def test_a_few_tasks_have_a_wake_up_each(state: State) -> None:
    emit(state, 5)
    queues = Queues()
    await publisher.tick(state, queues, watch=QueueWatch(state))
    assert len({each.task_id for each in queues.waiting}) == 5


async def test_workers_that_only_take_the_named_task_get_through_any_backlog(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of the release before do: each claim is followed by another wake-up, without the sweeper."""
    count, time = 60, [0.0]
    monkeypatch.setattr(type(state.ambient), "monotonic", lambda self: time[0])
    emit(state, count)
    queues, watch, claimed = Queues(), QueueWatch(state), set[str]()
    await publisher.tick(state, queues, watch=watch)
    for _ in range(4 * count):
        while queues.waiting:
            task_id = queues.waiting.pop(0).task_id
            with state.write() as tx:
                answer = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="old"), ROOT)
            assert isinstance(answer, Claimed)
            claimed.add(task_id)
        time[0] += 0.5
        await publisher.send_more(queues, watch)
        if len(claimed) == count:
            break
    assert len(claimed) == count


async def test_a_dispatcher_that_starts_names_tasks_that_wait(state: State, state_clock: Clock) -> None:
    """Whoever covered them may have died: what it knew is not needed."""
    emit(state, 40)
    await publisher.tick(state, Queues(), watch=QueueWatch(state))
    state_clock.advance(5)
    queues = Queues()
    assert await publisher.send_more(queues, QueueWatch(state)) == SPREAD


async def test_a_queue_that_takes_no_wake_ups_is_sent_them_again(state: State) -> None:
    class Away(Queues):
        async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
            raise Unavailable("the bucket is away")

    emit(state, 3)
    watch, queues = QueueWatch(state), Queues()
    await publisher.tick(state, Away(), watch=watch)
    with state.write() as tx:
        tx.execute(sa.update(schema.outbox).values(available_at=tx.now))
    await publisher.tick(state, queues, watch=watch)
    assert queues.sent == 3


# A walk


class Api:
    """Hands out these tasks, and records what is given back."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.returned: list[str] = []
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def claim_next(self, queue: str, worker_id: str) -> Claimed | None:
        self.asked.set()
        await self.gate.wait()
        return claim(self.names.pop(0)) if self.names else None

    async def complete(self, capability: str, request: CompleteRequest) -> None:
        assert request.outcome is Outcome.RELEASED
        self.returned.append(request.task_id)


class Slot:
    worker_id = "w"

    def __init__(self, keeps: Callable[[], bool] = lambda: True) -> None:
        self.cancel = CancelToken()
        self.freed = False
        self.keep_slot = keeps

    def free_slot(self) -> None:
        self.freed = True


def claim(name: str) -> Claimed:
    work = {"task_id": name, "attempt": 1, "dag": "d", "job": "j", "version": 1, "runtime": "python"}
    return Claimed.model_validate(
        {
            "attempt": 1,
            "lease_id": f"lease-{name}",
            "at": "2024-01-01T00:00:00Z",
            "lease_expires_at": "2024-01-01T00:01:00Z",
            "heartbeat_s": 10,
            "work": work | {"operator": "o", "update_strategy": "replace"},
        }
    )


def walk(api: Api, slot: Slot, ran: list[str], outcome: str | Acked | Exception = "success: completed") -> Walk:
    async def run(claimed: Claimed, context: AttemptContext) -> str | Acked:
        ran.append(claimed.work.task_id)
        context.free_slot()
        await asyncio.sleep(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return Walk(cast("Any", api), "python", cast("Any", slot), run)


async def test_a_walk_runs_one_task_after_the_other_until_there_are_no_more() -> None:
    api, slot, ran = Api("b", "c"), Slot(), list[str]()
    assert await walk(api, slot, ran).run(claim("a")) == "3 x success: completed"
    assert ran == ["a", "b", "c"]
    assert slot.freed


async def test_a_wake_up_of_a_task_that_somebody_has_leads_to_others() -> None:
    api, ran = Api("b"), list[str]()
    assert await walk(api, Slot(), ran).run(NotClaimed(reason="running")) == "success: completed"
    assert await walk(Api(), Slot(), ran).run(NotClaimed(reason="running")) == "not claimed: running"
    assert ran == ["b"]


async def test_a_walk_ends_when_the_worker_wants_its_slot_back() -> None:
    """It stops, is paused, or another queue has its turn."""
    api, ran = Api("b", "c"), list[str]()
    await walk(api, Slot(lambda: len(ran) < 2), ran).run(claim("a"))
    assert (ran, api.names) == (["a", "b"], ["c"])


async def test_a_walk_that_is_cancelled_gives_back_what_it_is_being_given() -> None:
    api, ran = Api("b"), list[str]()
    api.gate.clear()
    walking = asyncio.create_task(walk(api, Slot(), ran).run(claim("a")))
    await api.asked.wait()
    walking.cancel()
    await asyncio.sleep(0)
    api.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await walking
    assert (ran, api.returned) == (["a"], ["b"])


async def test_a_walk_counts_a_failed_task_and_goes_on() -> None:
    outcome = await walk(Api("b"), Slot(), [], Acked("retryable: pending", failed=True)).run(claim("a"))
    assert outcome == Acked("2 x retryable: pending", failed=True)


async def test_a_walk_ends_where_no_attempt_can_be_made() -> None:
    api = Api("b", "c")
    with pytest.raises(OSError, match="no process"):
        await walk(api, Slot(), [], OSError("no process can be started")).run(claim("a"))
    assert len(api.names) >= 1


def test_a_slot_goes_to_the_queue_whose_turn_it_is() -> None:
    slots = SharedSlots(2, {"long": 1, "short": 1})
    long, short = slots.join("long"), slots.join("short")
    long.attach(lambda: 2, lambda: None)
    assert long.keep(), "nobody else wants it"
    assert short.room(1) == 0
    assert not long.keep(), "the other queue waits, and has had less"
    short.report_look(False)
    assert long.keep()


# Real processes


@pytest.mark.long
async def test_others_go_on_soon_where_a_worker_was_killed_in_its_walk(embedded: Site) -> None:
    """Its claimed tasks come back when their leases run out; nobody waits for the sweeper with the others."""
    site, names = embedded, [f"p{number}" for number in range(60)]
    async with site.dispatcher(QO_DISPATCHER_SWEEP_S="3600"), site.worker("w1", QO_CONCURRENCY="2") as doomed:
        await site.deploy(pipeline(site_job("a", config={"s": 0.05})))
        await site.emit(*names)
        await site.noted("end", 6)
        async with site.worker("w2"):
            doomed.signal(signal.SIGKILL)
            await doomed.code()
            site.lapse("w1")
            await site.completed({"a": len(names)})
    site.audit(["a"], names)


@pytest.mark.long
async def test_workers_share_a_burst(embedded: Site) -> None:
    site, names = embedded, [f"p{number}" for number in range(120)]
    async with site.dispatcher(), site.worker("w1"), site.worker("w2"):
        await site.deploy(pipeline(site_job("a", config={"s": 0.05})))
        await site.emit(*names)
        await site.completed({"a": len(names)})
    ran_by = [row["worker_id"] for row in site.tasks("a")]
    assert min(ran_by.count("w1"), ran_by.count("w2")) >= len(names) // 8
    site.audit(["a"], names)
