"""Hints under bad timing, failing writes and foreign keys: every task is still found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.board import due_from
from qo.core.discovery import IndexMode
from qo.core.pricing import Operation
from qo.core.task import Task
from qo.errors import StoreError, Unavailable
from qo.queue.feed import Feed
from qo.queue.monitor import Monitor
from qo.queue.options import NewTask, Options
from qo.queue.queue import Claim, Queue
from qo.store.faulty import Fault, Faulty
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import Deletion, Entry, ObjectStore, Page, PutResult
from qo.testing import virtual

pytestmark = pytest.mark.fast


NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


async def claimed(queue: Queue, task_id: str, hint: Deletion | None = None) -> Claim:
    claim = await queue.claim(task_id, worker_id="w", hint=hint)
    assert isinstance(claim, Claim)
    return claim


async def hints_of(store: ObjectStore, task: Task) -> set[str]:
    ready, leases = await store.list(keys.READY), await store.list(keys.LEASES)
    return {e.key for e in [*ready.entries, *leases.entries] if e.key.endswith(task.id)}


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_task_that_changes_hands_within_a_minute_keeps_the_lease_hint_of_its_new_holder(versioned: bool):
    store = MemoryStore(clock=lambda: NOW, versioned=versioned)
    first, second = Queue(store), Queue(store)
    task = await first.submit("t")
    await first.release(await claimed(first, task.id))  # Its removal of the lease hint is still to come.
    again = await claimed(second, task.id)
    await first.hints.flush()
    assert keys.index_key(again.task) in await hints_of(store, task)


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_ready_hint_that_was_seen_is_removed_only_as_it_was_seen(versioned: bool):
    store = MemoryStore(clock=lambda: NOW, versioned=versioned)
    worker, operator = Queue(store), Queue(store)
    task = await operator.submit("t")
    (due,) = await Feed(worker).take(1)
    claim = await claimed(worker, due.task_id, Deletion(due.key, etag=due.etag))
    await worker.fail(claim, "no", permanent=True)
    replayed = await operator.replay(task.id)  # In the same minute, so under the same key.
    assert keys.index_key(replayed) == due.key
    await worker.hints.flush()
    assert due.key in await hints_of(store, task)


class Careless(MemoryStore):
    """A store that removes many whatever they are by now, as some servers do; and only after a while."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.removing, self.go_on = asyncio.Event(), asyncio.Event()

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        await self.delete_many([Deletion(key, version, if_match)])

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        self.removing.set()
        await self.go_on.wait()
        await super().delete_many([Deletion(each.key, each.version) for each in deletions])


@pytest.mark.parametrize("under_way", [False, True])
async def test_a_task_that_comes_back_to_its_key_is_still_led_to_on_a_server_that_removes_without_a_look(
    under_way: bool,
):
    store = Careless(clock=lambda: NOW)
    queue = Queue(store)
    await queue.submit("t")
    (due,) = await Feed(queue).take(1)
    claim = await claimed(queue, due.task_id)  # The removal of the hint that led here is still to come.
    flushing: list[asyncio.Task[None]] = []
    if under_way:
        flushing.append(asyncio.create_task(queue.hints.flush()))
        await store.removing.wait()
    asyncio.get_running_loop().call_soon(store.go_on.set)
    task = await queue.release(claim)
    assert keys.index_key(task) == due.key
    await asyncio.gather(*flushing, queue.hints.flush())
    assert due.key in await hints_of(store, task)


async def found_and_claimed(queue: Queue) -> Claim:
    (due,) = await Feed(queue).take(1)
    return await claimed(queue, due.task_id, Deletion(due.key, etag=due.etag))


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_claim_writes_the_task_alone_and_its_ready_hint_stays(versioned: bool) -> None:
    meter = Metered(MemoryStore(clock=lambda: NOW, versioned=versioned))
    queue = Queue(meter)
    task = await queue.submit("t")
    await queue.board.flush()
    meter.reset()
    claim = await found_and_claimed(queue)
    assert meter.counts == {Operation.LIST: 1, Operation.GET: 1, Operation.PUT: 1}
    (ready,) = await hints_of(meter.store, task)
    assert ready.startswith(keys.READY)
    await queue.complete(claim)
    await queue.hints.flush()
    assert meter.counts == {Operation.LIST: 1, Operation.GET: 1, Operation.PUT: 2, Operation.DELETE: 1}
    assert await hints_of(meter.store, task) == set()


@pytest.mark.parametrize("versioned", [True, False])
async def test_an_attempt_that_takes_longer_gets_a_lease_hint_instead(versioned: bool) -> None:
    store = MemoryStore(clock=lambda: NOW, versioned=versioned)
    queue = Queue(store)
    task = await queue.submit("t")
    claim = await found_and_claimed(queue)
    for _ in range(2):  # The second time there is nothing to do.
        await queue.index_lease(claim)
        await queue.hints.flush()
        assert await hints_of(store, task) == {keys.index_key(claim.task)}
    await queue.renew(claim, 600.0)
    await queue.hints.flush()
    assert await hints_of(store, task) == {keys.index_key(claim.task)}
    await queue.complete(claim)
    await queue.hints.flush()
    assert await hints_of(store, task) == set()


async def test_a_task_that_ends_while_its_lease_hint_is_written_leaves_none() -> None:
    store = MemoryStore(clock=lambda: NOW)
    queue = Queue(store)
    task = await queue.submit("t")
    claim = await found_and_claimed(queue)
    await asyncio.gather(queue.index_lease(claim), queue.complete(claim))
    await queue.hints.flush()
    assert await hints_of(store, task) == set()


@pytest.mark.parametrize("versioned", [True, False])
async def test_a_hint_that_a_notice_led_to_leaves_no_delete_marker(versioned: bool) -> None:
    store = MemoryStore(clock=lambda: NOW, versioned=versioned)
    queue = Queue(store)
    await queue.submit("t")
    await queue.board.flush()
    assert queue.board.board is not None
    (notice,) = queue.board.board.notices
    due = due_from(notice)
    claim = await claimed(queue, due.task_id, Deletion(due.key, due.version, None if due.version else due.etag))
    released = await queue.release(claim)
    assert keys.index_key(released) == due.key, "the same key, written again"
    again = await claimed(queue, due.task_id)
    await queue.complete(again)
    await queue.hints.flush()
    markers = [each for each in await store.versions(due.key) if each.deleted]
    assert len(markers) == (1 if versioned else 0), "that of the claim that knew no version"


ENDINGS = {
    "complete": lambda queue, claim: queue.complete(claim),
    "retry": lambda queue, claim: queue.fail(claim, "no", delay_s=0),
    "retry later": lambda queue, claim: queue.fail(claim, "no", delay_s=90),
    "release": lambda queue, claim: queue.release(claim),
    "fail": lambda queue, claim: queue.fail(claim, "no", permanent=True),
}


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_wherever_a_worker_dies_a_hint_leads_to_an_active_task(ending: str, long: bool, versioned: bool) -> None:
    async def die_at(nth: int) -> bool:
        """Return whether the worker had so many requests to make."""
        truth = MemoryStore(clock=virtual.wall_clock, versioned=versioned)
        task = await Queue(truth, ambient=Ambient.seeded(1, virtual.monotonic)).submit("t")
        line = Faulty(truth)
        line.inject(Fault.OUTAGE, nth=nth, times=10**6)
        queue = Queue(line, ambient=Ambient.seeded(2, virtual.monotonic))
        with suppress(StoreError):
            claim = await found_and_claimed(queue)
            if long:
                await queue.index_lease(claim)
                await queue.renew(claim, 600.0)
            await ENDINGS[ending](queue, claim)
            await queue.flush()
        await queue.flush()
        stored = await Queue(truth).get(task.id)
        assert stored.ended or await hints_of(truth, task), (nth, stored)
        return line.injected[Fault.OUTAGE] > 0

    async def main() -> None:
        assert await die_at(1)
        nth = 2
        while await die_at(nth):
            nth += 1
        assert nth > (8 if long else 4)

    virtual.run(main())


class NoLeaseHints(MemoryStore):
    async def put(self, key: str, body: bytes, **condition: Any) -> PutResult:
        if key.startswith(keys.LEASES):
            raise Unavailable("slow down")
        return await super().put(key, body, **condition)


async def test_the_old_hint_stays_if_the_new_one_cannot_be_written():
    store = NoLeaseHints(clock=lambda: NOW)
    queue = Queue(store)
    task = await queue.submit("t")
    await claimed(queue, task.id)
    await queue.hints.flush()
    assert len(await hints_of(store, task)) == 1


@pytest.mark.parametrize("prefix", [keys.READY, keys.LEASES])
@pytest.mark.parametrize(
    "tail", ["0/0000000001/", "0/0000000001/not-a-task", "é/0000000001/x", "0/99999999999/", ""]
)
async def test_keys_of_strangers_under_our_prefixes_trip_nobody(prefix: str, tail: str):
    store = MemoryStore(clock=lambda: NOW)
    queue = Queue(store)
    await store.put(prefix + (tail or "readme.txt"), b"")
    task = await queue.submit("t")
    assert [due.task_id for due in await Feed(queue).take(10)] == [task.id]
    assert (await Monitor(queue).check()).examined == 0


@pytest.mark.parametrize("prefix_len", [1, 2])
async def test_a_feed_is_exhausted_only_when_nothing_is_left_anywhere(prefix_len: int):
    queue = Queue(MemoryStore(clock=lambda: NOW), prefix_len=prefix_len)
    delayed = [NewTask("t", n, Options(delay_s=3600)) for n in range(150)]
    await queue.submit_many([*delayed, *(NewTask("t", n) for n in range(100))])
    feed, taken = Feed(queue, mode=IndexMode.INDEX_ONLY, ready_page_size=10), 0
    while found := await feed.take(7):
        taken += len(found)
    assert taken == 100
    assert feed.is_exhausted


async def test_a_log_scan_is_exhausted_only_after_a_barren_round():
    queue = Queue(MemoryStore(clock=lambda: NOW))
    await queue.submit_many([NewTask("t", n, Options(delay_s=3600)) for n in range(120)])
    task = await queue.submit("t")
    feed, looks = Feed(queue, mode=IndexMode.LOG_SCAN, log_scan_page_size=10), 0
    taken: list[str] = []
    while not feed.is_exhausted:
        looks += 1
        taken += [due.task_id for due in await feed.take(5)]
    assert taken == [task.id]
    assert looks > 12


class Growing(Metered):
    """A store in which each listing of leases finds another one that was not there before."""

    lists = 0

    def list(self, prefix: str, **arguments: Any) -> Any:
        return self._grown(prefix, **arguments)

    async def _grown(self, prefix: str, **arguments: Any) -> Page:
        page = await self.store.list(prefix, **arguments)
        if prefix != keys.LEASES:
            return page
        Growing.lists += 1
        key = f"leases/0/0000000001/00000000-0000-4000-8000-{Growing.lists:012x}"
        return Page([*page.entries, Entry(key, "e", 0, NOW + timedelta(seconds=Growing.lists))], False)


async def test_a_check_ends_although_new_leases_keep_coming():
    store = Growing(MemoryStore(clock=lambda: NOW))
    async with asyncio.timeout(5):
        await Monitor(Queue(store)).check()
    assert Growing.lists < 5


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("key", ["kept/a", "forgotten/a"])
async def test_deleting_many_spares_what_was_written_anew(kind: str, key: str, tmp_path: Path):
    local = kind == "local"
    store = await LocalStore.open(tmp_path, forget=("forgotten/",)) if local else MemoryStore()
    old = await store.put(key, b"old")
    new = await store.put(key, b"new")
    await store.delete_many([Deletion(key, etag=old.etag)])
    found = await store.get(key)
    assert found is not None
    assert found.body == b"new"
    await store.delete_many([Deletion(key, etag=new.etag)])
    assert await store.get(key) is None
    await store.close()


async def test_the_newest_tasks_are_listed_first_however_many_there_are():
    clock = [NOW]
    queue = Queue(MemoryStore(clock=lambda: clock[0]))
    await queue.submit_many([NewTask("t", n) for n in range(300)])
    clock[0] += timedelta(seconds=5)
    new = [(await queue.submit("t", "new")).id for _ in range(5)]
    assert {task.id for task in await queue.list(limit=5)} == set(new)
