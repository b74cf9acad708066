"""No handler begins when its lease is gone, however late that turns out: somebody else may have begun."""

from __future__ import annotations

import asyncio
import pickle
import time
from typing import Any

import pytest
from child_functions import double

from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.request import Request
from qo.worker.executors.child import Child
from qo.worker.executors.child_messages import BEGIN, Answer, ContextCall, Facts, Job
from qo.worker.executors.context_calls import answer_call
from qo.worker.executors.processes import ProcessExecutor
from qo.worker.executors.threads import ThreadExecutor
from qo.worker.layers.catch import catch
from qo.worker.layers.stack import Service
from qo.worker.loop import suspension
from qo.worker.loop.clock import lease_time, now
from qo.worker.loop.hold import Hold, Lease
from qo.worker.loop.outcome import Acked, Outcome, OutcomeError, Released, unstarted_outcome
from support.stores.queues import claimed, drain, virtual_queue
from support.worker.attempts import LEASE_S, Attempts

pytestmark = pytest.mark.fast


class Machine:
    """Sleeps when it is told to: leases run out meanwhile, and nothing else notices."""

    def __init__(self) -> None:
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(suspension, "slept_s", lambda: machine.slept_s)
    return machine


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_a_handler_whose_layer_waited_longer_than_its_lease_does_not_begin(machine: Machine, kind: str) -> None:
    ran: list[float] = []

    async def scene() -> None:
        queue = virtual_queue() if kind == "async" else Queue(MemoryStore())
        waits = iter([LEASE_S, 0.0])

        def wait(inner: Service) -> Service:
            async def run(request: Request) -> Outcome:
                machine.sleep(next(waits))
                return await inner(request)

            return run

        app = App()

        def work(input: Any) -> None:
            ran.append(machine.slept_s)

        async def work_in_the_loop(input: Any) -> None:
            work(input)

        app.task("work", layers=[wait])(work if kind == "thread" else work_in_the_loop)
        await queue.submit("work")
        stats = await drain(queue, app, lease_s=LEASE_S)
        assert (stats.claimed, stats.released, stats.completed) == (2, 1, 1)

    if kind == "async":
        virtual.run(scene())
    else:
        asyncio.run(scene())
    assert ran == [LEASE_S], "by the second attempt alone"


async def test_the_keeper_notices_on_waking_that_leases_ran_out_while_the_machine_slept(machine: Machine) -> None:
    hold = await _hold(Attempts())
    lease = Lease(hold, LEASE_S / 12)
    assert lease.is_valid()
    machine.sleep(LEASE_S)
    assert not lease.is_valid()


async def test_a_thread_looks_at_the_lease_once_more(machine: Machine) -> None:
    attempts, ran = Attempts(), list[Any]()
    request = await attempts.request(ran.append, 1, kind="thread")
    request.lease = Lease(await _hold(attempts), LEASE_S / 12)
    machine.sleep(LEASE_S)
    threads = ThreadExecutor(lambda: None)
    try:
        with pytest.raises(OutcomeError) as told:
            await threads.call(request)
    finally:
        threads.close()
    assert told.value.outcome == unstarted_outcome()
    assert ran == []


async def test_a_child_that_took_longer_to_load_than_its_lease_lasts_does_not_begin(machine: Machine) -> None:
    attempts = Attempts()
    request = await attempts.request(double, 21)
    request.lease = Lease(await _hold(attempts), LEASE_S / 12)

    class Slow(ProcessExecutor):
        async def _load(self, request: Request, job: Job) -> Any:
            loaded = await super()._load(request, job)
            machine.sleep(LEASE_S)
            return loaded

    executor = Slow(1, tasks_max=0, memory_max_mb=0, on_late_return=lambda: None)

    async def call(request: Request) -> Outcome:
        return Acked(await executor.call(request))

    try:
        assert await catch()(call)(request) == unstarted_outcome()
        request.lease = None
        assert await catch()(call)(request) == Acked(42), "the room is free again"
    finally:
        executor.close()


async def test_a_child_is_told_until_when_it_may_begin(machine: Machine) -> None:
    attempts = Attempts()
    request = await attempts.request(double, 21)
    request.lease = Lease(await _hold(attempts), LEASE_S / 12)
    facts = (await answer_call(request, ContextCall(1, 1, BEGIN, pickle.dumps(())))).facts
    assert facts.begin_by is not None
    assert 0 < facts.begin_by - suspension.boot_time() <= LEASE_S * 11 / 12


@pytest.mark.parametrize(("early_s", "begins"), [(60.0, True), (-0.001, False)])
def test_a_child_that_was_stopped_beyond_that_does_not_begin(early_s: float, begins: bool) -> None:
    class Channel:
        def call(self, job: int, method: str) -> Answer:
            return Answer(0, None, None, Facts(begin_by=suspension.boot_time() + early_s))

    job = Job(1, "double", pickle.dumps(double), pickle.dumps(21), None, None, "w")
    output, failure = Child(Channel())._run_job(job)  # pyright: ignore
    if begins:
        assert (pickle.loads(output), failure) == (42, None)
    else:
        assert isinstance(failure, Released)


def test_time_asleep_is_counted_once_and_jitter_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = 100.0

    def read(clock: int) -> float:
        return 5000.0 + (asleep if clock == suspension._CLOCK else 0.0)

    if suspension._CLOCK == time.CLOCK_MONOTONIC:
        pytest.skip("this system cannot tell")
    monkeypatch.setattr(suspension, "_known_s", 0.0)
    monkeypatch.setattr(time, "clock_gettime", read)
    assert suspension.slept_s() == 100.0
    asleep = 100.001
    assert suspension.slept_s() == 100.0
    asleep = 160.0
    assert suspension.slept_s() == 160.0


async def _hold(attempts: Attempts) -> Hold:
    task = await attempts.queue.submit("held")
    claim = await claimed(attempts.queue, task.id, lease_s=LEASE_S)
    request = await attempts.request(double, 1)
    return Hold(claim, request.handler, request.clock, now=now(), leased_until=lease_time() + LEASE_S)
