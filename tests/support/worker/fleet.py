"""Workers that lease shards, without the rest of a worker: for tests of who polls what, in virtual time.

A member says in the roster that it is there, follows the plan, may be the lookout, and looks for tasks as a worker
does. What it finds it claims and completes at once, if it has room.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from qo.ambient import Ambient
from qo.core import keys
from qo.core.board import Rank, call_roll, sign_off, sign_on
from qo.core.discovery import STALE_AFTER, Due, IndexMode
from qo.core.ownership import LeasingConfig, units
from qo.core.poll import Pace
from qo.core.task import Status, Task
from qo.errors import StoreError
from qo.queue import roster
from qo.queue.feed import Feed
from qo.queue.lookout import Lookout
from qo.queue.notice_reader import NoticeReader
from qo.queue.queue import Claim, Queue
from qo.queue.shard_tenure import ShardTenure
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import ObjectStore
from qo.testing import virtual
from qo.worker.loop.mailbox import CLAIM_AGAIN_AFTER_S

HEARTBEAT_S = 15.0
Wrap = Callable[[ObjectStore, Ambient], ObjectStore]


class Freezable:
    """A store none of whose calls begins while it is frozen, as for a process that was stopped."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._going = asyncio.Event()
        self._going.set()

    def freeze(self) -> None:
        self._going.clear()

    def thaw(self) -> None:
        self._going.set()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        async def call(*arguments: object, **options: object) -> object:
            await self._going.wait()
            return await getattr(self._store, name)(*arguments, **options)

        return call


class Member:
    def __init__(
        self,
        store: ObjectStore,
        name: str,
        seed: int,
        *,
        prefix_len: int,
        config: LeasingConfig,
        mode: IndexMode = IndexMode.INDEX_ONLY,
        wrap: Wrap | None = None,
    ) -> None:
        ambient = Ambient.seeded(seed, virtual.monotonic)
        self.name = name
        self.config = config
        self.meter = Metered(store)
        self.line = Freezable(wrap(self.meter, ambient) if wrap else self.meter)
        self.queue = Queue(self.line, prefix_len=prefix_len, ambient=ambient)  # type: ignore[arg-type]
        self.room = True
        self.done: list[tuple[str, float]] = []  # Tasks, and when.
        self._news = asyncio.Event()
        self.lookout = Lookout(self.queue, name=name, rank=Rank.WORKER, silent_max_s=3 * HEARTBEAT_S)
        self.tenure = ShardTenure(self.queue, config, worker_id=name, on_change=self._news.set)
        notices = NoticeReader(
            self.queue,
            worker_id=name,
            rest_s=Pace().max_s,
            on_duty=lambda: self.lookout.on_duty,
            on_news=self._news.set,
            tenure=self.tenure,
        )
        self.feed = Feed(
            self.queue,
            mode=mode,
            notices=None if mode is IndexMode.LOG_SCAN else notices,
            tenure=self.tenure,
        )
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def started(self) -> bool:
        return bool(self._tasks)

    @property
    def owned(self) -> tuple[str, ...]:
        return self.tenure.owned

    async def start(self) -> None:
        await self._report()
        await self.queue.board.edit(lambda board: call_roll(sign_on(board, self.name)))
        parts = (self._beat, self._read_board, self.lookout.run, self.tenure.run, self._look)
        self._tasks = [asyncio.create_task(each()) for each in parts]

    async def crash(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def leave(self) -> None:
        await self.crash()
        self.tenure.leave()
        with suppress(StoreError):
            await roster.leave(self.queue.store, self.name)
        await self.queue.board.edit(lambda board: call_roll(sign_off(board, self.name)))

    async def _report(self) -> None:
        with suppress(StoreError):
            now = await self.queue.store.now()
            info = roster.WorkerInfo(
                worker_id=self.name,
                started_at=now,
                last_heartbeat=now,
                leasing=True,
                shards_max=self.config.shards_per_worker,
                shard_ttl_s=self.config.ttl_s,
            )
            await roster.report(self.queue.store, info)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._report()

    async def _read_board(self) -> None:
        """As a worker does that has no room, and so does not look for tasks."""
        while True:
            await asyncio.sleep(self.config.renew_s / 2)
            if self.queue.board.age_s() >= self.config.renew_s / 2:
                with suppress(StoreError):
                    await self.queue.board.read()

    async def _look(self) -> None:
        pace = Pace()
        while True:
            found = await self._work() if self.room else False
            pace = pace.after(found_work=found, max_s=self.feed.rest_max_s)
            rest_s = pace.rest_s(self.queue.ambient.unit())
            if pace.current_s == self.feed.rest_max_s:
                rest_s = self.feed.until_turn_s() or rest_s
            if self.room:
                rest_s = min(rest_s, self.feed.next_due_s())
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest_s):
                    await self._news.wait()

    async def _work(self) -> bool:
        try:
            found = await self.feed.take(16)
        except StoreError:
            return False
        for due in found:
            seen: list[Task] = []
            try:
                claim = await self.queue.claim(
                    due.task_id, worker_id=self.name, accepts=lambda task, seen=seen: seen.append(task) is None
                )
                if isinstance(claim, Claim):
                    await self.queue.complete(claim, None)
                    self.done.append((due.task_id, virtual.monotonic()))
                    self.feed.mark_claimed(due)
                elif await self._is_lasting(due, seen):
                    self.feed.defer(due, CLAIM_AGAIN_AFTER_S)
            except StoreError:
                self.feed.defer(due, CLAIM_AGAIN_AFTER_S)
        return bool(found)

    async def _is_lasting(self, due: Due, seen: list[Task]) -> bool:
        """Whether a hint that led to no claim stays. As a worker does, drop one whose task has moved on: otherwise each
        poll would read that task again."""
        if not due.key or (seen and seen[0].status is Status.PENDING):
            return True
        if seen and due.listed_at - seen[0].updated_at <= STALE_AFTER:
            self.feed.defer(due, STALE_AFTER.total_seconds(), expect_gone=True)
            return False
        if seen and (wanted := keys.index_key(seen[0])) is not None:
            await self.queue.hints.restore(wanted, seen[0].token)
        await self.queue.hints.drop_stale(due.key, due.etag)
        return False


class Fleet:
    def __init__(
        self,
        *,
        prefix_len: int = 1,
        config: LeasingConfig | None = None,
        mode: IndexMode = IndexMode.INDEX_ONLY,
        wrap: Wrap | None = None,
        seed: int = 0,
    ) -> None:
        self.store = MemoryStore(clock=virtual.wall_clock, versioned=False)
        self.queue = Queue(self.store, prefix_len=prefix_len, ambient=Ambient.seeded(seed, virtual.monotonic))
        self.units = units(prefix_len)
        self.config = config or LeasingConfig()
        self.members: list[Member] = []
        self._made = seed * 1000
        self._mode, self._wrap = mode, wrap

    async def join(self, count: int = 1) -> list[Member]:
        before = len(self.members)
        for _ in range(count):
            self._made += 1
            name = f"w{self.queue.ambient.rng.randrange(1000):03}-{self._made}"  # Anywhere in the order.
            member = Member(
                self.store,
                name,
                self._made,
                prefix_len=self.queue.prefix_len,
                config=self.config,
                mode=self._mode,
                wrap=self._wrap,
            )
            self.members.append(member)
            await member.start()
        return self.members[before:]

    async def leave(self, member: Member) -> None:
        self.members.remove(member)
        await member.leave()

    async def crash(self, member: Member) -> None:
        self.members.remove(member)
        await member.crash()

    async def disband(self) -> None:
        await asyncio.gather(*(member.crash() for member in self.members))

    def owners(self) -> Counter[str]:
        """How many members believe that they own each unit."""
        return Counter(unit for member in self.members for unit in member.owned)

    def lookouts(self) -> list[Member]:
        return [member for member in self.members if member.lookout.on_duty]

    def fair(self) -> bool:
        """Whether the units are shared out as they should be among these members: completely and evenly."""
        sizes = [len(member.owned) for member in self.members]
        wanted = min(len(self.units), len(self.members) * self.config.shards_per_worker)
        return max(sizes) - min(sizes) <= 1 and sum(sizes) == wanted and self.exclusive()

    def exclusive(self) -> bool:
        return max(self.owners().values(), default=0) <= 1

    async def watch(self, for_s: float, *, every_s: float = 1.0) -> None:
        """Let time pass; whenever one looks, no unit has two owners."""
        until = virtual.monotonic() + for_s
        while virtual.monotonic() < until:
            assert self.exclusive(), [(member.name, member.owned) for member in self.members]
            await asyncio.sleep(every_s)
