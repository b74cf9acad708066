"""The main ways without a mouse."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from qo.core.task import Status
from qo.queue.queue import Queue
from support.ui.browsers import Tabs
from support.ui.dashboards import Visitor
from support.ui.showcases import Showcase

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]

STEPS_MAX = 60


async def tab_to(page: Page, text: str) -> None:
    """By the Tab key alone, to what says that."""
    for _ in range(STEPS_MAX):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.textContent.trim()") == text:
            seen = "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
            assert await page.evaluate(seen), f"one cannot see that the focus is on {text}"
            return
    raise AssertionError(f"the Tab key does not lead to {text}")


async def test_from_the_front_to_a_task_and_an_action_by_tab_and_enter(
    visitor: Visitor, queue: Queue, there: Showcase, tabs: Tabs
) -> None:
    tab = await tabs.open(visitor.dashboard.link, "/")
    page, keyboard = tab.page, tab.page.keyboard
    await tab.shown("By status")
    await tab_to(page, "Failures")
    await keyboard.press("Enter")
    await tab.heading("Failures")
    await tab_to(page, f"{there.failed[:13]}…")
    await keyboard.press("Enter")
    await tab.heading(re.compile(there.failed))
    await tab_to(page, "Archive")
    await keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    assert await page.evaluate("document.activeElement.closest('dialog') !== null"), "the focus is in the question"
    await keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert await page.evaluate("document.activeElement.textContent") == "Archive", "and then where it was"
    assert (await queue.get(there.failed)).status is Status.FAILED
    await keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await tab_to(page, "Archive the task")
    await keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert (await queue.get(there.failed)).status is Status.ARCHIVED
    await queue.unarchive(there.failed)


async def test_the_first_step_skips_what_is_on_every_page(visitor: Visitor, tabs: Tabs) -> None:
    tab = await tabs.open(visitor.dashboard.link, "/tasks")
    await tab.shown("greet")
    await tab_to(tab.page, "Skip to the content")
    await tab.page.keyboard.press("Enter")
    assert await tab.page.evaluate("document.activeElement.id") == "content"


async def test_letters_lead_to_pages_but_not_while_one_writes(visitor: Visitor, tabs: Tabs) -> None:
    tab = await tabs.open(visitor.dashboard.link, "/")
    await tab.shown("By status")
    for letter, heading in {
        "f": "Failures",
        "s": "Shards",
        "w": "Workers",
        "c": "Schedules",
        "t": "Tasks",
    }.items():
        await tab.page.keyboard.press("g")
        await tab.page.keyboard.press(letter)
        await tab.heading(heading)
        await expect(tab.page).to_have_title(f"qo · {heading.lower()}")
        await expect(tab.page.locator("#content")).to_be_focused()  # One goes on from there.
    await tab.page.keyboard.press("/")
    await expect(tab.page.get_by_label("Id")).to_be_focused()
    await tab.page.keyboard.type("gw?")
    await expect(tab.page.get_by_label("Id")).to_have_value("gw?")
    await expect(tab.page.get_by_role("dialog")).to_have_count(0)


async def test_a_letter_without_its_leader_does_nothing_even_right_after_the_start(
    visitor: Visitor, tabs: Tabs
) -> None:
    tab = await tabs.new()
    await tab.page.add_init_script("performance.now = () => 300")  # However long the machine has taken.
    await tab.open(visitor.dashboard.link, "/tasks")
    await tab.heading("Tasks")
    await tab.page.keyboard.press("w")
    await tab.quiet()
    await tab.heading("Tasks")


async def test_light_and_dark_are_switched_and_kept(visitor: Visitor, tabs: Tabs) -> None:
    tab = await tabs.open(visitor.dashboard.link, "/workers", color_scheme="light")
    await tab.shown("worker-one")
    shade = "getComputedStyle(document.body).backgroundColor"
    light = await tab.page.evaluate(shade)
    await tab.page.get_by_role("button", name="dark").click()
    dark = await tab.page.evaluate(shade)
    assert light != dark
    await tab.open(visitor.dashboard.link, "/workers")
    await tab.shown("worker-one")
    assert await tab.page.evaluate(shade) == dark
