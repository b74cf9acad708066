"""A worker's mailbox: leases, shutdown, unknown types, and the count of outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import BaseModel

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.discovery import UnknownTypes
from qo.core.task import Status, Task
from qo.errors import QoError, Unavailable
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import PutResult
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.signals import Reject, Reschedule
from qo.worker.loop.state import State
from qo.worker.worker import Worker
from support.stores.queues import AT_ONCE, app_of, config, ended, until, virtual_queue, working
from support.worker.checked_worker import Books, books, in_virtual_time, moody_queue

__all__ = ["books"]

pytestmark = pytest.mark.fast


P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


NEVER_S = 3600.0


async def statuses(queue: Queue, tasks: Iterable[Task]) -> list[Status]:
    return [(await queue.get(task.id)).status for task in tasks]


async def renewals(queue: Queue, task_id: str) -> list[datetime]:
    """When the lease of a task was prolonged."""
    found = pairwise(await queue.history(task_id))
    return [after.updated_at for before, after in found if before.lease_id == after.lease_id is not None]


async def has_ended(queue: Queue, task_id: str) -> Task | None:
    task = await queue.get(task_id)
    return task if task.ended else None


async def true(value: object) -> bool:
    return bool(value)


@in_virtual_time
async def test_two_workers_on_one_store_never_take_live_work_from_each_other() -> None:
    queue, over = virtual_queue(), asyncio.Event()
    ran: list[str] = []

    async def slow(input: Any, ctx: Context) -> None:
        ran.append(ctx.task_id)
        await asyncio.sleep(60)

    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=600)) for n in range(20)])
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    others = [Queue(queue.store, ambient=Ambient.seeded(n, virtual.monotonic)) for n in range(2)]
    async with (
        working(others[0], app_of(slow), worker_id="w0", concurrency=4, lease_s=3) as first,
        working(others[1], app_of(slow), worker_id="w1", concurrency=4, lease_s=3) as second,
    ):
        for task in tasks:
            done = await until(lambda task=task: has_ended(queue, task.id), within_s=1000, every_s=1)
            assert (done.status, done.attempt, done.retry_count) == (C, 1, 0)
    over.set()
    await monitor
    assert sorted(ran) == sorted(task.id for task in tasks)
    assert first.stats.acked + second.stats.acked == 20
    assert first.stats.acked > 0 < second.stats.acked


@pytest.mark.parametrize("obeys", [True, False])
@in_virtual_time
async def test_a_lease_lost_in_mid_run_stops_the_handler_and_nothing_is_reported(obeys: bool) -> None:
    queue = virtual_queue()
    told: list[str] = []

    async def slow(input: Any, ctx: Context) -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            told.append(str(ctx.cancel.why))
            if obeys:
                raise
        return "too late"

    task = await queue.submit("slow", options=Options(timeout_s=NEVER_S))
    async with working(queue, app_of(slow), lease_s=3) as worker:
        await until(lambda: true(worker.stats.started == 1))
        # As after a lapse: somebody else owns the task now.
        robbed = replace(await queue.get(task.id), lease_id="another", attempt=2)
        await queue.store.put(queue.tasks.key(task.id), wire.encode(robbed))
        asked = virtual.monotonic()
        await until(lambda: true(worker.stats.lost == 1))
        assert virtual.monotonic() - asked <= 3
        await asyncio.sleep(30)
    assert told == ["the lease was lost"]
    assert (worker.stats.acked, worker.stats.failed, worker.stats.released) == (0, 0, 0)
    assert await queue.get(task.id) == robbed, "the other's task is as the other left it"


class Delaying(MemoryStore):
    """Answers to the first claim when it is too late."""

    delay_s = 100.0

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        written = await super().put(key, body, if_match=if_match, if_absent=if_absent)
        if key.startswith(keys.TASKS) and wire.decode_task(body, key).status is R:
            delay_s, self.delay_s = self.delay_s, 0.0
            await asyncio.sleep(delay_s)
        return written


@in_virtual_time
async def test_a_claim_that_is_answered_after_its_lease_has_run_out_is_not_begun() -> None:
    """As after a long sleep of the process or the line: somebody else runs the task by then."""
    queue, over = (
        Queue(Delaying(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic)),
        asyncio.Event(),
    )
    begun: list[tuple[str, int]] = []

    async def slow(input: Any, ctx: Context) -> str:
        begun.append((ctx.worker_id, ctx.attempt))
        await asyncio.sleep(200)
        return ctx.worker_id

    task = await queue.submit("slow", options=Options(timeout_s=NEVER_S, retry_policy=AT_ONCE))
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    async with working(queue, app_of(slow), worker_id="late", lease_s=30) as late:
        await asyncio.sleep(1)
        async with working(Queue(queue.store, ambient=queue.ambient), app_of(slow), worker_id="next", lease_s=30):
            done = await until(lambda: has_ended(queue, task.id), within_s=1000, every_s=1)
    over.set()
    await monitor
    assert begun == [("next", 2)]
    assert (done.output, done.attempt) == ("next", 2)
    assert (late.stats.claimed, late.stats.lost) == (1, 1)


class SlowToClaim(MemoryStore):
    """Answers every write of a task only after a while."""

    async def put(self, key: str, body: bytes, **conditions: Any) -> PutResult:
        written = await super().put(key, body, **conditions)
        if key.startswith(keys.TASKS) and wire.decode_task(body, key).attempt:
            await asyncio.sleep(60)
        return written


@in_virtual_time
async def test_a_worker_that_has_stopped_comes_to_hold_nothing_by_a_claim_that_is_answered_late() -> None:
    begun: list[int] = []

    async def work(input: int) -> None:
        begun.append(input)

    queue = Queue(SlowToClaim(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
    await queue.submit("work", 1)
    async with working(queue, app_of(work), shutdown_grace_s=1.0, cancel_grace_s=1.0) as worker:
        await until(lambda: true(worker._mailbox.claiming))
        worker.stop()
        await worker.reached(State.STOPPED)
        assert (worker._mailbox.claiming, worker.stats.held) == (0, 0)
        await asyncio.sleep(120)
        assert (worker.stats.claimed, begun) == (0, [])


def seconds(instants: Iterable[datetime], since: float, until: float) -> list[float]:
    """Those within a part of the test, by its own clock."""
    return [s for at in instants if since <= (s := (at - virtual.STARTED_AT).total_seconds()) <= until]


@pytest.mark.parametrize("while_", ["paused", "draining"])
@in_virtual_time
async def test_leases_are_renewed_while_paused_and_while_draining(while_: str) -> None:
    queue, over = virtual_queue(), asyncio.Event()

    async def slow(input: Any) -> None:
        await asyncio.sleep(60)

    tasks = await queue.submit_many([NewTask("slow", n, Options(timeout_s=600)) for n in range(3)])
    monitor = asyncio.create_task(Monitor(queue, MonitorConfig(check_interval_s=1)).run(over))
    async with working(queue, app_of(slow), lease_s=3, shutdown_grace_s=100) as worker:
        await until(lambda: true(worker.stats.started == 3))
        if while_ == "paused":
            worker.pause()
            await asyncio.sleep(70)
    over.set()
    await monitor
    assert (worker.stats.acked, worker.stats.lost) == (3, 0)
    for task in tasks:
        at = seconds(await renewals(queue, task.id), 0, 60)
        assert len(at) > 50
        assert all(after - before < 2 for before, after in pairwise(at))


@in_virtual_time
async def test_leases_are_renewed_while_a_task_waits_in_an_inbox() -> None:
    queue = virtual_queue()
    begun: list[str] = []

    async def work(input: float, ctx: Context) -> None:
        begun.append(ctx.task_id)
        await asyncio.sleep(input)

    async with working(queue, app_of(work), concurrency=1, inbox_capacity=1, lease_s=0.9) as worker:
        for n in range(5):  # Quick ones, so that the worker claims ahead.
            await ended(queue, (await queue.submit("work", 0.01 * n)).id)
        slow = await queue.submit_many([NewTask("work", 1.7) for _ in range(2)])
        await until(lambda: true(worker.snapshot().waiting == 1))
        (waits,) = (task for task in slow if task.id != begun[-1])
        since = virtual.monotonic()
        await until(lambda: true(begun[-1] == waits.id))
        at = seconds(await renewals(queue, waits.id), since, virtual.monotonic())
        assert virtual.monotonic() - since > 1.5
        assert len(at) >= 4, "about every 0.3 s"
        assert (await ended(queue, waits.id)).attempt == 1


@in_virtual_time
async def test_leases_are_renewed_while_a_report_is_under_way() -> None:
    store, queue = moody_queue()
    finished = 0.0

    async def work(input: Any) -> str:
        nonlocal finished
        await asyncio.sleep(1)
        finished = virtual.monotonic()
        return "done"

    def mood(verb: str, key: str, body: bytes) -> None:
        if verb != "put" or not key.startswith(keys.TASKS) or wire.decode_task(body, key).status is not C:
            return
        if virtual.monotonic() < finished + 5:
            raise Unavailable("503")

    task = await queue.submit("work")
    store.before = mood
    async with working(queue, app_of(work), lease_s=6) as worker:
        done = await ended(queue, task.id)
    assert (done.output, done.attempt, worker.stats.acked) == ("done", 1, 1)
    assert len(seconds(await renewals(queue, task.id), finished, finished + 5)) >= 2


@in_virtual_time
async def test_any_number_of_shutdowns_costs_a_task_no_attempt() -> None:
    queue, begun = virtual_queue(), 0

    async def slow(input: Any, ctx: Context) -> str:
        nonlocal begun
        begun += 1
        await asyncio.sleep(0 if begun > 10 else NEVER_S)
        return "done"

    task = await queue.submit("slow", options=Options(max_retries=0, max_deliveries=1, max_reschedules=0))
    for n in range(10):
        async with working(queue, app_of(slow), shutdown_grace_s=0.5) as worker:
            await until(lambda n=n: true(begun == n + 1))
        assert worker.stats.released == 1
        given_back = await queue.get(task.id)
        assert (given_back.status, given_back.retry_count, given_back.last_error) == (P, 0, None)
    async with working(queue, app_of(slow)):
        assert (await ended(queue, task.id)).output == "done"


@in_virtual_time
async def test_a_task_of_an_unknown_type_fails_where_that_was_asked_for() -> None:
    queue = virtual_queue()
    task = await queue.submit("nobody knows", options=Options(max_retries=10))
    async with working(queue, App(), unknown_types=UnknownTypes.FAIL) as worker:
        failed = await ended(queue, task.id)
    assert (failed.status, failed.attempt) == (F, 1)
    assert "no handler" in (failed.last_error or "")
    assert "'nobody knows'" in (failed.last_error or "")
    assert worker.stats.dead == 1


@in_virtual_time
async def test_a_task_of_an_unknown_type_waits_where_another_worker_may_know_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = virtual_queue()

    async def known(input: Any) -> None: ...

    task = await queue.submit("nobody knows")
    async with working(queue, app_of(known)) as worker:
        await asyncio.sleep(60)
        assert worker.stats.claimed == 0
    assert "nobody knows" in caplog.text, "visible to readers of the log"
    assert await queue.list(status=P, task_type="nobody knows") == [task], "and to who looks at the queue"


class Order(BaseModel):
    amount: int


class Point(msgspec.Struct):
    x: int


@in_virtual_time
async def test_an_input_that_does_not_fit_its_handler_fails_at_once() -> None:
    queue, app, ran = virtual_queue(), App(), 0

    @app.task("order")
    async def order(input: Order) -> None:
        nonlocal ran
        ran += 1

    @app.task("point")
    async def point(input: Point) -> None:
        nonlocal ran
        ran += 1

    misfits = [await queue.submit("order", {"amount": "much"}), await queue.submit("point", [1, 2])]
    async with working(queue, app):
        for misfit in misfits:
            failed = await ended(queue, misfit.id)
            assert (failed.status, failed.attempt) == (F, 1)
            assert "does not fit" in (failed.last_error or "")
    assert ran == 0


@pytest.mark.parametrize("how", ["garbage", "gone"])
@in_virtual_time
async def test_a_payload_that_cannot_be_read_ends_its_task_after_its_retries(how: str) -> None:
    plain = virtual_queue()
    queue = Queue(plain.store, payload_threshold_bytes=10, ambient=plain.ambient)

    async def work(input: Any) -> None: ...

    options = Options(max_retries=2, retry_policy=AT_ONCE)
    task, good = await queue.submit("work", "x" * 100, options), await queue.submit("work", "y" * 100)
    assert task.input_ref is not None
    if how == "garbage":
        await queue.store.put(task.input_ref, b"\xff{ not json")
    else:
        await queue.store.delete(task.input_ref)
    async with working(queue, app_of(work), concurrency=1):
        failed = await ended(queue, task.id)
        assert (await ended(queue, good.id)).status is C
    assert (failed.status, failed.attempt) == (F, 3)
    assert task.input_ref in (failed.last_error or "")


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.long] if n >= 8 else []) for n in range(20)])
@in_virtual_time
async def test_every_claim_has_one_outcome_and_every_moment_adds_up(seed: int, books: Books) -> None:
    ambient = Ambient.seeded(seed, virtual.monotonic)
    rng, inner = ambient.rng, MemoryStore(clock=virtual.wall_clock)
    plan = FaultPlan(refused=0.05, lost_reply=0.05, conflict=0.05, own_412=0.05, latency_s=(0.001, 0.2))
    queue = Queue(Faulty(inner, plan, ambient), ambient=ambient)
    plain = Queue(inner, ambient=ambient)

    async def work(input: int) -> None:
        await asyncio.sleep(rng.choice([0, 0.1, 1, 20]))
        match input % 6:
            case 0:
                raise ValueError
            case 1:
                raise Reject("no use")
            case 2 if rng.random() < 0.7:
                raise Reschedule(1)
            case _:
                return

    options = Options(timeout_s=10, max_retries=1, retry_policy=AT_ONCE)
    tasks = await plain.submit_many([NewTask("work", n, options) for n in range(60)])
    while {P, R} & {*await statuses(plain, tasks)}:
        worker = Worker(
            queue, app_of(work), config(concurrency=4, inbox_capacity=2, lease_s=3, shutdown_grace_s=1)
        )
        running = asyncio.create_task(worker.run())
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(rng.uniform(0, 10))
            rng.choice([worker.pause, worker.resume, partial(worker.cancel, rng.choice(tasks).id)])()
        worker.resume()
        await asyncio.sleep(rng.uniform(0, 20))
        rng.choice([worker.stop, worker.hurry])()
        with suppress(QoError):  # It could not even sign on.
            await running
        await Monitor(plain).check()
        assert worker.snapshot().counts["held"] == 0
    assert books.steps >= 2 * len(tasks)
