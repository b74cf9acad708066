"""A pipeline of twenty jobs and a hundred thousand partitions: all at once, down to each cell, in a small page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Response, expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.states import create_tables
from support.dispatcher.wide_pipelines import add_open_work, fill_wide, key
from support.ui.accessibility import AXE, violations
from support.ui.browsers import PERIOD_MS, PHONE, Screenshots, Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import queue_on

pytestmark = [pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

PARTITIONS, JOBS, LAG = 100_000, 20, 5_000
GRID = "/pipeline/wide?view=partitions"
NODES_MAX = 4_500  # Of which the table of sixty keys has most: twenty jobs, a square and its cell for each key.
ANSWER_BYTES_MAX = 180_000


@asynccontextmanager
async def opened(directory: Path, partitions: int, jobs: int, lag: int) -> AsyncIterator[str]:
    """The link to a dashboard of such a pipeline."""
    state = open_state(f"sqlite:{directory / 'state.db'}")
    create_tables(state)
    fill_wide(state, partitions, jobs, lag)
    add_open_work(state, [key(n) for n in range(partitions - lag, partitions - lag + 40)], failed=6, running=4)
    async with served(state, directory) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield visitor.dashboard.link
    state.close()
    (directory / "state.db").unlink()  # It takes some hundred megabytes.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def link(tmp_path_factory: pytest.TempPathFactory, built: Assets) -> AsyncIterator[str]:
    async with opened(tmp_path_factory.mktemp("wide"), PARTITIONS, JOBS, LAG) as link:
        yield link


def map_of(tab: Tab) -> Locator:
    return tab.page.get_by_role("grid", name="Ranges of partitions over jobs")


async def cell(tab: Tab) -> str:
    """What a screen reader says of the cell that has the focus."""
    name = await map_of(tab).get_attribute("aria-activedescendant")
    return await tab.page.locator(f"#{name}").inner_text()


def asked(tab: Tab, begin: int = 0) -> list[str]:
    return [each.url for each in tab.asked[begin:] if "/v1/" in each.url]


async def nodes(tab: Tab) -> int:
    return await tab.page.evaluate("document.getElementsByTagName('*').length")


async def test_more_keys_than_the_table_has_are_shown_as_ranges_above_it(
    tmp_path: Path, built: Assets, tabs: Tabs
) -> None:
    async with opened(tmp_path, 200, 3, 50) as link:
        tab = await tabs.open(link, GRID)
        await tab.shown("All partitions of version 1: 200 keys")
        await expect(tab.page.locator("table.grid thead th")).to_have_count(1 + 60)
        await map_of(tab).focus()
        await tab.page.keyboard.press("Home")
        await tab.page.keyboard.press("Enter")
        # Ranges of three keys, of which the oldest has what is left over.
        await expect(tab.page.locator("table.grid thead th")).to_have_count(1 + 2)
        await tab.shown("Chosen partitions of version 1: 2 keys")
        assert await cell(tab) == "orders, k000000: 1 done"
        await expect(map_of(tab)).to_be_focused()
        await tab.page.keyboard.press("Enter")
        await tab.heading("wide.orders")
        await tab.page.go_back()
        await tab.page.get_by_role("link", name="All partitions").click()
        await tab.shown("All partitions of version 1: 200 keys")


@pytest.mark.long
async def test_all_partitions_are_shown_at_once_by_few_requests_and_few_elements(
    link: str, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.new(clock=True)
    answers: list[int] = []

    async def measure(response: Response) -> None:
        if "/grid" in response.url:
            answers.append(len(await response.body()))

    tab.page.on("response", measure)
    await tab.open(link, GRID)
    await expect(map_of(tab)).to_be_visible()
    await tab.quiet()
    await tab.shown("All partitions of version 1: 100,000 keys")
    assert sum("/grid/ranges" in url for url in asked(tab)) == 1
    assert len(asked(tab)) <= 8
    assert await nodes(tab) < NODES_MAX
    begin = len(tab.asked)
    for _ in range(3):
        await tab.page.clock.fast_forward(PERIOD_MS)
        await tab.quiet()
    assert not any("/grid/ranges" in url for url in asked(tab, begin)), (
        "what took long to count is not asked for each time"
    )
    assert len(asked(tab, begin)) <= 3 * 5
    assert max(answers) < ANSWER_BYTES_MAX
    await screenshots.take(tab, "ranges-light")
    await tab.page.emulate_media(color_scheme="dark")
    await tab.page.clock.fast_forward(100)
    await screenshots.take(tab, "ranges-dark")


@pytest.mark.long
async def test_keys_walk_through_ranges_and_open_them_down_to_a_cell(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, GRID)
    await map_of(tab).focus()
    await tab.page.keyboard.press("Home")
    assert await cell(tab) == "orders, k000000 to k001249, 1,250 keys: 1,250 done"
    await tab.page.keyboard.press("End")
    await tab.page.keyboard.press("ArrowDown")
    assert "step_01" in await cell(tab)
    for _ in range(4):
        await tab.page.keyboard.press("ArrowLeft")
    assert await cell(tab) == "step_01, k093750 to k094999, 1,250 keys: 1,250 done"
    await tab.page.keyboard.press("ArrowRight")
    text = "step_01, k095000 to k096249, 1,250 keys: 4 running, 30 waiting, 6 failed"
    assert await cell(tab) == text
    begin = len(tab.asked)
    await tab.page.keyboard.press("Enter")
    await tab.shown("Chosen partitions of version 1: 1,250 keys")
    assert sum("/grid" in url for url in asked(tab, begin)) == 2
    assert await cell(tab) == "step_01, k095000 to k095001, 2 keys: 2 failed"
    await tab.page.keyboard.press("ArrowRight")
    assert await cell(tab) == "step_01, k095002 to k095017, 16 keys: 4 running, 8 waiting, 4 failed"
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.locator("table.grid thead th")).to_have_count(17)
    await expect(tab.page.locator("table.grid .c-failed")).to_have_count(4)
    await expect(tab.page.locator("table.grid td.chosen")).to_have_count(1)
    await tab.page.keyboard.press("Escape")
    await tab.shown("All partitions of version 1: 100,000 keys")
    await expect(map_of(tab)).to_be_focused()


@pytest.mark.long
async def test_a_range_and_a_cell_have_an_address(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, GRID)
    await map_of(tab).focus()
    await tab.page.keyboard.press("ArrowDown")
    await tab.page.keyboard.press("PageDown")
    here = await cell(tab)
    await expect(tab.page).to_have_url(re.compile("job=step_01&key=k0"))
    again = await tabs.open(link, tab.page.url.partition("#")[2])
    await expect(map_of(again)).to_be_visible()
    assert await cell(again) == here
    inside = await tabs.open(link, f"{GRID}&from=k050000&to=k050016&job=step_03&key=k050004")
    await inside.shown("Chosen partitions of version 1: 16 keys")
    assert await cell(inside) == "step_03, k050004: 1 done"
    await expect(inside.page.locator("td.chosen a")).to_have_attribute(
        "title", re.compile("^step_03@k050004: done")
    )
    assert await nodes(inside) < NODES_MAX


@pytest.mark.long
async def test_the_pointer_reads_a_cell_and_opens_it(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, GRID)
    await expect(map_of(tab)).to_be_visible()
    await tab.quiet()
    begin = len(tab.asked)
    canvas = tab.page.locator(".ranges-map canvas")
    box = await canvas.bounding_box()
    assert box is not None
    for n in range(40):  # A hand that moves about asks for nothing.
        await tab.page.mouse.move(box["x"] + 5 + n * 15, box["y"] + 10 + n)
    assert asked(tab, begin) == []
    await tab.page.mouse.move(box["x"] + 2, box["y"] + 30)
    await expect(tab.page.locator(".ranges-read")).to_have_text(
        "step_01, k000000 to k001249, 1,250 keys: 1,250 done"
    )
    await tab.page.mouse.click(box["x"] + 2, box["y"] + 30)
    await tab.shown("Chosen partitions of version 1: 1,250 keys")


@pytest.mark.long
async def test_ranges_have_no_fault_that_axe_knows_of_in_light_or_dark(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, GRID, color_scheme="light", bypass_csp=True)
    await tab.page.add_script_tag(path=AXE)
    await expect(map_of(tab)).to_be_visible()
    await tab.page.get_by_text("By job, as a table").click()
    found = await violations(tab)
    await tab.page.emulate_media(color_scheme="dark")
    assert found + await violations(tab, "color-contrast") == []


@pytest.mark.long
async def test_ranges_fit_a_phone_and_a_finger_chooses_before_it_opens(
    link: str, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.open(link, GRID, viewport=PHONE, has_touch=True, is_mobile=True)
    await expect(map_of(tab)).to_be_visible()
    await tab.quiet()
    canvas = tab.page.locator(".ranges-map canvas")
    await canvas.tap(position={"x": 3, "y": 30})
    await tab.shown("step_01, k000000 to k004158")
    assert await tab.wide() == 0
    await screenshots.take(tab, "ranges-phone")
    await tab.page.get_by_role("link", name="Open k000000").click()
    await tab.shown("Chosen partitions of version 1: 4,159 keys")
