"""Jobs of a group stand together: in the list with their sum, and in the graph as one node that opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import feed, route_all
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import create_tables
from support.ui.accessibility import AXE, violations
from support.ui.browsers import PHONE, Screenshots, Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOP = dag(
    "shop",
    source("orders", group="intake"),
    job("clean", reads="orders", group="intake"),
    job("daily", reads="clean", group="reports"),
    job("monthly", reads="daily", group="reports"),
    job("alert", reads="daily", outputs=0),
)


async def test_jobs_of_a_group_stand_together(
    tmp_path: Path, built: Assets, tabs: Tabs, screenshots: Screenshots
) -> None:
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    feed(state, live(deployed(state, SHOP), "shop.orders"), "2026-03-01")
    route_all(state)
    async with served(state, tmp_path) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            link = visitor.dashboard.link
            tab = await tabs.open(link, "/pipeline/shop", bypass_csp=True)
            await tab.quiet()
            table = tab.page.locator("table").filter(has_text="reads")
            rows = [
                text.split("\n")[0].split("\t")[0] for text in await table.locator("tbody tr").all_inner_texts()
            ]
            assert rows == [
                "intake 2 jobs, 1 pending",
                "clean",
                "orders",
                "reports 2 jobs",
                "daily",
                "monthly",
                "in no group 1 job",
                "alert",
            ]
            await tab.page.get_by_role("button", name="groups").click()
            nodes = tab.page.locator(".graph .node")
            await expect(nodes).to_have_count(3)
            await screenshots.take(tab, "groups-closed")
            await tab.page.add_script_tag(path=AXE)
            assert await violations(tab) == []
            await tab.page.get_by_role("link", name="intake").click()
            await expect(nodes).to_have_count(4)
            phone = await tabs.open(
                link, "/pipeline/shop?groups=on", viewport=PHONE, has_touch=True, is_mobile=True
            )
            await phone.quiet()
            assert await phone.wide() == 0
            await screenshots.take(phone, "groups-phone")
    state.close()
