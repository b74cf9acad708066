"""The page of shards: who owns which block of them, as `qo shards` prints it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import expect

from qo.core import keys, wire
from qo.core.ownership import Grant, ShardPlan
from qo.queue import roster
from qo.queue.queue import Queue
from qo.queue.shard_owners import read_shard_owners
from support.ui.browsers import Tabs
from support.ui.dashboards import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def lease_shards(queue: Queue) -> None:
    now = await queue.store.now()
    hour_ago = now - timedelta(hours=1)
    grants = [
        Grant(worker_id="alpha", first="0", last="7", since=hour_ago, number=1),
        Grant(worker_id="beta", first="8", last="b", since=now, number=2),
    ]
    plan = ShardPlan(
        number=2, token="t", updated_at=now, ttl_s=600.0, wait_s=600.0, members=["alpha", "beta"], grants=grants
    )
    await queue.store.put(keys.SHARD_PLAN, wire.encode(plan))
    for worker_id, heard_at in (("alpha", now), ("beta", hour_ago)):
        info = roster.WorkerInfo(
            worker_id=worker_id, started_at=hour_ago, last_heartbeat=heard_at, heartbeat_s=60, leasing=True
        )
        await roster.report(queue.store, info)


async def test_the_page_shows_the_owners_that_the_command_shows(
    queue: Queue, visitor: Visitor, tabs: Tabs
) -> None:
    await lease_shards(queue)
    owned = await read_shard_owners(queue)
    assert owned is not None
    tab = await tabs.open(visitor.dashboard.link, "/shards")
    await tab.shown("Owners", "4 shards without an owner")
    rows = tab.page.locator("tbody tr")
    await expect(rows).to_have_count(len(owned))
    cells = [await row.locator("td").all_inner_texts() for row in await rows.all()]
    assert [row[:3] for row in cells] == [
        [f"{each.first}-{each.last}", str(each.shards), each.worker_id or "none"] for each in owned
    ]
    (_, _, _, since, heard, expires), (_, _, _, moving, _, expired), (*_, free) = cells
    assert (moving, expired, free) == ("moving", "expired", "")
    assert since.startswith("1h")
    assert heard.endswith("ago")
    assert expires.startswith("in ")
    await tab.page.get_by_role("link", name="alpha").click()
    await tab.heading("alpha")


async def test_a_broken_plan_hides_only_the_owners(queue: Queue, visitor: Visitor, tabs: Tabs) -> None:
    await lease_shards(queue)
    await queue.store.put(keys.SHARD_PLAN, b"{")
    tab = await tabs.open(visitor.dashboard.link, "/shards")
    await tab.shown("16 shards", "The owners of shards are not shown")
