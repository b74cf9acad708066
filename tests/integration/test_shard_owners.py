"""Who owns which shards, as people see it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from qo.core import keys, wire
from qo.core.ownership import Grant, Member, ShardPlan, replan, units
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.queue.queue import Queue
from qo.queue.shard_owners import count_unowned, read_shard_owners
from qo.store.local import LocalStore
from qo.store.memory import MemoryStore
from support.cli.command import Qo

pytestmark = pytest.mark.fast


async def plan_for(queue: Queue, *members: Member, ago_s: float = 60.0) -> ShardPlan:
    since = await queue.store.now() - timedelta(seconds=ago_s)
    plan = replan(None, members, units(queue.prefix_len), shown_number=0, now=since, token="t")
    assert plan is not None
    await queue.store.put(keys.SHARD_PLAN, wire.encode(plan))
    return plan


async def test_all_shards_are_shown_with_and_without_owners() -> None:
    for prefix_len in (1, 2, 4):
        queue = Queue(MemoryStore(), prefix_len=prefix_len)
        assert await read_shard_owners(queue) is None
        plan = await plan_for(queue, Member("a", 3, 30.0), Member("b", 3, 30.0))
        now = await queue.store.now()
        await roster.report(
            queue.store, roster.WorkerInfo(worker_id="a", started_at=now, last_heartbeat=now, heartbeat_s=10)
        )
        first, second, free = await read_shard_owners(queue) or ()
        assert (first.first, first.worker_id, first.since) == ("0" * prefix_len, "a", plan.grants[0].since)
        assert first.expires_at == now + timedelta(seconds=30)
        assert (second.worker_id, second.heard_at, second.expires_at) == ("b", None, None)
        assert (free.worker_id, free.last) == (None, "f" * prefix_len)
        assert first.shards + second.shards + free.shards == 16**prefix_len
        assert count_unowned([first, second, free]) == free.shards
        assert not first.moving


async def test_shards_that_were_granted_a_moment_ago_are_moving() -> None:
    queue = Queue(MemoryStore())
    await plan_for(queue, Member("a", 16, 30.0), ago_s=5.0)
    (only,) = await read_shard_owners(queue) or ()
    assert only.moving


async def test_a_broken_plan_is_an_error() -> None:
    queue = Queue(MemoryStore())
    await queue.store.put(keys.SHARD_PLAN, b"{")
    with pytest.raises(CorruptRecord):
        await read_shard_owners(queue)


def test_the_command_shows_blocks_and_says_who_has_none(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    assert qo.json("shards") == []
    assert "every worker lists all" in qo.here("shards").err

    async def write() -> None:
        store = await LocalStore.open(tmp_path / ".qo", forget=keys.EPHEMERAL)
        now = await store.now()
        grant = Grant(worker_id="w1", first="0", last="b", since=now - timedelta(hours=1), number=3)
        plan = ShardPlan(
            number=3, token="t", updated_at=now, ttl_s=30.0, wait_s=30.0, members=["w1"], grants=[grant]
        )
        await store.put(keys.SHARD_PLAN, wire.encode(plan))
        await roster.report(
            store, roster.WorkerInfo(worker_id="w1", started_at=now, last_heartbeat=now, heartbeat_s=60)
        )
        await store.close()

    asyncio.run(write())
    owned, free = qo.json("shards")
    assert (owned["first"], owned["last"], owned["shards"], owned["worker_id"]) == ("0", "b", 12, "w1")
    assert (free["first"], free["last"], free["worker_id"]) == ("c", "f", None)
    answer = qo.here("shards")
    rows = [line.split() for line in answer.out.splitlines()[1:]]
    assert [row[:3] for row in rows] == [["0-b", "12", "w1"], ["c-f", "4", "none"]]
    assert rows[0][3:5] == ["1h", "ago"]
    assert "4 shards have no owner" in answer.err
