"""What the page of a dataset says of columns, and how rows, nulls and quality moved: by pointer, by key and aloud."""

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
from support.dispatcher.states import create_tables
from support.ui.browsers import PHONE, Screenshots, Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.shops import DAYS, open_shop
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLEAN = "/dataset/shop.clean"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def link(tmp_path_factory: pytest.TempPathFactory, built: Assets) -> AsyncIterator[str]:
    directory = tmp_path_factory.mktemp("statistics")
    state = open_state(f"sqlite:{directory / 'state.db'}")
    create_tables(state)
    open_shop(state)
    async with served(state, directory) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield visitor.dashboard.link
    state.close()


async def words_of(tab: Tab, column: str) -> list[str]:
    table = tab.page.locator("table").filter(has_text="made from")
    row = table.locator("tr").filter(has=tab.page.get_by_role("cell", name=column, exact=True))
    return [" ".join(text.split()) for text in await row.locator("td").all_inner_texts()]


async def test_each_column_says_what_is_known_of_its_values(
    link: str, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.open(link, CLEAN)
    await tab.shown("99.25")
    await tab.quiet()
    assert (await words_of(tab, "amount"))[1:6] == ["double", "1 < 0.1 %", "", "-1.5", "99.25"]
    assert (await words_of(tab, "id"))[2:6] == ["0", "", "aa01", "zz99"]
    assert (await words_of(tab, "day"))[4:6] == ["2026-03-01", "2026-03-02"]
    listed = tab.page.get_by_role("cell", name="amount", exact=True)
    assert await listed.count() == 1, "rows cannot be read here, and columns are listed once all the same"
    await screenshots.take(tab, "statistics-light")
    await tab.page.emulate_media(color_scheme="dark")
    await screenshots.take(tab, "statistics-dark")


async def test_charts_are_read_by_key_and_aloud_and_lead_to_what_they_show(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, CLEAN)
    rows = tab.page.get_by_role("slider", name="Rows")
    await expect(rows).to_have_attribute("aria-valuetext", f"{DAYS[3]}, rejected: 10 rows rejected")
    await rows.focus()
    await tab.page.keyboard.press("Home")
    await expect(rows).to_have_attribute("aria-valuetext", f"{DAYS[0]}: 1,234 rows")
    await expect(rows).to_have_attribute("aria-valuenow", "1")
    # All charts show the same point.
    nulls = tab.page.get_by_role("slider", name="Nulls")
    await expect(nulls).to_have_attribute("aria-valuetext", f"{DAYS[0]}: 0 nulls")
    await tab.page.keyboard.press("ArrowRight")
    await expect(nulls).to_have_attribute("aria-valuetext", f"{DAYS[1]}: 1 null")
    await expect(tab.page.get_by_role("slider", name="Expectations")).to_have_attribute(
        "aria-valuetext", f"{DAYS[1]}: 1 passed"
    )
    await tab.page.keyboard.press("Enter")
    await expect(tab.page).to_have_url(re.compile(f"partition={DAYS[1]}"))


async def test_a_table_with_the_same_figures_is_behind_the_charts(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, CLEAN)
    await tab.page.get_by_text("The same as a table").click()
    table = tab.page.locator("#trend-table")
    await expect(table.locator("tbody tr")).to_have_count(3)
    await expect(table.locator("tbody tr").first).to_contain_text("1 failed")
    await expect(table.get_by_role("row", name=DAYS[1])).to_contain_text("1,234")


async def test_a_trend_by_partition_and_of_one_column_has_an_address(link: str, tabs: Tabs) -> None:
    tab = await tabs.open(link, CLEAN)
    await tab.page.get_by_role("button", name="partition", exact=True).click()
    await expect(tab.page.get_by_role("heading", name="Over the last partitions")).to_be_visible()
    await tab.page.get_by_label("Nulls of").select_option("amount")
    nulls = tab.page.get_by_role("slider", name="Nulls of amount")
    await expect(nulls).to_have_attribute("aria-valuetext", f"{DAYS[1]}: 1 null")
    address = tab.page.url.partition("#")[2]
    again = await tabs.open(link, address)
    await expect(again.page.get_by_role("slider", name="Nulls of amount")).to_be_visible()


async def test_statistics_are_asked_for_again_only_after_a_commit(link: str, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(link, CLEAN)
    await tab.shown("99.25")
    await tab.quiet()
    for _ in range(3):
        await tab.page.clock.fast_forward(7_000)
        await tab.quiet()
    assert sum("/columns?" in each.url or each.url.endswith("/columns") for each in tab.asked) == 1


async def test_charts_fit_a_phone_and_answer_to_a_finger(link: str, tabs: Tabs, screenshots: Screenshots) -> None:
    tab = await tabs.open(link, CLEAN, viewport=PHONE, has_touch=True, is_mobile=True)
    rows = tab.page.get_by_role("slider", name="Rows")
    await tab.quiet()
    box = await rows.bounding_box()
    assert box is not None
    await rows.locator("svg").tap(position={"x": 5, "y": 30})
    await expect(rows).to_have_attribute("aria-valuetext", f"{DAYS[0]}: 1,234 rows")
    assert await tab.wide() == 0
    await screenshots.take(tab, "statistics-phone")
