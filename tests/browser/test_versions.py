"""Which version of a pipeline serves: activated and rolled back from its page, by the real API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, expect

from qo.api.contract.task import Outcome
from qo.dispatcher.engine.loops import reconciler
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.versions import cutover
from qo.store.memory import MemoryStore
from qo.ui.assets import Assets
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import all_of, claimed, feed, finish, route_all, settle, tasks_of
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import create_tables
from support.ui.browsers import Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEA = dag("tea", source("leaves"), job("brew", reads="leaves", max_attempts=1), publish={"cups": "brew"})
STRONGER = edited(TEA, "brew", config={"minutes": 5})
DAYS = ["2026-03-01", "2026-03-02"]


@dataclass(frozen=True)
class Place:
    state: State
    link: str

    def versions(self) -> dict[int, str]:
        """What the dispatcher has written down of each."""
        return {each["number"]: each["status"] for each in all_of(self.state, schema.dag_versions)}

    def serving(self) -> str | None:
        """The generation that readers of the published dataset get."""
        brew = live(loaded(self.state), "tea.brew", self.active())
        return brew.outputs[0].generation_id

    def active(self) -> int:
        return next(number for number, status in self.versions().items() if status == "active")


@pytest_asyncio.fixture(loop_scope="session")
async def place(tmp_path: Path, built: Assets) -> AsyncIterator[Place]:
    """Version 1 serves two days; version 2 is staged beside it, and has made nothing yet."""
    state = open_state(f"sqlite:{tmp_path / 'state.db'}")
    create_tables(state)
    leaves = live(deployed(state, TEA), "tea.leaves")
    for day in DAYS:
        feed(state, leaves, day)
    settle(state)
    staged(state, STRONGER)
    reconciler.tick(state)  # Version 2 has a task for each day now.
    async with served(state, tmp_path) as dispatcher, await queue_on(MemoryStore()) as queue:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["writer"])
        async with visiting(queue.store, dispatcher=upstream) as visitor:
            yield Place(state, visitor.dashboard.link)
    state.close()


async def press(tab: Tab, name: str) -> Locator:
    """The question that the button asks."""
    await tab.page.get_by_role("button", name=name, exact=True).click()
    return tab.page.get_by_role("dialog")


async def confirm(question: Locator) -> None:
    await question.locator("button[type=submit]").click()
    await expect(question).to_have_count(0)


async def test_a_version_that_is_built_takes_over_and_the_one_before_is_taken_back(
    place: Place, tabs: Tabs
) -> None:
    settle(place.state)
    before = place.serving()
    tab = await tabs.open(place.link, "/pipeline/tea")
    question = await press(tab, "Activate 2")
    await expect(question).to_contain_text("The version has caught up.")
    await question.get_by_role("button", name="Close").click()
    await expect(question).to_have_count(0)
    assert place.versions() == {1: "active", 2: "staged"}

    await confirm(await press(tab, "Activate 2"))
    assert place.versions() == {1: "retired", 2: "active"}
    assert place.serving() != before
    await expect(tab.page.get_by_role("status")).to_contain_text("version 2 is active")
    await expect(tab.page.get_by_role("button", name="Activate 2")).to_have_count(0)

    question = await press(tab, "Roll back to 1")
    await expect(question).to_contain_text("the data of version 1")
    await confirm(question)
    assert place.versions() == {1: "active", 2: "rolled_back"}
    assert place.serving() == before
    await expect(tab.page.get_by_role("button", name="Roll back")).to_have_count(0)  # There is none before it.


@pytest.mark.long
async def test_what_was_under_way_for_a_version_is_cancelled_when_it_is_rolled_back(
    place: Place, tabs: Tabs
) -> None:
    settle(place.state)
    tab = await tabs.open(place.link, "/pipeline/tea")
    await confirm(await press(tab, "Activate 2"))
    feed(place.state, live(loaded(place.state), "tea.leaves"), "2026-03-03")
    route_all(place.state)
    brew = live(loaded(place.state), "tea.brew", 2)
    assert [each["status"] for each in tasks_of(place.state, brew)].count("pending") == 1
    await confirm(await press(tab, "Roll back to 1"))
    await expect(tab.page.get_by_role("status")).to_contain_text("1 task of version 2 was cancelled")
    assert [each["status"] for each in tasks_of(place.state, brew)].count("pending") == 0


@pytest.mark.long
async def test_of_two_tabs_that_roll_back_at_once_one_goes_no_further_back(place: Place, tabs: Tabs) -> None:
    settle(place.state)
    with place.state.write() as tx:
        cutover.activate(tx, "tea", 2, "tests", force=True)
    staged(place.state, edited(TEA, "brew", config={"minutes": 7}))
    with place.state.write() as tx:
        cutover.activate(tx, "tea", 3, "tests", force=True)
    pair = [await tabs.open(place.link, "/pipeline/tea") for _ in range(2)]
    questions = [await press(tab, "Roll back to 2") for tab in pair]
    await confirm(questions[0])
    await questions[1].locator("button[type=submit]").click()
    await expect(questions[1].get_by_role("alert")).to_contain_text("version 2 of 'tea' is active by now, not 3")
    assert place.versions() == {1: "retired", 2: "active", 3: "rolled_back"}


@pytest.mark.long
async def test_a_version_that_is_not_whole_takes_over_only_for_who_says_so(place: Place, tabs: Tabs) -> None:
    failing, _ = tasks_of(place.state, live(loaded(place.state), "tea.brew", 2))
    finish(place.state, claimed(place.state, failing["id"]), Outcome.FATAL, error="the kettle is empty")
    tab = await tabs.open(place.link, "/pipeline/tea")
    question = await press(tab, "Activate 2")
    await expect(question).to_contain_text("1 of its tasks failed")
    await expect(question).to_contain_text("1 task left")
    await expect(question.locator("button[type=submit]")).to_be_disabled()
    assert place.versions() == {1: "active", 2: "staged"}
    await question.get_by_role("checkbox", name="Activate it incomplete").check()
    await confirm(question)
    assert place.versions() == {1: "retired", 2: "active"}


async def test_what_the_dispatcher_refuses_is_said_in_the_question_and_changes_nothing(
    place: Place, tabs: Tabs
) -> None:
    settle(place.state)
    tab = await tabs.open(place.link, "/pipeline/tea")
    await expect(tab.page.get_by_role("button", name="Activate 2")).to_be_visible()
    await tab.page.keyboard.press("p")  # The page does not look again by itself.
    question = await press(tab, "Activate 2")
    feed(place.state, live(loaded(place.state), "tea.leaves"), "2026-03-03")
    route_all(place.state)
    brew = live(loaded(place.state), "tea.brew", 2)
    (late,) = (each["id"] for each in tasks_of(place.state, brew) if each["status"] == "pending")
    finish(place.state, claimed(place.state, late), Outcome.FATAL, error="the kettle is empty")
    await question.locator("button[type=submit]").click()
    await expect(question.get_by_role("alert")).to_contain_text(
        "version 2 of 'tea' is not whole: 1 of its tasks failed"
    )
    assert place.versions() == {1: "active", 2: "staged"}
