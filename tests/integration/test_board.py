"""The board on every store: a submit wakes idle workers, the lookout finds what was lost, and an idle queue lists
nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.board import NOTICES_MAX, Board, Rank, WatchTimes, is_watched
from qo.core.poll import Pace
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.queue import control
from qo.queue.board import AFRESH_S, POST_EVERY_S
from qo.queue.lookout import Lookout
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.faulty import Fault, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.config import WorkerConfig
from qo.worker.service import watch
from qo.worker.worker import Worker
from support.stores.queues import ended, until

QUICK = WatchTimes(6.0)


def app() -> App:
    built = App()

    @built.task("t")
    async def handle(input: Any) -> Any:
        return input

    @built.task("slow")
    async def handle_slowly(input: Any) -> Any:
        await asyncio.sleep(0.2)
        return input

    return built


def config(worker_id: str = "w", **changes: Any) -> WorkerConfig:
    return WorkerConfig(**{"worker_id": worker_id, "watch": QUICK, **changes})


class Fleet:
    """Workers, each with a meter of its own, on one store."""

    def __init__(self, store: ObjectStore, *, in_virtual_time: bool) -> None:
        self.store = store
        self.meters: dict[str, Metered] = {}
        self.workers: dict[str, Worker] = {}
        self._running: list[asyncio.Task[Any]] = []
        self._is_virtual = in_virtual_time

    def queue(self, name: str) -> Queue:
        self.meters[name] = Metered(self.store)
        seed = len(self.meters)
        ambient = Ambient.seeded(seed, virtual.monotonic) if self._is_virtual else Ambient.seeded(seed)
        return Queue(self.meters[name], ambient=ambient)

    def start(self, name: str, **changes: Any) -> Worker:
        worker = self.workers[name] = Worker(self.queue(name), app(), config(name, **changes))
        self._running.append(asyncio.create_task(worker.run()))
        return worker

    async def until_watched(self) -> str:
        async def lookout() -> str | None:
            return next((name for name, worker in self.workers.items() if worker.on_duty), None)

        return await until(lookout)

    async def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()
        await asyncio.gather(*self._running)

    def count(self, operation: Operation) -> int:
        return sum(meter.counts[operation] for meter in self.meters.values())


async def board_of(store: ObjectStore) -> Board:
    stored = await store.get(keys.BOARD)
    assert stored is not None
    return wire.decode(Board, stored.body, keys.BOARD)


# On every store


async def test_a_submit_wakes_an_idle_worker_through_the_board(any_store: ObjectStore) -> None:
    fleet = Fleet(any_store, in_virtual_time=False)
    fleet.start("w", pace=Pace(0.01, 0.1))
    await fleet.until_watched()
    producer = fleet.queue("producer")
    first = await producer.submit("t", 0)
    await ended(producer, first.id)

    async def is_calm() -> bool:
        before = fleet.workers["w"].stats.looks
        await asyncio.sleep(0.3)
        return before == fleet.workers["w"].stats.looks

    await until(is_calm)
    looks = fleet.workers["w"].stats.looks
    for n in range(3):
        task = await producer.submit("t", n)
        assert (await ended(producer, task.id)).output == n
    assert fleet.workers["w"].stats.looks == looks, "it did not list the index for any of them"
    await producer.flush()
    await fleet.stop()


async def test_a_lost_notice_is_found_by_the_lookout(any_store: ObjectStore) -> None:
    fleet = Fleet(any_store, in_virtual_time=False)
    fleet.start("w", pace=Pace(0.01, 0.1))
    await fleet.until_watched()
    producer = Queue(any_store)
    producer.board.post = lambda *_: None  # type: ignore[method-assign]
    task = await producer.submit("t", 1)
    assert (await ended(producer, task.id)).output == 1
    await fleet.stop()


async def test_a_delayed_task_is_announced_and_starts_when_it_is_due(any_store: ObjectStore) -> None:
    fleet = Fleet(any_store, in_virtual_time=False)
    fleet.start("w", pace=Pace(0.01, 0.1))
    await fleet.until_watched()
    async with asyncio.timeout(20):
        producer = Queue(any_store)
        task = await producer.submit("t", 1, Options(delay_s=1.5))
        await producer.flush()
        done = await ended(producer, task.id)
    assert done.completed_at is not None
    assert done.completed_at >= task.available_at
    await fleet.stop()


async def test_orders_reach_workers_through_the_board(any_store: ObjectStore) -> None:
    fleet = Fleet(any_store, in_virtual_time=False)
    worker = fleet.start("w", pace=Pace(0.01, 0.1))
    await fleet.until_watched()
    operator = Queue(any_store)
    await control.pause(operator)

    async def is_paused() -> bool:
        return worker.state == "paused"

    await until(is_paused, within_s=3.0)
    await control.resume(operator)

    async def is_running() -> bool:
        return worker.state == "running"

    await until(is_running, within_s=3.0 + config().control_s)
    await fleet.stop()


async def test_many_writers_share_the_board(any_store: ObjectStore) -> None:
    producers = [Queue(any_store) for _ in range(6)]
    tasks = await asyncio.gather(*(producer.submit("t", n) for n, producer in enumerate(producers)))
    await asyncio.gather(*(producer.flush() for producer in producers))
    posted = {notice.task for notice in (await board_of(any_store)).notices}
    assert posted
    assert posted <= {task.id for task in tasks}


# In virtual time


def story(tell: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(7200):
            await tell(Fleet(MemoryStore(clock=virtual.wall_clock), in_virtual_time=True))

    virtual.run(main())


@pytest.mark.fast
@pytest.mark.parametrize("workers", [1, 20])
def test_an_idle_queue_is_listed_by_its_lookout_alone(workers: int) -> None:
    async def tell(fleet: Fleet) -> None:
        for n in range(workers):
            fleet.start(f"w{n}", watch=WatchTimes())
        await asyncio.sleep(300)
        for meter in fleet.meters.values():
            meter.reset()
        await asyncio.sleep(600)
        assert sum(worker.on_duty for worker in fleet.workers.values()) == 1
        for name, worker in fleet.workers.items():
            counts = fleet.meters[name].counts
            if worker.on_duty:
                assert 60 <= counts[Operation.LIST] <= 90, "the index, the workers, and a page of tasks"
            else:
                assert counts[Operation.LIST] == 0
                assert counts[Operation.PUT] <= 11, "heartbeats"
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_a_task_starts_within_a_second_of_its_submit_however_many_workers_there_are() -> None:
    async def tell(fleet: Fleet) -> None:
        for n in range(40):
            fleet.start(f"w{n}", watch=WatchTimes())
        await asyncio.sleep(120)
        producer, waits = fleet.queue("producer"), list[float]()
        for n in range(100):
            await asyncio.sleep(7)
            task = await producer.submit("t", n)
            await asyncio.sleep(6)
            done = await producer.get(task.id)
            if done.completed_at is not None:
                waits.append((done.completed_at - done.created_at).total_seconds())
        assert len(waits) == 100
        waits.sort()
        assert waits[50] < 0.3
        assert waits[97] < 1.0
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_delayed_tasks_start_on_time_although_nobody_lists_but_the_lookout() -> None:
    async def tell(fleet: Fleet) -> None:
        for n in range(3):
            fleet.start(f"w{n}", watch=WatchTimes())
        producer = fleet.queue("producer")
        tasks = [await producer.submit("t", n, Options(delay_s=100.0 + 37 * n)) for n in range(10)]
        await asyncio.sleep(600)
        for task in tasks:
            done = await producer.get(task.id)
            assert done.completed_at is not None
            assert (done.completed_at - task.available_at).total_seconds() < 2.0
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_a_burst_is_listed_and_finished_by_everybody() -> None:
    async def tell(fleet: Fleet) -> None:
        for n in range(5):
            fleet.start(f"w{n}", watch=WatchTimes(), concurrency=4)
        await asyncio.sleep(60)
        producer = fleet.queue("producer")
        tasks = await producer.submit_many([NewTask("slow", n) for n in range(5 * NOTICES_MAX)])
        await producer.flush()
        await asyncio.sleep(10)
        assert all([(await producer.get(task.id)).status is Status.COMPLETED for task in tasks])
        assert all(worker.stats.claimed for worker in fleet.workers.values())
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_tasks_that_come_while_all_are_busy_are_taken_as_soon_as_one_is_free() -> None:
    async def tell(fleet: Fleet) -> None:
        slow = App()

        @slow.task("t")
        async def handle(input: Any) -> None:
            await asyncio.sleep(30)

        worker = Worker(fleet.queue("w"), slow, config(concurrency=1, watch=WatchTimes(), inbox_capacity=0))
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(60)
        producer = fleet.queue("producer")
        for n in range(4):
            await producer.submit("t", n)
            await asyncio.sleep(2)
        await asyncio.sleep(4 * 30 + 10)
        assert worker.stats.acked == 4
        worker.stop()
        await running

    story(tell)


@pytest.mark.fast
def test_a_first_notice_is_posted_at_once_and_those_that_follow_together() -> None:
    async def tell(fleet: Fleet) -> None:
        producer = fleet.queue("producer")
        for n in range(10):
            await producer.submit("t", n)
            await asyncio.sleep(0.001)
        await asyncio.sleep(POST_EVERY_S / 2)
        assert len((await board_of(fleet.store)).notices) == 1
        await asyncio.sleep(POST_EVERY_S)
        assert len((await board_of(fleet.store)).notices) == 10
        assert fleet.meters["producer"].counts[Operation.PUT] == 20 + 2

    story(tell)


@pytest.mark.fast
def test_a_submit_never_fails_because_of_the_board() -> None:
    async def tell(fleet: Fleet) -> None:
        faulty = Faulty(fleet.store)
        faulty.inject(Fault.OUTAGE, under=keys.BOARD, times=1000)
        producer = Queue(faulty, ambient=Ambient.seeded(1, virtual.monotonic))
        task = await producer.submit("t", 1)
        await producer.flush()
        assert await fleet.store.get(keys.BOARD) is None
        fleet.start("w")
        await asyncio.sleep(5)
        assert (await producer.get(task.id)).status is Status.COMPLETED
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_a_board_that_cannot_be_read_is_replaced_and_meanwhile_workers_list() -> None:
    async def tell(fleet: Fleet) -> None:
        await fleet.store.put(keys.BOARD, b"{")
        fleet.start("w")
        await asyncio.sleep(1)
        producer = fleet.queue("producer")
        task = await producer.submit("t", 1)
        await asyncio.sleep(6)
        assert (await producer.get(task.id)).status is Status.COMPLETED
        await asyncio.sleep(AFRESH_S + QUICK.ttl_s)
        assert is_watched(await board_of(fleet.store), await fleet.store.now())
        await fleet.stop()

    story(tell)


# The lookout


def make_lookout(fleet: Fleet, name: str, rank: int) -> Lookout:
    return Lookout(fleet.queue(name), name=name, rank=rank, silent_max_s=180)


@pytest.mark.fast
def test_one_of_many_is_the_lookout_and_who_leaves_hands_over() -> None:
    async def tell(fleet: Fleet) -> None:
        names = ["a", "b", "c"]
        for name in names:
            fleet.start(name)
        for _ in range(2):
            await asyncio.sleep(QUICK.ttl_s)
            (lookout,) = [name for name in names if fleet.workers[name].on_duty]
            fleet.workers[lookout].stop()
            names.remove(lookout)
        await asyncio.sleep(QUICK.ttl_s)
        assert fleet.workers[names[0]].on_duty
        await fleet.stop()

    story(tell)


@pytest.mark.fast
def test_who_can_do_more_takes_the_duty_over() -> None:
    async def tell(fleet: Fleet) -> None:
        alone, worker, monitor = (
            make_lookout(fleet, name, rank)
            for name, rank in (("alone", Rank.WORKER_ALONE), ("worker", Rank.WORKER), ("monitor", Rank.MONITOR))
        )
        for newcomer in (alone, worker, monitor):
            await newcomer.step()
            assert newcomer.on_duty
        await worker.step()
        await asyncio.sleep(25)
        for each in (alone, worker, monitor):
            await each.step()
        assert [each.on_duty for each in (alone, worker, monitor)] == [False, False, True]
        await monitor.leave()
        await asyncio.sleep(20)
        await worker.step()
        assert worker.on_duty

    story(tell)


@pytest.mark.fast
def test_the_lookout_counts_the_workers_that_live() -> None:
    async def tell(fleet: Fleet) -> None:
        for n in range(4):
            fleet.start(f"w{n}", watch=WatchTimes())
        await asyncio.sleep(5)
        assert (await board_of(fleet.store)).workers == 4
        await fleet.store.delete(keys.worker("w3"))  # As if it had died long ago.
        fleet.workers["w3"]._heartbeat.report = _do_nothing  # type: ignore[method-assign]
        await asyncio.sleep(300)
        assert (await board_of(fleet.store)).workers == 3
        await fleet.stop()

    story(tell)


async def _do_nothing() -> None:
    return


@pytest.mark.fast
def test_orders_that_the_board_missed_are_shown_by_the_lookout() -> None:
    async def tell(fleet: Fleet) -> None:
        worker = fleet.start("w", watch=WatchTimes())
        await asyncio.sleep(30)
        operator = Queue(fleet.store, ambient=Ambient.seeded(9, virtual.monotonic))
        operator.board.edit = _refuse  # type: ignore[method-assign]
        await control.pause(operator)
        await asyncio.sleep(40)
        assert worker.state == "paused"
        await fleet.stop()

    story(tell)


async def _refuse(edit: Any) -> bool:
    return False


@pytest.mark.fast
def test_a_ready_hint_that_its_task_has_outgrown_is_repaired_by_the_lookout() -> None:
    async def tell(fleet: Fleet) -> None:
        queue = fleet.queue("q")
        task = await queue.submit("t")
        (hint,) = [entry.key for entry in (await fleet.store.list(keys.READY)).entries]
        assert await queue.claim(task.id, worker_id="dead", lease_s=300)
        await queue.hints.flush()
        await fleet.store.put(hint, task.token.encode())
        lookout = make_lookout(fleet, "lookout", Rank.MONITOR)
        for _ in range(4):
            await lookout.step()
            await asyncio.sleep(10)
        assert (await fleet.store.list(keys.READY)).entries == []
        assert len((await fleet.store.list(keys.LEASES)).entries) == 1

    story(tell)


@pytest.mark.fast
def test_a_monitor_process_takes_back_what_a_dead_worker_held() -> None:
    async def tell(fleet: Fleet) -> None:
        queue = fleet.queue("q")
        task = await queue.submit("t")
        assert await queue.claim(task.id, worker_id="dead", lease_s=30)
        stop = asyncio.Event()
        config = MonitorConfig()
        watching = asyncio.create_task(watch(fleet.queue("m"), config, stop, name="m", heartbeat_s=60))
        await asyncio.sleep(100)
        assert (await queue.get(task.id)).status is Status.PENDING
        stop.set()
        await watching
        assert (await board_of(fleet.store)).watch is None

    story(tell)


@pytest.mark.fast
def test_a_monitor_that_is_not_on_duty_stands_in_if_nobody_sweeps() -> None:
    async def tell(fleet: Fleet) -> None:
        queue = fleet.queue("q")
        task = await queue.submit("t")
        assert await queue.claim(task.id, worker_id="dead", lease_s=30)
        stop = asyncio.Event()
        idle = asyncio.create_task(Monitor(fleet.queue("m")).run(stop, on_duty=lambda: False))
        await asyncio.sleep(200)
        assert (await queue.get(task.id)).status is Status.RUNNING
        await asyncio.sleep(1200)
        assert (await queue.get(task.id)).status is Status.PENDING
        stop.set()
        await idle

    story(tell)
