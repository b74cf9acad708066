"""Limits over all workers: never more at a time than allowed, and what a dead worker held comes back."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from qo.ambient import SYSTEM
from qo.core import keys
from qo.core.discovery import Verdict
from qo.core.limit_shares import Grant, Limit
from qo.core.rhythm import RENEWALS_PER_SHARE, SHARE_TTL_S
from qo.core.task import Status
from qo.errors import UsageError
from qo.queue import limit_registers
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.queue.sealer import KeyRing, Sealer
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.s3 import S3Store
from qo.worker.api.app import App
from qo.worker.layers.services import limits_by_type
from qo.worker.loop import shared_limits
from qo.worker.worker import Worker
from support.stores.queues import another, config, drain, until, virtual_queue, working
from support.worker.checked_worker import in_virtual_time
from support.worker.processes import Place

RENEW_S = SHARE_TTL_S / RENEWALS_PER_SHARE


class Gate:
    """An app whose handlers count how many run at a time."""

    def __init__(self, **limit: Any) -> None:
        self.running, self.peak, self.starts = 0, 0, list[float]()
        self.app = App()

        @self.app.task("limited", limit=Limit(**limit))
        async def limited(input: Any) -> None:
            self.starts.append(asyncio.get_running_loop().time())
            self.running += 1
            self.peak = max(self.peak, self.running)
            await asyncio.sleep(0.01)
            self.running -= 1

        @self.app.task("free")
        async def free(input: Any) -> None:
            return None


async def test_workers_together_run_no_more_than_the_limit_and_all_of_it(queue: Queue) -> None:
    gate = Gate(concurrency=3)
    await queue.submit_many([NewTask("limited", n) for n in range(40)])
    async with working(another(queue), gate.app, worker_id="a"), working(another(queue), gate.app, worker_id="b"):
        await drain(queue, gate.app, worker_id="c")
    assert 1 <= gate.peak <= 3
    assert len(gate.starts) == 40
    (register,) = await limit_registers.read_all(queue)
    assert register.shares == {}, "who leaves gives its share back"


async def test_types_without_a_permit_do_not_hold_up_others(queue: Queue) -> None:
    gate = Gate(concurrency=1)
    now = await queue.store.now()
    taken = limit_registers.Wish("another", 1, 1, 0)
    await limit_registers.ask(queue, Limit(name="limited", concurrency=1), taken, ttl_s=600)
    blocked = await queue.submit("limited")
    others = await queue.submit_many([NewTask("free", n) for n in range(10)])
    async with working(queue, gate.app):
        for task in others:
            await until(lambda task=task: _ended(queue, task.id))
        assert (await queue.get(blocked.id)).status is Status.PENDING
        (register,) = await limit_registers.read_all(queue)
        assert register.shares["another"].until > now + timedelta(seconds=500)
        await limit_registers.ask(
            queue, Limit(name="limited", concurrency=1), limit_registers.Wish("another", 0, 0, 0), ttl_s=600
        )
        await until(lambda: _ended(queue, blocked.id))


async def _ended(queue: Queue, task_id: str) -> bool:
    return (await queue.get(task_id)).ended


@in_virtual_time
async def test_a_rate_holds_over_all_workers() -> None:
    queue, gate = virtual_queue(), Gate(starts=10, per_s=1.0)
    await queue.submit_many([NewTask("limited", n) for n in range(60)])
    workers = [Worker(queue, gate.app, config(worker_id=f"w{n}", stop_when_empty=True)) for n in range(3)]
    await asyncio.gather(*(worker.run() for worker in workers))
    starts = sorted(gate.starts)
    assert len(starts) == 60
    for window_s in (1.0, 2.0, 4.0):
        for at in starts:
            inside = sum(at <= each < at + window_s for each in starts)
            assert inside <= 10 * (window_s + shared_limits.STARTS_FOR_S + 1.0)
    assert starts[-1] - starts[0] < 7, "and it is used: no start is lost to a claim that another worker won"


@in_virtual_time
async def test_a_high_rate_costs_few_requests() -> None:
    queue, gate = virtual_queue(), Gate(starts=100, per_s=1.0)
    meter = Metered(queue.store)
    await queue.submit_many([NewTask("limited", n) for n in range(300)])
    asked: list[str] = []
    get = meter.get

    async def counting(key: str, **options: Any) -> Any:
        asked.extend([key] if key.startswith(keys.LIMITS) else [])
        return await get(key, **options)

    meter.get = counting
    await drain(another(queue, store=meter, ambient=queue.ambient), gate.app)
    spent_s = max(gate.starts) - min(gate.starts)
    assert spent_s < 6
    assert len(asked) < 3 * spent_s / shared_limits.STARTS_EVERY_S


@in_virtual_time
async def test_an_idle_worker_makes_no_request_for_its_limits() -> None:
    queue, gate = virtual_queue(), Gate(concurrency=3, starts=100)
    asked: list[str] = []
    get = queue.store.get

    async def counting(key: str, **options: Any) -> Any:
        asked.extend([key] if key.startswith(keys.LIMITS) else [])
        return await get(key, **options)

    queue.store.get = counting
    async with working(queue, gate.app):
        await queue.submit("limited")
        await asyncio.sleep(60)
        used = len(asked)
        assert used > 0
        await asyncio.sleep(600)
        assert len(asked) == used


@in_virtual_time
async def test_the_share_of_a_worker_that_died_comes_back() -> None:
    queue, gate = virtual_queue(), Gate(concurrency=2)
    dead = limit_registers.Wish("dead", 2, 2, 0)
    await limit_registers.ask(queue, Limit(name="limited", concurrency=2), dead, ttl_s=SHARE_TTL_S)
    task = await queue.submit("limited")
    async with working(queue, gate.app):
        await asyncio.sleep(SHARE_TTL_S - 5)
        assert (await queue.get(task.id)).status is Status.PENDING
        await asyncio.sleep(15)
        assert (await queue.get(task.id)).status is Status.COMPLETED


@in_virtual_time
async def test_while_a_worker_asks_it_takes_nothing_that_may_be_given_to_another() -> None:
    queue, limit = virtual_queue(), Limit(name="l", concurrency=4)
    shared = shared_limits.SharedLimit(limit, queue.ambient.monotonic, 16)
    await limit_registers.ask(queue, limit, limit_registers.Wish("a", 0, 4, 0), ttl_s=15)
    shared.take(Grant(4, 0, 0.0, 15.0), asked_at=queue.ambient.monotonic())
    for _ in range(2):
        shared.count_admitted()
    await asyncio.sleep(RENEW_S)
    own = await limit_registers.ask(queue, limit, shared.wish("a"), ttl_s=15)  # Its reply is still on the way.
    other = await limit_registers.ask(queue, limit, limit_registers.Wish("b", 0, 16, 0), ttl_s=15)
    assert shared.in_use + max(0, shared.room()) + other.permits <= 4
    shared.count_ended()
    assert shared.room() == 1, "in the place of one that has ended"
    shared.take(own, asked_at=queue.ambient.monotonic())
    assert shared.in_use + max(0, shared.room()) + other.permits <= 4


@in_virtual_time
async def test_a_worker_whose_share_ran_out_starts_nothing_more() -> None:
    queue, gate = virtual_queue(), Gate(concurrency=2)
    shared = shared_limits.SharedLimit(Limit(name="l", concurrency=2), queue.ambient.monotonic, 16)
    shared.take(Grant(2, 0, 0.0, SHARE_TTL_S), asked_at=queue.ambient.monotonic())
    assert shared.room() == 2
    await asyncio.sleep(SHARE_TTL_S - shared_limits.MARGIN_S)
    assert shared.room() == 0
    assert gate.peak == 0


@in_virtual_time
async def test_a_share_that_was_not_written_again_is_used_no_longer_than_others_wait_for() -> None:
    queue, limit = virtual_queue(), Limit(name="l", concurrency=1)
    shared = shared_limits.SharedLimit(limit, queue.ambient.monotonic, 16)
    wish = limit_registers.Wish("a", 0, 1, 0)
    for _ in range(2):  # The second time there is nothing to write.
        asked_at = queue.ambient.monotonic()
        shared.take(await limit_registers.ask(queue, limit, wish, ttl_s=SHARE_TTL_S), asked_at=asked_at)
        await asyncio.sleep(RENEW_S)
    await asyncio.sleep(SHARE_TTL_S - 2 * RENEW_S)  # No ask got through since.
    other = await limit_registers.ask(queue, limit, limit_registers.Wish("b", 0, 1, 0), ttl_s=15)
    assert max(0, shared.room()) + other.permits == 1


class KeyedGate:
    """An app whose handlers count how many run at a time, by customer."""

    def __init__(self, **limit: Any) -> None:
        self.running, self.peaks, self.order = Counter[str](), Counter[str](), list[str]()
        self.app = App()

        @self.app.task("limited", limit=Limit(by="input.customer", **limit))
        async def limited(input: Any) -> None:
            customer = str(input.get("customer"))
            self.order.append(customer)
            self.running[customer] += 1
            self.peaks[customer] = max(self.peaks[customer], self.running[customer])
            await asyncio.sleep(0.2)
            self.running[customer] -= 1


@in_virtual_time
async def test_a_limit_by_key_holds_for_each_key_and_no_key_holds_up_another() -> None:
    queue, gate = virtual_queue(), KeyedGate(concurrency=2)
    await queue.submit_many([NewTask("limited", {"customer": "a"}) for _ in range(60)])
    others = [NewTask("limited", {"customer": each}) for each in "bcd" for _ in range(4)]
    await queue.submit_many([*others, *(NewTask("limited", {"n": n}) for n in range(4))])
    workers = [Worker(queue, gate.app, config(worker_id=f"w{n}", stop_when_empty=True)) for n in range(3)]
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(worker.run() for worker in workers))
    assert len(gate.order) == 76
    assert max(gate.peaks.values()) <= 2
    assert gate.peaks["a"] == 2, "and it is used"
    assert {*gate.order[:24]} == {"a", "b", "c", "d", "None"}, "sixty of one customer keep nobody waiting"
    assert asyncio.get_running_loop().time() - began < 60 / 2 * 0.2 * 3
    assert all(register.shares == {} for register in await limit_registers.read_all(queue))


async def test_a_limit_by_key_works_on_every_store(queue: Queue) -> None:
    gate = KeyedGate(concurrency=1)
    await queue.submit_many([NewTask("limited", {"customer": n % 3}) for n in range(6)])
    await drain(another(queue, ambient=SYSTEM), gate.app)  # Not in haste: shares last for seconds.
    assert (len(gate.order), max(gate.peaks.values())) == (6, 1)


@pytest.mark.fast
async def test_a_task_that_is_found_twice_takes_no_place_of_another(memory_store: MemoryStore) -> None:
    """It lacked room, and was found in the index again before it was its turn: the second time changes nothing."""
    queue, gate = Queue(memory_store), KeyedGate(concurrency=1)
    await queue.submit("limited", {"customer": 1})
    mailbox = Worker(queue, gate.app, config())._mailbox
    (due,) = await mailbox._feed.take(1)
    waiting, verdict = mailbox._feed._deferred_tasks, Verdict.LATER
    waiting.judge = lambda group, ahead: Verdict.LATER if ahead else verdict
    mailbox._feed.put_back(due, "limited")
    mailbox._start(due)
    verdict = Verdict.TAKE
    (again,) = await mailbox._feed.take(1)
    mailbox._start(again)
    assert waiting.verdict(due.task_id) is Verdict.TAKE
    await mailbox.abandon_claims()


@in_virtual_time
async def test_keys_that_nobody_uses_cost_nothing_and_are_forgotten() -> None:
    queue, gate = virtual_queue(), KeyedGate(concurrency=2)
    keyed = shared_limits.KeyedLimit(Limit(name="l", by="input.customer", concurrency=1), queue, 4)
    for n in range(shared_limits.KEYS_MAX + 5):
        keyed.share_of(str(n))
    assert keyed.active() == []
    assert keyed._by_key == {}
    asked: list[str] = []
    get = queue.store.get

    async def counting(key: str, **options: Any) -> Any:
        asked.extend([key] if key.startswith(keys.LIMITS) else [])
        return await get(key, **options)

    queue.store.get = counting
    async with working(queue, gate.app):
        await queue.submit_many([NewTask("limited", {"customer": n}) for n in range(5)])
        await asyncio.sleep(60)
        used = len(asked)
        assert used >= 5
        await asyncio.sleep(300)
        assert len(asked) == used


async def test_keys_of_limits_are_not_readable_in_an_encrypted_queue(queue: Queue) -> None:
    gate = KeyedGate(concurrency=2)
    sealed = another(queue, sealer=Sealer(KeyRing({"k1": bytes(32)})), ambient=SYSTEM)
    await sealed.submit("limited", {"customer": "the patient's name"})
    assert (await drain(sealed, gate.app)).completed == 1
    (register,) = await limit_registers.read_all(queue)
    assert "patient" not in register.name


async def test_two_limits_of_one_name_must_be_the_same(queue: Queue) -> None:
    app = App()
    for n in (1, 2):
        app.task(f"t{n}", limit=Limit(name="crm", concurrency=n))(lambda input: None)
    with pytest.raises(UsageError, match="given twice"):
        Worker(queue, app, config())


async def test_the_command_line_shows_who_has_which_share(place: Place) -> None:
    await place.queue.store.put(f"{keys.LIMITS}broken.json", b"{")
    assert await place.json("limit", "list") == []
    wish = limit_registers.Wish("worker-7", 1, 2, 0)
    await limit_registers.ask(place.queue, Limit(name="payment", concurrency=5), wish, ttl_s=600)
    (shown,) = await place.json("limit", "list")
    assert (shown["limit"], shown["shares"][0]["worker"], shown["shares"][0]["share"]) == (
        "payment",
        "worker-7",
        2,
    )
    assert "worker-7" in await place.ok("limit", "list")


@pytest.mark.fast
async def test_settings_change_the_limit_that_they_name_for_all_who_share_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, app = Queue(MemoryStore()), App()
    for name in ("pull", "push"):
        app.task(name, limit=Limit(name="crm", concurrency=5))(lambda input: None)
    app.task("free")(lambda input: None)
    for settings, expected in (
        ({"crm": 2}, {"pull": 2, "push": 2}),
        ({"free": 3}, {"pull": 5, "push": 5, "free": 3}),
    ):
        limits = {name: Limit(name=name, concurrency=n) for name, n in settings.items()}
        admitted = limits_by_type(app, limits)
        assert {task_type: limit.concurrency for task_type, limit in admitted.items()} == expected
    with pytest.raises(UsageError, match="'pull', which has the limit 'crm': write that name"):
        Worker(queue, app, config(shared_limits={"pull": Limit(name="pull", concurrency=1)}))
    Worker(queue, app, config(shared_limits={"typo": Limit(name="typo", concurrency=1)}))
    assert any("no such type and no such limit" in line for line in caplog.messages)


async def test_a_limit_from_the_settings_survives_a_killed_worker(place: Place) -> None:
    notes = place.directory / "notes"
    tasks = await place.queue.submit_many([NewTask("noted", {"notes": str(notes), "s": 0.05}) for _ in range(30)])
    # Permits of the dead wait for a lease: here, the shortest that the store allows and a busy machine bears.
    lease_s = "5" if isinstance(place.queue.store, S3Store) else "2"
    limits = {"QO_LIMITS": "noted=2", "QO_LEASE_S": lease_s}
    async with place.worker("doomed", **limits) as doomed:
        await place.counted(Status.COMPLETED, "doomed", 1)
        doomed.signal(signal.SIGKILL)
        await doomed.code()
    async with place.worker("w", **limits), place.worker("v", **limits):
        await place.ended(tasks, within_s=120)
    open_, peak = set[tuple[str, str]](), 0
    for line in notes.read_text().splitlines():
        task_id, what, worker_id = line.split()
        if what == "begin" and worker_id != "doomed":
            open_.add((task_id, worker_id))
        open_.discard((task_id, worker_id) if what == "end" else ("", ""))
        peak = max(peak, len(open_))
    assert peak <= 2
