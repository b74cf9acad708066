"""The plan of shards and one worker's view of it, one call at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.core import keys
from qo.core.board import show_plan
from qo.core.ownership import LeasingConfig, decode_plan, units
from qo.core.pricing import Operation
from qo.errors import CorruptRecord, Unavailable, UsageError
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo, report
from qo.queue.shard_planner import ShardPlanner
from qo.queue.shard_tenure import ShardTenure
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore, Stored
from qo.testing import virtual

pytestmark = pytest.mark.fast

TTL_S = 30.0


def made_queue(store: ObjectStore, *, prefix_len: int = 1, seed: int = 1) -> Queue:
    return Queue(store, prefix_len=prefix_len, ambient=Ambient.seeded(seed, virtual.monotonic))


async def enlist(store: ObjectStore, *worker_ids: str, **more: Any) -> None:
    for worker_id in worker_ids:
        at = await store.now()
        options = {"leasing": True, "shards_max": 16, "shard_ttl_s": TTL_S, **more}
        await report(store, WorkerInfo(worker_id=worker_id, started_at=at, last_heartbeat=at, **options))


class Stage:
    """A queue in memory with a planner that shows its plans, and workers that read of them."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(clock=virtual.wall_clock)
        self.queue = made_queue(self.store)
        self.planner = ShardPlanner(self.queue)
        self._following: list[asyncio.Task[None]] = []

    async def share(self, *worker_ids: str) -> None:
        await enlist(self.store, *worker_ids)
        await self.plan(*worker_ids)

    async def plan(self, *worker_ids: str) -> None:
        board = await self.queue.board.read()
        await self.planner.plan(worker_ids, shown_number=0 if board is None else board.plan, read_all=True)
        await self.queue.board.edit(lambda board: show_plan(board, self.planner.number))

    def join(self, worker_id: str) -> tuple[Queue, ShardTenure]:
        queue = made_queue(self.store, seed=len(self._following) + 2)
        tenure = ShardTenure(queue, LeasingConfig(ttl_s=TTL_S), worker_id=worker_id)
        self._following.append(asyncio.create_task(tenure.run()))
        return queue, tenure

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)


def told(story: Callable[[Stage], Awaitable[None]], store: Callable[[], MemoryStore] | None = None) -> None:
    async def run() -> None:
        stage = Stage(store() if store else None)
        try:
            await story(stage)
        finally:
            await stage.close()

    virtual.run(run())


async def read_for(seconds: float, *queues: Queue) -> None:
    """Let workers read the board every few seconds, as they do."""
    for _ in range(int(seconds // 5)):
        for queue in queues:
            await queue.board.read()
        await asyncio.sleep(5)


# The plan


def test_a_plan_is_written_as_documented() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1", "w2")
        stored = await stage.store.get("shard-leases/plan.json")
        assert stored is not None
        written = json.loads(stored.body)
        assert written.pop("token")
        since = "2026-01-01T00:00:00Z"
        assert written == {
            "number": 1,
            "updated_at": since,
            "ttl_s": 30.0,
            "wait_s": 30.0,
            "members": ["w1", "w2"],
            "grants": [
                {"worker_id": "w1", "first": "0", "last": "7", "since": since, "number": 1},
                {"worker_id": "w2", "first": "8", "last": "f", "since": since, "number": 1},
            ],
        }

    told(story)


def test_a_queue_whose_workers_lease_nothing_has_no_plan() -> None:
    async def story(stage: Stage) -> None:
        meter = Metered(stage.store)
        planner = ShardPlanner(made_queue(meter))
        await enlist(stage.store, "w1", "w2", leasing=False, shards_max=0, shard_ttl_s=0.0)
        await enlist(stage.store, "old", shards_max=0, shard_ttl_s=0.0)
        meter.reset()
        for _ in range(5):
            await planner.plan(["w1", "w2", "old"], shown_number=0, read_all=False)
        assert meter.counts == {Operation.GET: 3}, "each record is read once"
        assert not planner.number
        assert await stage.store.get(keys.SHARD_PLAN) is None

    told(story)


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"number":7}'])
def test_a_plan_that_is_lost_or_broken_is_replaced_by_a_later_one(body: bytes) -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1", "w2")
        await stage.plan("w1")
        assert stage.planner.number == 2
        for damage in (stage.store.delete(keys.SHARD_PLAN), stage.store.put(keys.SHARD_PLAN, body)):
            await damage
            before, stage.planner = stage.planner.number, ShardPlanner(stage.queue)
            await stage.plan("w1", "w2")
            assert stage.planner.number > before

    told(story)


def test_of_two_lookouts_one_writes_and_the_other_goes_by_it() -> None:
    async def story(stage: Stage) -> None:
        await enlist(stage.store, "w1", "w2")
        other = ShardPlanner(made_queue(stage.store, seed=9))
        await asyncio.gather(
            stage.planner.plan(["w1", "w2"], shown_number=0, read_all=False),
            other.plan(["w1"], shown_number=0, read_all=False),
        )
        for planner in (stage.planner, other):
            await planner.plan(["w1", "w2"], shown_number=0, read_all=False)
        assert stage.planner.number == other.number

    told(story)


@pytest.mark.parametrize(
    "grant",
    [
        {"first": "g"},
        {"first": "00", "last": "0f"},
        {"first": "9", "last": "1"},
        {"first": "f" * 20, "last": "f" * 20},
        {"worker_id": 1},
    ],
)
def test_a_plan_that_grants_what_there_is_not_is_broken(grant: dict[str, Any]) -> None:
    at = "2026-01-01T00:00:00Z"
    good = {"worker_id": "w", "first": "0", "last": "1", "since": at, "number": 1}
    plan = {
        "number": 1,
        "token": "t",
        "updated_at": at,
        "ttl_s": 30,
        "wait_s": 30,
        "members": [],
        "grants": [good],
    }
    assert decode_plan(json.dumps(plan).encode(), units(1)).grants
    for grants in ([good | grant], [good, good]):
        with pytest.raises(CorruptRecord):
            decode_plan(json.dumps(plan | {"grants": grants}).encode(), units(1))


@pytest.mark.parametrize("wrong", [{"shards_per_worker": 0}, {"renew_s": 16.0}, {"renew_s": 0.0}, {"ttl_s": 19.0}])
def test_leasing_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        LeasingConfig(**wrong)


# A worker's view


def test_a_worker_owns_its_block_after_the_wait_and_looks_everywhere_before() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1", "w2")
        queue, tenure = stage.join("w2")
        assert tenure.scope is None
        await read_for(25, queue)
        assert (tenure.owned, tenure.scope) == ((), None)
        await read_for(10, queue)
        assert tenure.owned == units(1)[8:]
        assert tenure.scope == set(units(1)[8:])
        assert tenure.turn == (1, 2)

    told(story)


def test_shards_beyond_all_caps_are_listed_by_everybody() -> None:
    async def story(stage: Stage) -> None:
        await enlist(stage.store, "w1", "w2", shards_max=3)
        await stage.plan("w1", "w2")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        assert tenure.owned == ("0", "1", "2")
        assert tenure.scope == {*"012", *units(1)[6:]}

    told(story)


def test_a_worker_that_does_not_read_the_board_owns_nothing_after_a_while_and_again_once_it_has() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        assert tenure.owned == units(1)
        await asyncio.sleep(TTL_S)
        assert tenure.owned == ()
        await queue.board.read()
        assert tenure.owned == units(1)

    told(story)


def test_a_block_that_was_lost_while_the_worker_stood_still_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1", "w2")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        await asyncio.sleep(2 * TTL_S)
        await stage.plan("w2")
        await read_for(5, queue)
        assert tenure.owned == ()
        assert "did not read the board" in caplog.text

    told(story)


def test_a_plan_counts_once_the_board_shows_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        await enlist(stage.store, "w2")
        await stage.planner.plan(["w1", "w2"], shown_number=1, read_all=True)
        await read_for(40, queue)
        assert tenure.owned == units(1), "the board shows the old one"
        await stage.queue.board.edit(lambda board: show_plan(board, stage.planner.number))
        await read_for(5, queue)
        assert tenure.owned == units(1)[:8]

    told(story)


def test_a_worker_that_leaves_owns_nothing_at_once() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        tenure.leave()
        await read_for(40, queue)
        assert tenure.owned == ()

    told(story)


class Deaf(MemoryStore):
    """Does not answer for the plan."""

    deaf = False

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        if self.deaf and key == keys.SHARD_PLAN:
            raise Unavailable("away")
        return await super().get(key, version=version)


def test_a_plan_that_cannot_be_read_is_read_later() -> None:
    async def story(stage: Stage) -> None:
        await stage.share("w1")
        assert isinstance(stage.store, Deaf)
        stage.store.deaf = True
        queue, tenure = stage.join("w1")
        await read_for(20, queue)
        stage.store.deaf = False
        await read_for(40, queue)
        assert tenure.owned == units(1)

    told(story, Deaf)


class Slow(MemoryStore):
    """Keeps the answers for the board until they are asked for."""

    def __init__(self) -> None:
        super().__init__(clock=virtual.wall_clock)
        self.held: list[asyncio.Event] = []
        self.holds = False

    async def get_if_changed(self, key: str, etag: str) -> Any:
        answer = await super().get_if_changed(key, etag)
        if self.holds and key == keys.BOARD:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return answer


def test_answers_that_overtake_each_other_renew_nothing() -> None:
    """A worker that hears of the new plan first, and then gets the old board, must not go by the old plan."""

    async def story(stage: Stage) -> None:
        await stage.share("w1", "w2")
        queue, tenure = stage.join("w1")
        await read_for(40, queue)
        assert isinstance(stage.store, Slow)
        stage.store.holds = True
        reads = [asyncio.create_task(queue.board.read())]
        await asyncio.sleep(1)
        await stage.store.put(keys.BOARD, b'{"token":"x","plan":1,"sequence":7}')
        reads.append(asyncio.create_task(queue.board.read()))
        await asyncio.sleep(1)
        stage.queue = made_queue(stage.store, seed=8)
        stage.store.holds = False
        await stage.plan("w2")
        board = await queue.board.read()
        assert board is not None
        assert board.plan == 2
        for event in stage.store.held:
            event.set()
        await asyncio.gather(*reads)
        await asyncio.sleep(0.1)
        assert queue.board.board == board
        assert tenure.owned == ()

    told(story, Slow)
