"""How every page looks: to a screen reader, in light and dark, on a phone; and what it weighs."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import expect

from qo.dispatcher.state.database import open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import STATIC, Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.states import create_tables
from support.ui.accessibility import AXE, violations
from support.ui.browsers import PHONE, Screenshots, Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.shops import DAYS, open_shop
from support.ui.showcases import WORKER, fill, queue_on

GZIPPED_MAX = 300_000

in_browser = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Place:
    link: str
    routes: dict[str, str]  # By the name of the picture.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(tmp_path_factory: pytest.TempPathFactory, built: Assets) -> AsyncIterator[Place]:
    directory = tmp_path_factory.mktemp("looks")
    state = open_state(f"sqlite:{directory / 'state.db'}")
    create_tables(state)
    shop = open_shop(state)
    async with served(state, directory) as dispatcher, await queue_on(MemoryStore()) as queue:
        there = await fill(queue)
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            routes = {
                "home": "/",
                "overview": "/queue",
                "tasks": "/tasks",
                "task-failed": f"/task/{there.failed}",
                "task-running": f"/task/{there.running}",
                "failures": "/failures",
                "shards": "/shards",
                "workers": "/workers",
                "worker": f"/worker/{WORKER}",
                "schedules": "/schedules",
                "pipelines": "/pipelines",
                "pipeline": "/pipeline/shop",
                "neighbours": "/pipeline/shop?focus=clean",
                "grid": "/pipeline/shop?view=partitions",
                "timeline": "/pipeline/shop?view=timeline",
                "timeline-job": "/pipeline/shop?view=timeline&job=clean",
                "datasets": "/datasets",
                "dataset": "/dataset/shop.clean",
                "partition": f"/dataset/shop.clean?partition={DAYS[0]}",
                "runs": "/runs",
                "run": f"/run/{shop.running}",
                "run-failed": f"/run/{shop.failed}",
                "why": f"/why?target=shop.clean@{DAYS[2]}",
                "lineage": f"/lineage/shop.clean?partition={DAYS[0]}",
                "quality": "/quality",
                "backfills": "/backfills?dag=shop",
                "backpressure": "/backpressure",
                "nowhere": "/nowhere",
            }
            yield Place(visitor.dashboard.link, routes)
    state.close()


async def settled(tab: Tab, route: str) -> None:
    """The page is there, and has all that it asked for."""
    await tab.go(route)
    await tab.page.evaluate("new Promise(requestAnimationFrame)")
    await expect(tab.page.locator(".loading")).to_have_count(0)
    await expect(tab.page.get_by_role("alert")).to_have_count(0)
    await tab.quiet(0.1)


@pytest.mark.long
@in_browser
async def test_no_page_has_a_fault_that_axe_knows_of_in_light_or_dark(
    place: Place, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.open(place.link, color_scheme="light", bypass_csp=True)  # The policy refuses foreign scripts.
    await tab.page.add_script_tag(path=AXE)
    wrong: dict[str, list[str]] = {}
    for name, route in place.routes.items():
        await settled(tab, route)
        await screenshots.take(tab, f"{name}-light")
        found = await violations(tab)
        await tab.page.emulate_media(color_scheme="dark")
        await screenshots.take(tab, f"{name}-dark")
        found += await violations(tab, "color-contrast")  # Nothing else differs.
        await tab.page.emulate_media(color_scheme="light")
        if found:
            wrong[name] = found
    assert wrong == {}


@in_browser
async def test_a_fault_would_be_noticed(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, bypass_csp=True, viewport=PHONE)
    await tab.page.add_script_tag(path=AXE)
    await settled(tab, "/workers")
    assert (await violations(tab), await tab.wide()) == ([], 0)
    await tab.page.evaluate(
        "document.getElementById('content').insertAdjacentHTML('beforeend',"
        ' \'<img src="icon.svg"><p style="color: #ccc; background: #ddd; width: 500px">pale</p>\')'
    )
    found = " ".join(await violations(tab))
    assert "image-alt" in found
    assert "color-contrast" in found
    assert await tab.wide() > 0


@in_browser
@pytest.mark.long
async def test_what_asks_and_what_explains_has_no_fault_that_axe_knows_of(
    place: Place, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.open(place.link.partition("#")[0], bypass_csp=True)
    await tab.page.add_script_tag(path=AXE)
    await tab.page.get_by_role("textbox").fill("no credentials")
    await tab.page.get_by_role("button", name="Open").click()
    await expect(tab.page.get_by_role("alert")).to_be_visible()
    await screenshots.take(tab, "gate")
    assert await violations(tab) == []
    await tab.page.get_by_role("textbox").fill(place.link)
    await tab.page.get_by_role("button", name="Open").click()
    await expect(tab.page.get_by_role("button", name="Open")).to_have_count(0)  # Else it leads elsewhere.
    await settled(tab, place.routes["task-failed"])
    await tab.page.get_by_role("button", name="Replay").click()
    await screenshots.take(tab, "question")
    assert await violations(tab) == []
    await tab.page.keyboard.press("Escape")
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)
    await tab.page.keyboard.press("?")
    await expect(tab.page.get_by_role("dialog")).to_be_visible()
    await screenshots.take(tab, "keys")
    assert await violations(tab) == []


@pytest.mark.long
@in_browser
async def test_on_a_phone_no_page_has_to_be_pushed_sideways(
    place: Place, tabs: Tabs, screenshots: Screenshots
) -> None:
    tab = await tabs.open(place.link, viewport=PHONE, has_touch=True, is_mobile=True)
    wide: dict[str, int] = {}
    for name, route in place.routes.items():
        await settled(tab, route)
        await screenshots.take(tab, f"{name}-phone")
        if more := await tab.wide():
            wide[name] = more
    assert wide == {}


@pytest.mark.fast
def test_the_page_weighs_less_than_three_hundred_kilobytes() -> None:
    if not (STATIC / "index.html").exists():
        pytest.skip("the page has not been built: make ui")
    files = [each for each in STATIC.rglob("*") if each.is_file()]
    sizes = {str(each.relative_to(STATIC)): len(gzip.compress(each.read_bytes())) for each in files}
    assert sum(sizes.values()) < GZIPPED_MAX, sizes
    assert not any(name.endswith(".map") for name in sizes)
