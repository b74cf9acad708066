"""A version that is being built says on its pipeline's page what it waits for, and that it is stuck."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import feed
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.rebuilds import claim, fail, released, run, run_loops
from support.dispatcher.states import create_tables
from support.ui.browsers import Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

MONTHS = dag(
    "shop",
    source("orders"),
    source("months"),
    job("day", reads="orders"),
    job("month", reads=["months", {"job": "day", "trigger": False}]),
)


@pytest_asyncio.fixture(loop_scope="session")
async def link(tmp_path: Path, built: Assets) -> AsyncIterator[str]:
    """Version 2 is built beside version 1; its only day has failed, and its month waits for it."""
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    deployed(state, MONTHS)
    feed(state, live(loaded(state), "shop.orders"), "2024-01-01")
    run(state)
    feed(state, live(loaded(state), "shop.months"), "2024-01")
    run(state)
    staged(state, edited(MONTHS, "day", config={"v": 2}))
    run_loops(state)
    for each in released(state):
        fail(state, claim(state, each))
    run_loops(state)
    async with served(state, tmp_path) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["reader"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield visitor.dashboard.link
    state.close()


async def test_a_version_that_is_stuck_says_what_waits_for_which_failure(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, "/pipeline/shop")
    await expect(tab.page.get_by_text("stuck", exact=True)).to_be_visible()
    await expect(tab.page.get_by_text("1 task waits for failed tasks")).to_be_visible()
    waits = tab.page.get_by_role("listitem").filter(has_text="waits for side inputs")
    await expect(waits).to_contain_text("1 task of day failed")
    await expect(waits.locator("strong")).to_have_text("month")
