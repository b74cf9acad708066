"""What a job costs over time, on the timeline of the job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.states import create_tables
from support.ui.accessibility import AXE, violations
from support.ui.browsers import PHONE, Screenshots, Tabs
from support.ui.dashboards import visiting
from support.ui.shops import open_shop
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_timeline_of_a_job_shows_what_its_runs_took(
    tmp_path: Path, built: Assets, tabs: Tabs, screenshots: Screenshots
) -> None:
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    open_shop(state)
    async with served(state, tmp_path) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            route = "/pipeline/shop?view=timeline&job=clean"
            tab = await tabs.open(visitor.dashboard.link, route, bypass_csp=True)
            runs = tab.page.get_by_role("slider", name="Runs")
            await expect(runs).to_have_attribute("aria-valuetext", re.compile("4 runs, 2 failed$"))
            await tab.page.get_by_text("The same as a table").click()
            await tab.page.add_script_tag(path=AXE)
            assert await violations(tab) == []
            await screenshots.take(tab, "effort")
            phone = await tabs.open(visitor.dashboard.link, route, viewport=PHONE, has_touch=True, is_mobile=True)
            await expect(phone.page.get_by_role("slider", name="Worker time in all")).to_be_visible()
            assert await phone.wide() == 0
    state.close()
