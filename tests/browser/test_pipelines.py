"""The pages of pipelines, on a dispatcher."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from playwright.async_api import Route, expect

from qo.core import run_log
from qo.core.run_log import Line
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import Served, served
from support.dispatcher.states import create_tables
from support.ui.attacks import ATTEMPTS, EVIL, harmless
from support.ui.browsers import PERIOD_MS, Tabs
from support.ui.dashboards import Visitor, visiting
from support.ui.shops import DAYS, ERROR, Shop, open_shop, status_of
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT")


@dataclass(frozen=True)
class Place:
    state: State
    shop: Shop
    visitor: Visitor
    dispatcher: Served

    @property
    def link(self) -> str:
        return self.visitor.dashboard.link


@pytest_asyncio.fixture(loop_scope="session")
async def place(tmp_path: Path, built: Assets) -> AsyncIterator[Place]:
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    shop = open_shop(state)
    async with served(state, tmp_path) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield Place(state, shop, visitor, dispatcher)
    state.close()


async def test_every_page_of_pipelines_opens_from_a_link_and_shows_what_is_there(place: Place, tabs: Tabs) -> None:
    shop = place.shop
    pages: dict[str, tuple[str, list[str]]] = {
        "/pipelines": ("Pipelines", ["shop"]),
        "/": ("Pipelines", ["shop", "clean_orders", "Held back"]),
        "/queue": ("Overview", ["By status"]),
        "/pipeline/shop": ("shop", ["Jobs", "Versions"]),
        "/pipeline/shop?focus=clean": ("shop", ["Jobs near clean", "3 jobs of 4"]),
        "/pipeline/shop?view=partitions": ("shop", ["Partitions of version 1", "failed 2", "running 1"]),
        "/pipeline/shop?view=timeline": ("shop", ["The newest 15 runs", "How long they took"]),
        "/pipeline/shop?view=timeline&job=clean": ("shop", ["How long runs of clean took"]),
        "/pipeline/shop?view=versions": ("shop", ["Versions"]),
        "/datasets": ("Datasets", ["shop.orders", "shop.clean", "clean_orders"]),
        "/dataset/shop.clean": ("shop.clean", ["Generations", "2 partitions", "Last commits"]),
        f"/dataset/shop.clean?partition={DAYS[0]}": ("shop.clean", [f"Partition {DAYS[0]}", "1,234"]),
        "/runs": ("Runs", ["clean", "daily", ERROR]),
        "/runs?status=failed&dag=shop": ("Runs", [ERROR]),
        f"/run/{shop.made}": (DAYS[0], ["completed", "not_null amount"]),
        f"/run/{shop.failed}": (DAYS[2], ["failed", ERROR, "clean.py"]),
        f"/run/{shop.running}": (DAYS[4], ["running", "writing: 30 of 40 Spark tasks", "75 %"]),
        f"/why?target=shop.clean@{DAYS[0]}": ("Why does it exist", ["It exists."]),
        f"/why?target=shop.clean@{DAYS[2]}": ("Why does it exist", ["It is blocked", "What to do:", ERROR]),
        f"/why?target=shop.clean@{DAYS[4]}": ("Why does it exist", ["It is in progress"]),
        "/why?target=shop.clean@2030-01-01": ("Why does it exist", ["No event has ever announced it."]),
        f"/lineage/shop.clean?partition={DAYS[0]}": (f"Lineage of {DAYS[0]}", ["shop.orders", "shop.daily"]),
        "/quality": ("Quality", ["not_null amount", "good enough"]),
        "/backfills": ("Backfills", ["No backfill was started"]),
        "/backpressure": ("Backpressure", ["Held back", "Clears when", "spark", "python", "orders"]),
    }
    tab = await tabs.open(place.link, "/pipelines")
    for number, (route, (heading, texts)) in enumerate(pages.items()):
        await (tab.go(route) if number % 4 else tab.open(place.link, route))
        await tab.heading(re.compile(re.escape(heading)))
        await tab.shown(*texts)
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
async def test_a_run_is_found_by_its_id(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/runs")
    await tab.page.get_by_label("Id").fill(place.shop.failed)
    await tab.page.get_by_label("Id").press("Enter")
    await tab.heading(DAYS[2])


async def test_the_graph_has_a_node_for_each_job_with_its_state_and_leads_to_it(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/pipeline/shop")
    nodes = tab.page.locator("svg g.node")
    await expect(nodes).to_have_count(4)
    await expect(tab.page.locator("svg path.edge")).to_have_count(3)
    clean = nodes.filter(has_text="clean").first
    await expect(clean.locator("title").first).to_contain_text("2 completed")
    await expect(clean.locator("title").first).to_contain_text("2 failed")
    await clean.click()
    await expect(tab.page).to_have_url(re.compile(r"#/(runs|dataset)"))
    await tab.shown("clean")


async def test_the_column_of_a_day_shows_where_it_got_stuck(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/pipeline/shop?view=partitions")
    failed = tab.page.get_by_role("link", name=re.compile(rf"^clean@{DAYS[2]}: failed"))
    await expect(failed).to_be_visible()
    await expect(tab.page.get_by_role("link", name=re.compile(rf"^orders@{DAYS[2]}: done"))).to_be_visible()
    await failed.click()
    await tab.heading(DAYS[2])
    await tab.shown(ERROR)


async def test_the_timeline_tells_waiting_from_running_and_leads_to_the_run(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/pipeline/shop?view=timeline")
    await expect(tab.page.locator(".gantt-job")).to_have_count(4)
    running = tab.page.get_by_role("link", name=re.compile(rf"^clean {DAYS[4]}: running, waited .*, ran "))
    await expect(running.locator(".work")).not_to_have_count(0)
    await running.click()
    await tab.heading(DAYS[4])


async def test_one_key_finds_whatever_has_a_name(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/quality")
    await tab.heading("Quality")
    await tab.page.keyboard.press("/")
    field = tab.page.get_by_role("textbox", name="Search")
    await expect(field).to_be_focused()
    await field.fill("daily")
    await expect(
        tab.page.get_by_role("dialog").get_by_role("link", name=re.compile("^job shop.daily "))
    ).to_be_visible()
    await field.press("Enter")
    await expect(tab.page).to_have_url(re.compile(r"#/pipeline/shop\?focus=daily"))
    await tab.page.keyboard.press("/")
    await field.fill(place.shop.failed)
    await expect(
        tab.page.get_by_role("dialog").get_by_role("link", name=re.compile("^task shop.clean "))
    ).to_be_visible()
    await field.press("Enter")
    await tab.heading(DAYS[2])


async def test_the_lineage_says_of_each_piece_which_run_has_made_it(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, f"/lineage/shop.clean?partition={DAYS[0]}")
    runs = tab.page.locator("tbody tr td:last-child a")
    await expect(runs).to_have_count(3)  # Of orders, clean and daily.
    await tab.page.locator(f"tbody a[href$='/run/{place.shop.made}']").click()
    await tab.heading(DAYS[0])
    await tab.shown("completed")


async def test_a_failed_run_is_replayed_and_a_running_one_is_asked_to_stop(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, f"/run/{place.shop.refused}")
    await tab.page.get_by_role("button", name="Replay").first.click()
    await tab.page.get_by_role("dialog").locator("button[type=submit]").click()
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)
    await tab.shown("pending")
    assert status_of(place.state, place.shop.refused) == "pending"
    await tab.page.get_by_role("button", name="Cancel").first.click()
    await tab.page.get_by_role("dialog").get_by_role("textbox").fill("a test changed its mind")
    await tab.page.get_by_role("dialog").locator("button[type=submit]").click()
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)
    await tab.shown("cancelled")
    assert status_of(place.state, place.shop.refused) == "cancelled"


async def test_a_backfill_is_started_followed_and_cancelled(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/backfills")
    await tab.page.get_by_role("combobox", name="Pipeline").select_option("shop")
    await tab.page.get_by_role("combobox", name="Job").select_option("clean")
    await tab.page.get_by_label("From key").fill(DAYS[0])
    await tab.page.get_by_label("To key").fill(DAYS[1])
    await tab.page.get_by_role("button", name="Start…").click()
    await tab.page.get_by_role("button", name="Build them again").click()
    await expect(tab.page.get_by_role("status")).to_contain_text("a backfill of 2 partitions has begun")
    await tab.shown(f"{DAYS[0]} to {DAYS[1]}", "0 of 2 partitions")
    await tab.page.get_by_role("button", name="Cancel").click()
    await tab.page.get_by_role("dialog").locator("button[type=submit]").click()
    await expect(tab.page.get_by_role("status")).to_contain_text("the backfill was cancelled")
    backfills = (await place.dispatcher.get("/v1/backfills", "reader")).json()["backfills"]
    assert [(each["job"], each["state"]) for each in backfills] == [("clean", "cancelled")]


def write_log(place: Place, task_id: str, *lines: Line) -> None:
    """As a worker does."""
    attempts = schema.attempts
    with place.state.read() as tx:
        row = tx.one(sa.select(attempts).where(attempts.c.task_id == task_id))
    assert row is not None
    root = Path(place.dispatcher.context.settings.dispatcher.data.removeprefix("file:"))
    path = root / run_log.prefix_of(task_id, row["attempt"], row["started_at"]) / run_log.name_of(lines[0].n)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(run_log.encode, lines)))


async def test_the_log_of_a_run_is_shown_while_it_runs_and_stays_text(place: Place, tabs: Tabs) -> None:
    running, ended = place.shop.running, place.shop.made
    write_log(place, running, Line(1, 0.5, "stdout", "reading <b>three</b> files"))
    write_log(place, ended, Line(1, 1.0, "log", "all is well", "warning", "shop"), Line(9, 2.0, "stderr", "done"))
    tab = await tabs.open(place.link, f"/run/{running}")
    log = tab.page.get_by_role("log")
    await expect(log).to_contain_text("00:00:00.500  stdout  reading <b>three</b> files")
    await tab.shown("still running")
    write_log(place, running, Line(2, 0.6, "stdout", "it goes on"))
    await expect(log).to_contain_text("it goes on")  # By itself, some seconds later.
    await tab.go(f"/run/{ended}")
    await expect(log).to_contain_text("warning shop  all is well")
    await expect(log).to_contain_text("7 lines not kept")
    await tab.go(f"/run/{place.shop.failed}")
    await tab.shown("Nothing was printed or logged")
    await expect(tab.page.get_by_role("alert")).to_have_count(0)


async def test_a_pipeline_is_paused_and_resumed(place: Place, tabs: Tabs) -> None:
    async def paused() -> bool:
        return (await place.dispatcher.get("/v1/dags", "reader")).json()["dags"][0]["paused"] is not None

    tab = await tabs.open(place.link, "/pipeline/shop")
    for verb, after in (("Pause", True), ("Resume", False)):
        await tab.page.get_by_role("button", name=verb, exact=True).click()
        await tab.page.get_by_role("dialog").locator("button[type=submit]").click()
        await expect(tab.page.get_by_role("dialog")).to_have_count(0)
        assert await paused() is after


async def test_who_may_only_look_is_offered_no_change_of_a_pipeline(place: Place, tabs: Tabs) -> None:
    upstream = Upstream(place.dispatcher.addresses.public, place.dispatcher.tokens["reader"])
    async with visiting(MemoryStore(), dispatcher=upstream, read_only=True) as viewer:
        tab = await tabs.open(viewer.dashboard.link, "/pipeline/shop")
        await tab.shown("Jobs")
        await expect(tab.page.get_by_role("button", name="Pause", exact=True)).to_have_count(0)
        await tab.go(f"/run/{place.shop.failed}")
        await tab.shown(ERROR)
        await expect(tab.page.get_by_role("button", name="Replay")).to_have_count(0)


async def test_a_dispatcher_that_does_not_answer_is_named(tabs: Tabs) -> None:
    async with visiting(MemoryStore(), dispatcher=Upstream("http://127.0.0.1:9", None)) as visitor:
        tab = await tabs.open(visitor.dashboard.link, "/pipelines")
        await expect(tab.page.get_by_role("alert")).to_contain_text("does not answer")


@pytest.mark.long
async def test_an_open_question_never_becomes_another_one(place: Place, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(place.link, "/pipeline/shop")
    await tab.page.get_by_role("button", name="Pause", exact=True).click()
    question = tab.page.get_by_role("dialog")
    await expect(question).to_contain_text("Pause this pipeline?")
    await place.dispatcher.post("/v1/dags/shop/pause", "writer", json={"reason": "somebody was quicker"})
    await tab.page.clock.fast_forward(PERIOD_MS)
    await tab.shown("Paused: somebody was quicker")
    await expect(question).to_have_count(0)  # Who says yes now would resume it.
    await place.dispatcher.post("/v1/dags/shop/resume", "writer")


@pytest.mark.long
async def test_the_field_of_a_question_goes_back_with_its_answer(place: Place, tabs: Tabs) -> None:
    first, second = "shop.totals@2026-03-01", "shop.clean@2026-03-02"
    tab = await tabs.new()
    await tab.open(place.link, f"/why?target={first}")
    field = tab.page.get_by_label(re.compile("^A dataset"))
    await expect(field).to_have_value(first)
    await field.fill(second)
    await field.press("Enter")
    await expect(tab.page).to_have_url(re.compile("clean"))
    await tab.page.go_back()
    await expect(tab.page).to_have_url(re.compile("totals"))
    await expect(field).to_have_value(first)


@pytest.mark.long
async def test_a_dispatcher_that_went_away_is_named_and_found_when_it_is_back(place: Place, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(place.link, "/pipelines")
    await tab.shown("shop")
    for route in ("/pipelines", "/pipeline/shop", "/datasets", "/runs", "/quality", "/backpressure"):
        await tab.go(route)
        await tab.quiet()
        await tab.page.route("**/v1/**", lambda route: route.abort())
        await tab.page.clock.fast_forward(PERIOD_MS)
        await expect(tab.page.get_by_role("alert")).to_contain_text("No answer from")
        await expect(tab.page.get_by_role("alert")).to_contain_text("the state of the last successful refresh")
        await tab.page.unroute("**/v1/**")
        await tab.page.clock.fast_forward(PERIOD_MS)
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.long
async def test_without_the_part_that_draws_graphs_the_rest_of_the_page_is_there(place: Place, tabs: Tabs) -> None:
    tab = await tabs.new()
    await tab.page.route("**/assets/layout-*", lambda route: route.abort())  # As after another was deployed.
    await tab.open(place.link, "/pipeline/shop")
    await expect(tab.page.get_by_role("alert")).to_contain_text("Reload the page")
    await tab.shown("Versions")


async def test_whatever_a_dispatcher_says_stays_text(place: Place, tabs: Tabs) -> None:
    """Names of pipelines, datasets and partitions, errors, reasons, words: each with a script behind it."""

    async def spoil(route: Route) -> None:
        said = await route.fetch()
        await route.fulfill(response=said, json=spoilt(await said.json()))

    # Without the policy of the page: it must not be needed.
    tab = await tabs.open(place.link, "/nowhere", bypass_csp=True)
    await tab.page.route("**/v1/**", spoil)
    shop = place.shop
    for route in (
        "/pipelines",
        "/pipeline/shop",
        "/datasets",
        "/dataset/shop.clean",
        f"/dataset/shop.clean?partition={DAYS[0]}",
        "/runs",
        f"/run/{shop.made}",
        f"/run/{shop.failed}",
        f"/run/{shop.running}",
        f"/why?target=shop.clean@{DAYS[2]}",
        f"/lineage/shop.clean?partition={DAYS[0]}",
        "/quality",
        "/backpressure",
    ):
        await tab.go(route)
        await tab.quiet()
        await harmless(tab)
        await expect(tab.page.locator("main").get_by_text("cannot be shown")).to_have_count(0)
        assert ATTEMPTS[0] in await tab.page.locator("main").inner_text(), route


def spoilt(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: spoilt(value) for name, value in said.items()}
    if isinstance(said, list):
        return [spoilt(value) for value in said]
    return said if not isinstance(said, str) or MOMENT.match(said) else f"{said} {EVIL}"
