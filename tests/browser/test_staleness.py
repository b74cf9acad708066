"""What is stale says so on the pages, and what refreshes it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import deployed
from support.dispatcher.stale_pipelines import announce, calendar, run_all
from support.dispatcher.states import create_tables
from support.ui.browsers import Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

MONTH = "2026-03"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def link(tmp_path_factory: pytest.TempPathFactory, built: Assets) -> AsyncIterator[str]:
    """A month, and one of its days that was committed again since."""
    directory = tmp_path_factory.mktemp("shop")
    state = open_state(f"sqlite:{directory / 'state.db'}")
    create_tables(state)
    deployed(state, calendar())
    for name, keys in (("days", ["2026-03-01", "2026-03-02"]), ("months", [MONTH]), ("days", ["2026-03-02"])):
        announce(state, f"shop.{name}", *keys)
        run_all(state)
    async with served(state, directory) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield visitor.dashboard.link
    state.close()


async def test_a_stale_partition_says_so_and_what_refreshes_it(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, f"/dataset/shop.month?partition={MONTH}")
    await expect(tab.page.get_by_text("1 partition, 1 stale")).to_be_visible()
    reason = "day has changed since (2026-03-02 was committed again"
    stale = tab.page.locator(".heat a.stale")
    await expect(stale).to_have_accessible_name(re.compile("stale: " + re.escape(reason)))
    await expect(tab.page.locator("dl.facts").get_by_text(reason)).to_be_visible()
    await tab.page.get_by_role("link", name="What refreshes it?").click()
    await tab.heading("Why does it exist, or not?")
    await expect(tab.page.get_by_text("It exists, and is stale.")).to_be_visible()
    await expect(tab.page.get_by_text(reason).first).to_be_visible()
    await expect(tab.page.get_by_text(f"qo backfill shop.month --from {MONTH} --to {MONTH}")).to_be_visible()


async def test_what_is_not_stale_says_nothing_of_it(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, "/dataset/shop.day?partition=2026-03-01")
    await expect(tab.page.get_by_text("2 partitions", exact=True)).to_be_visible()
    await expect(tab.page.locator(".heat a.stale")).to_have_count(0)
