"""Wishes in the store: racing operators, lost replies, quick cancellation, and the roster."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.board import Board, sign_on
from qo.core.control import ORDERS_KEPT, WHOLE, Desired, Order, Pause, Target, WorkerOrder, orders_for, targets
from qo.core.pricing import Operation
from qo.core.task import Status
from qo.errors import Contended, CorruptRecord, NotFound, Unavailable, UsageError
from qo.queue import control, roster
from qo.queue.board import NoticeBoard
from qo.queue.control import ORDER_TEXT_LEN_MAX
from qo.queue.monitor import FORGET_AFTER, Monitor
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import PutResult
from qo.testing import virtual
from qo.worker.loop.cancel import Why
from qo.worker.loop.control import Control, Follower
from qo.worker.loop.hold import Hold, Holds
from support.stores.queues import StoreClock, another, claimed, virtual_queue


async def signed_on(queue: Queue, *worker_ids: str) -> None:
    now = await queue.store.now()
    for worker_id in worker_ids:
        await roster.report(queue.store, WorkerInfo(worker_id=worker_id, started_at=now, last_heartbeat=now))


async def test_what_is_asked_for_is_there_until_it_is_lifted(queue: Queue) -> None:
    assert await control.read(queue.store) == Desired()
    await signed_on(queue, "w-1")
    await control.pause(queue, by="ada", reason="deploy")
    await control.pause(queue, Target(task_type="mail"))
    await control.drain(queue, "w-1")
    desired = await control.read(queue.store)
    assert desired.queue is not None
    assert (desired.queue.by, desired.queue.reason) == ("ada", "deploy")
    assert targets(desired) == [WHOLE, Target(task_type="mail"), Target(worker="w-1")]
    lifted = await control.resume(queue)
    assert lifted.before == desired
    assert targets(lifted.after) == [Target(task_type="mail"), Target(worker="w-1")]
    assert targets((await control.resume_all(queue)).after) == []
    assert targets(await control.read(queue.store)) == []


async def test_racing_operators_lose_no_wish(queue: Queue) -> None:
    await signed_on(queue, *(f"w-{n}" for n in range(4)))
    await asyncio.gather(
        *(control.pause(another(queue), Target(task_type=f"t-{n}")) for n in range(4)),
        *(control.pause(another(queue), Target(worker=f"w-{n}")) for n in range(3)),
        *(control.pause(another(queue)) for _ in range(2)),
        control.drain(another(queue), "w-3"),
    )
    desired = await control.read(queue.store)
    assert len(targets(desired)) == 9
    assert orders_for(desired, "w-3").drain
    await asyncio.gather(*(control.resume(another(queue), target) for target in targets(desired)))
    assert targets(await control.read(queue.store)) == []


async def test_many_cancellations_at_once_all_succeed_and_share_their_writes(queue: Queue) -> None:
    ids = [(await queue.submit("t")).id for _ in range(20)]
    for task_id in ids:
        await claimed(queue, task_id)
    others = [another(queue) for _ in range(3)]
    cancelled = await asyncio.gather(*(others[n % 3].cancel(task_id) for n, task_id in enumerate(ids)))
    assert all(task.status is Status.RUNNING and task.cancel_requested for task in cancelled)
    assert {*(await control.read(queue.store)).cancels} == {*ids}


@pytest.mark.fast
async def test_an_order_is_announced_although_others_write_on_the_board(clocked_queue: Queue) -> None:
    await clocked_queue.board.edit(lambda board: sign_on(board, "w-1"))
    faulty = Faulty(clocked_queue.store)
    faulty.inject(Fault.CONFLICT, on="put", under=keys.BOARD, times=3)  # More than one edit tries.
    change = await control.pause(another(clocked_queue, store=faulty))
    board = await NoticeBoard(clocked_queue.store, clocked_queue.ambient).read()
    assert board is not None
    assert board.orders == change.after.token


@pytest.mark.fast
def test_cancellations_that_meet_take_few_requests() -> None:
    async def main() -> None:
        inner, ambient = MemoryStore(clock=virtual.wall_clock), Ambient.seeded(1, virtual.monotonic)
        meter = Metered(Faulty(inner, FaultPlan(latency_s=(0.01, 0.03)), ambient))
        queue = Queue(meter, ambient=ambient)
        ids = [(await queue.submit("t")).id for _ in range(100)]
        for task_id in ids:
            await claimed(queue, task_id)
        meter.reset()
        await asyncio.gather(*(queue.cancel(task_id) for task_id in ids))
        assert {*(await control.read(inner)).cancels} == {*ids}
        assert meter.counts[Operation.PUT] <= 100 + 5, "one for each task, and a few for all of them"

    virtual.run(main())


@pytest.mark.fast
async def test_to_cancel_a_pending_task_tells_no_worker() -> None:
    queue = Queue(MemoryStore())
    await queue.cancel((await queue.submit("t")).id)
    assert await queue.store.get(keys.DESIRED) is None


class Unwritable(MemoryStore):
    """A store that takes no wishes."""

    error: Exception = Unavailable("no answer")

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if key == keys.DESIRED:
            raise self.error
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


@pytest.mark.fast
@pytest.mark.parametrize("error", [Unavailable("no answer"), Contended("always others")])
def test_a_cancellation_that_cannot_be_announced_is_a_cancellation(error: Exception) -> None:
    async def main() -> None:
        store = Unwritable(clock=virtual.wall_clock)
        store.error = error
        queue = Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
        task = await queue.submit("t")
        await claimed(queue, task.id)
        assert (await queue.cancel(task.id)).cancel_requested
        assert (await queue.get(task.id)).cancel_requested

    virtual.run(main())


@pytest.mark.fast
async def test_a_cancellation_beside_wishes_that_cannot_be_read_is_a_cancellation() -> None:
    queue = Queue(MemoryStore())
    await queue.store.put(keys.DESIRED, b"{broken")
    task = await queue.submit("t")
    await claimed(queue, task.id)
    assert (await queue.cancel(task.id)).cancel_requested


@pytest.mark.fast
@pytest.mark.parametrize("seed", range(10))
def test_no_wish_is_lost_or_doubled_when_replies_are(seed: int) -> None:
    async def main() -> None:
        quiet = virtual_queue()
        ambient = Ambient.seeded(seed, virtual.monotonic)
        plan = FaultPlan(lost_reply=0.15, own_412=0.15, conflict=0.15, latency_s=(0.001, 0.05))
        store = Faulty(quiet.store, plan, ambient)
        await signed_on(quiet, "w-1")
        clumsy = [Queue(store, ambient=Ambient.seeded(100 * seed + n, virtual.monotonic)) for n in range(6)]

        async def insist(queue: Queue, target: Target) -> None:
            for _ in range(50):
                try:
                    await control.pause(queue, target)
                    return
                except Unavailable:
                    continue  # A read went unanswered.

        kinds = [WHOLE, Target(worker="w-1"), *(Target(task_type=f"t-{n}") for n in range(4))]
        await asyncio.gather(*(insist(queue, target) for queue, target in zip(clumsy, kinds, strict=True)))
        assert {*targets(await control.read(quiet.store))} == {*kinds}
        assert store.injected[Fault.LOST_REPLY] + store.injected[Fault.OWN_412] > 0

    virtual.run(main())


@pytest.mark.fast
async def test_who_was_refused_by_its_own_write_knows_it() -> None:
    store = Faulty(MemoryStore(), FaultPlan(own_412=1), Ambient.seeded(1))
    meter = Metered(store)
    queue = Queue(meter, ambient=Ambient.seeded(2))
    queue.board = NoticeBoard(MemoryStore(), queue.ambient)
    assert (await control.pause(queue, by="ada")).before.queue is None
    assert meter.counts[Operation.PUT] == 1


@pytest.mark.fast
def test_who_loses_every_race_is_told_so() -> None:
    class Busy(MemoryStore):
        async def put(
            self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
        ) -> PutResult:
            at = await self.now()
            busy = Desired(queue=Pause(at=at), token=str(self._version_count))
            await super().put(key, wire.encode(busy))  # Somebody else is always quicker.
            return await super().put(key, body, if_match=if_match, if_absent=if_absent)

    async def main() -> None:
        queue = Queue(Busy(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))
        with pytest.raises(Contended, match="try again"):
            await control.pause(queue, Target(task_type="t"))

    virtual.run(main())


@pytest.mark.fast
async def test_what_is_so_already_is_not_written_again() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    await control.resume(queue)
    await control.resume_all(queue)
    assert await queue.store.get(keys.DESIRED) is None
    await control.pause(queue, by="ada")
    meter.reset()
    change = await control.pause(queue, by="bob")
    assert change.before is change.after
    assert meter.counts == {Operation.GET: 1}


@pytest.mark.fast
async def test_a_look_at_the_wishes_is_one_get() -> None:
    meter = Metered(MemoryStore())
    await control.read(meter)
    assert meter.counts == {Operation.GET: 1}


@pytest.mark.fast
async def test_an_unknown_worker_is_not_found_and_the_nearest_is_named_first() -> None:
    queue = Queue(MemoryStore())
    with pytest.raises(NotFound, match="there is none at all"):
        await control.drain(queue, "mailer-1")
    await signed_on(queue, "report-7", "mailer-2", *(f"other-{n}" for n in range(20)))
    for order in (control.drain(queue, "mailer-1"), control.pause(queue, Target(worker="mailer-1"))):
        with pytest.raises(
            NotFound, match=r"no worker mailer-1 in this queue; there are mailer-2, .* and 12 more"
        ):
            await order
    assert await queue.store.get(keys.DESIRED) is None


@pytest.mark.fast
@pytest.mark.parametrize("target", [Target(worker="../queue"), Target(task_type=""), Target(task_type="a\nb")])
async def test_what_cannot_be_a_worker_or_a_type_is_refused(target: Target) -> None:
    with pytest.raises(UsageError):
        await control.pause(Queue(MemoryStore()), target)


@pytest.mark.fast
async def test_a_reason_is_short_because_every_worker_reads_it_all_the_time() -> None:
    queue = Queue(MemoryStore())
    with pytest.raises(UsageError, match="reason must be 500 characters at most, not 501"):
        await control.pause(queue, reason="x" * (ORDER_TEXT_LEN_MAX + 1))
    with pytest.raises(UsageError, match="by must be text"):
        await control.pause(queue, by="\ud800")


@pytest.mark.fast
async def test_wishes_that_cannot_be_read_change_only_by_lifting_them_all() -> None:
    queue = Queue(MemoryStore())
    await queue.store.put(keys.DESIRED, b'{"queue": 7}')
    for refused in (control.read(queue.store), control.pause(queue), control.resume(queue)):
        with pytest.raises(CorruptRecord, match="qo resume --all"):
            await refused
    await control.resume_all(queue)
    assert targets(await control.read(queue.store)) == []


@pytest.mark.fast
async def test_no_worker_is_younger_than_an_order_to_it(clocked_queue: Queue, clock: StoreClock) -> None:
    ahead = clock.now() + timedelta(seconds=0.4)  # Its guess at the store's time is a little better than ours.
    info = WorkerInfo(worker_id="w", started_at=ahead, last_heartbeat=ahead)
    await roster.report(clocked_queue.store, info)
    change = await control.drain(clocked_queue, "w")
    assert orders_for(change.after, "w", info.started_at).drain


@pytest.mark.fast
async def test_a_worker_that_is_there_stays_paused_for_as_long_as_it_takes(
    clocked_queue: Queue, clock: StoreClock
) -> None:
    queue = clocked_queue
    await signed_on(queue, "here", "gone")
    for worker_id in ("here", "gone"):
        await control.pause(queue, Target(worker=worker_id))
    await roster.leave(queue.store, "gone")
    clock.advance(ORDERS_KEPT.total_seconds() + 1)
    desired = (await control.pause(queue, Target(task_type="t"))).after
    assert {name: order.kind for name, order in desired.workers.items()} == {"here": Order.PAUSED}
    assert isinstance(desired.workers["here"], WorkerOrder)


async def test_silent_workers_are_forgotten_and_those_that_report_again_are_not(queue: Queue) -> None:
    await signed_on(queue, "silent", "returning")
    before = await queue.store.now() + timedelta(minutes=1)
    listing = queue.store.list

    async def list_then_report(prefix: str, **options: object) -> object:
        page = await listing(prefix, **options)  # type: ignore[arg-type]
        info = await roster.find(queue.store, "returning")
        assert info is not None
        await roster.report(
            queue.store, WorkerInfo(worker_id="returning", started_at=before, last_heartbeat=before)
        )
        return page

    queue.store.list = list_then_report  # type: ignore[method-assign, assignment]
    try:
        assert await roster.forget_stale(queue.store, before) == ["silent"]
    finally:
        queue.store.list = listing  # type: ignore[method-assign]
    assert [info.worker_id for info in await roster.workers(queue.store)] == ["returning"]
    assert await roster.forget_stale(queue.store, before - timedelta(hours=1)) == []


@pytest.mark.fast
async def test_the_monitor_forgets_workers_that_were_silent_for_a_day(
    clocked_queue: Queue, clock: StoreClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue = clocked_queue
    await signed_on(queue, "long-gone")
    clock.advance(FORGET_AFTER.total_seconds())
    await signed_on(queue, "gone")
    clock.advance(3600)
    with caplog.at_level(logging.INFO):
        report = await Monitor(queue).check()
    assert report.stale_workers == ["gone"]
    assert "long-gone was silent for so long" in caplog.text
    assert [info.worker_id for info in await roster.workers(queue.store)] == ["gone"]


@pytest.mark.fast
async def test_a_check_with_nobody_to_forget_lists_the_workers_once() -> None:
    meter = Metered(MemoryStore())
    queue = Queue(meter)
    await signed_on(queue, "w")
    meter.reset()
    monitor = Monitor(queue)
    await monitor.check()
    assert meter.counts == {Operation.LIST: 4}, "the leases, the waiting tasks, the inboxes and the workers"
    meter.reset()
    await monitor.check()
    assert meter.counts == {Operation.LIST: 2}, "waiting tasks and inboxes are listed now and then only"


class NoAttempts:
    def stop(self, hold: Hold, why: Why) -> None:
        raise AssertionError(f"{hold.task.id} was stopped: {why}")


@pytest.mark.fast
def test_news_of_orders_that_cannot_be_read_are_no_reason_to_ask_without_rest() -> None:
    async def follow() -> int:
        store = Faulty(MemoryStore(clock=virtual.wall_clock), FaultPlan(latency_s=(0.01, 0.01)))
        queue = Queue(store, ambient=Ambient.seeded(1, virtual.monotonic))
        worker = Control(lambda: None)
        follower = Follower(
            queue, worker, worker_id="w", holds=Holds(), attempts=NoAttempts(), on_board=lambda _: None
        )
        follower.begin(await store.now())
        following = asyncio.create_task(follower.run(3.0))
        await control.pause(queue)
        await asyncio.sleep(10)
        assert worker.paused
        store.outage(True)
        follower._learn_board(
            Board(orders="news")
        )  # As a reader that has been standing still since would learn it.
        queue.board.read_at = float("-inf")
        await asyncio.sleep(60)
        asked = store.injected[Fault.OUTAGE]
        store.outage(False)
        await control.resume(queue)
        await asyncio.sleep(10)
        assert not worker.paused, "what was missed is read when the store is back"
        following.cancel()
        return asked

    assert virtual.run(follow()) < 150, "a minute without the store, and a rest of half a second between requests"
