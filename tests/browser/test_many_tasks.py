"""A queue of a hundred thousand tasks: what a look costs, and that it is quick."""

from __future__ import annotations

import time

import pytest
from playwright.async_api import expect

from qo.queue.options import NewTask
from qo.store.memory import MemoryStore
from support.ui.browsers import PERIOD_MS, Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import fail, queue_on

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

TASKS = 100_000
FIRST_LOOK_S = 15.0  # On a machine with two cores that has to be the store as well.


def asked(tab: Tab, begin: int) -> int:
    return sum("/s3/" in each.url for each in tab.asked[begin:])


async def test_a_hundred_thousand_tasks_cost_a_handful_of_requests(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        for begin in range(0, TASKS, 5000):
            await queue.submit_many([NewTask(f"type-{n % 7}", {"n": n}) for n in range(begin, begin + 5000)])
        await queue.hints.flush()
        tab = await tabs.new(clock=True)
        began = time.monotonic()
        await tab.open(visitor.dashboard.link, "/")
        await tab.shown("type-3")
        assert time.monotonic() - began < FIRST_LOOK_S
        await tab.quiet()
        assert asked(tab, 0) < 200  # A sample of tasks is read once.
        begin = len(tab.asked)
        await tab.page.clock.fast_forward(PERIOD_MS)
        await tab.quiet()
        assert asked(tab, begin) <= 20
        text = await tab.page.locator("main").inner_text()
        assert "≈" in text  # Reckoned from a sample, and said so.

        begin = len(tab.asked)
        await tab.go("/tasks")
        await expect(tab.page.locator("tbody tr")).to_have_count(50)
        await tab.quiet()
        assert asked(tab, begin) <= 60
        begin = len(tab.asked)
        await tab.page.clock.fast_forward(PERIOD_MS)
        await tab.quiet()
        assert asked(tab, begin) <= 60
        await tab.page.get_by_role("button", name="Show 50 more").click()
        await expect(tab.page.locator("tbody tr")).to_have_count(100)

        # What failed is found, however deep it lies, once everything has been listed.
        task = (await queue.list(limit=1))[0]
        await fail(queue, task)
        await tab.go("/tasks?status=failed")
        await tab.page.get_by_role("button", name="List all now").click()
        await expect(tab.page.locator("tbody tr").filter(has_text="failed")).to_have_count(1, timeout=120_000)
