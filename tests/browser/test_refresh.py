"""What looking again and again costs, and when it stops; and what a look shows of what has changed."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import expect

from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from support.ui.browsers import PERIOD_MS, Tab, Tabs
from support.ui.dashboards import Visitor, visiting
from support.ui.showcases import WORKER, Showcase, claimed, fail, hire, queue_on

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]


class Clock:
    """The store's time."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def to_the_store(tab: Tab, begin: int) -> list[str]:
    """What was asked since: LIST ready/, GET tasks/..."""
    found: list[str] = []
    for request in tab.asked[begin:]:
        path, _, query = request.url.partition("?")
        if "/s3/qo" not in path:
            continue
        key = path.partition("/s3/qo")[2].strip("/")
        prefix = next((part[7:].partition("%2F")[0] for part in query.split("&") if part[:7] == "prefix="), "")
        found.append(f"{request.method} {key.partition('/')[0]}" if key else f"LIST {prefix}")
    return found


async def one_round(tab: Tab) -> Counter[str]:
    begin = len(tab.asked)
    await tab.page.clock.fast_forward(PERIOD_MS)
    await tab.quiet()
    return Counter(to_the_store(tab, begin))


async def test_a_look_at_what_has_not_changed_costs_no_more_than_this(
    visitor: Visitor, there: Showcase, tabs: Tabs
) -> None:
    costs = {
        "/": {"LIST tasks": 1, "LIST ready": 1, "LIST leases": 1, "LIST workers": 1},
        "/tasks": {"LIST tasks": 1},
        "/tasks?status=failed": {"LIST tasks": 1},
        "/tasks?status=pending": {"LIST ready": 1, "LIST inbox": 1},
        "/failures": {"LIST tasks": 1},
        f"/task/{there.failed}": {"GET tasks": 1},
        "/shards": {"LIST ready": 1, "LIST leases": 1, "LIST workers": 1},
        "/workers": {"LIST workers": 1},
        f"/worker/{WORKER}": {"GET workers": 1},
        "/schedules": {"LIST schedules": 1},
    }
    tab = await tabs.new(clock=True)
    await tab.open(visitor.dashboard.link, "/")
    await tab.quiet()
    for route, cost in costs.items():
        await tab.go(route)
        await tab.quiet()
        seen = await one_round(tab)
        # Whether something is paused is looked up now and then; most queues have no such object.
        assert seen.pop("GET control", 0) + seen.pop("LIST control", 0) <= 1, route
        assert seen == cost, route
    said = await tab.page.locator(".side-foot").inner_text()
    assert f"{len(to_the_store(tab, 0))} requests by this page" in said


async def test_the_first_look_asks_for_nothing_twice(visitor: Visitor, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)  # Which stands still: there is no second look.
    await tab.open(visitor.dashboard.link, "/")
    await tab.shown("greet", "train")
    await tab.quiet()
    assert [each.url.rpartition("/")[2] for each in tab.asked].count("config.json") == 1
    seen = Counter(to_the_store(tab, 0))
    assert {each: n for each, n in seen.items() if each.startswith("LIST")} == {
        f"LIST {part}": 1 for part in ("ready", "leases", "tasks", "workers", "control")
    }
    paths = [each.url.partition("?")[0] for each in tab.asked if "/s3/qo/" in each.url]
    assert len(paths) == len(set(paths))


async def test_a_change_costs_one_read_more_and_is_seen(visitor: Visitor, queue: Queue, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(visitor.dashboard.link, "/tasks")
    await tab.quiet()
    task = await queue.submit("brand-new", None)
    await queue.hints.flush()
    seen = await one_round(tab)
    assert seen == {"LIST tasks": 1, "GET tasks": 1}
    await tab.shown("brand-new")
    await queue.cancel(task.id)
    await one_round(tab)
    await expect(tab.page.locator("tbody tr").filter(has_text="brand-new")).to_contain_text("cancelled")


async def test_nothing_is_asked_while_the_tab_is_hidden_and_at_once_when_it_is_seen_again(
    visitor: Visitor, tabs: Tabs
) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(visitor.dashboard.link, "/")
    await tab.quiet()
    await show(tab, hidden=True)
    begin = len(tab.asked)
    for _ in range(5):
        await tab.page.clock.fast_forward(PERIOD_MS)
    await tab.quiet()
    assert to_the_store(tab, begin) == []
    await show(tab, hidden=False)
    await tab.quiet()
    assert Counter(to_the_store(tab, begin))["LIST tasks"] == 1
    assert (await one_round(tab))["LIST tasks"] == 1


async def test_who_pauses_is_left_in_peace(visitor: Visitor, tabs: Tabs) -> None:
    tab = await tabs.new(clock=True)
    await tab.open(visitor.dashboard.link, "/")
    await tab.quiet()
    await tab.page.get_by_role("button", name="pause").click()
    assert await one_round(tab) == {}
    await tab.page.get_by_role("button", name="resume").click()
    await tab.quiet()
    assert (await one_round(tab))["LIST tasks"] == 1


async def test_a_worker_that_dies_while_it_is_watched_turns_stale(tabs: Tabs) -> None:
    clock = Clock()
    async with await queue_on(MemoryStore(clock)) as queue, visiting(queue.store) as visitor:
        await hire(queue, "doomed")
        await hire(queue, "living")
        tab = await tabs.new(clock=True)
        await tab.open(visitor.dashboard.link, "/workers")
        doomed = tab.page.locator("tbody tr").filter(has_text="doomed")
        await expect(doomed).to_contain_text("active")
        await tab.quiet()
        clock.ahead += timedelta(seconds=62)
        await hire(queue, "living")
        await one_round(tab)
        await expect(doomed).to_contain_text("stale")
        await expect(tab.page.locator("tbody tr").filter(has_text="living")).to_contain_text("active")


async def test_a_lease_runs_down_and_its_end_is_seen(tabs: Tabs) -> None:
    clock = Clock()
    async with await queue_on(MemoryStore(clock)) as queue, visiting(queue.store) as visitor:
        held = await claimed(queue, await queue.submit("train", None), lease_s=50)
        tab = await tabs.new(clock=True)
        await tab.open(visitor.dashboard.link, f"/task/{held.task.id}")
        await tab.shown("expires in", "unless it is renewed")
        await tab.quiet()
        clock.ahead += timedelta(seconds=80)
        await one_round(tab)
        await tab.shown("a monitor will take the task back")


async def test_an_empty_queue_says_how_to_begin_on_every_page(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        tab = await tabs.open(visitor.dashboard.link, "/")
        for route, said in {
            "/": "qo submit",
            "/tasks": "This queue is empty",
            "/failures": "No failed task was found",
            "/shards": "16 shards",
            "/workers": "qo worker",
            "/schedules": "qo schedule create",
            "/worker/nobody": "There is no worker nobody.",
            "/task/nonsense": "nonsense is not a task id.",
            "/task/00000000-0000-4000-8000-000000000000": "This queue has no task with this id.",
            "/nowhere": "Page not found",
        }.items():
            await tab.go(route)
            await tab.shown(said)


async def test_a_bucket_that_holds_no_queue_says_how_to_make_one(tabs: Tabs) -> None:
    async with visiting(MemoryStore()) as visitor:
        tab = await tabs.open(visitor.dashboard.link, "/")
        await expect(tab.page.get_by_role("alert")).to_contain_text("There is no queue here")
        await expect(tab.page.get_by_role("alert")).to_contain_text("qo submit")


async def test_failures_are_grouped_by_what_went_wrong_and_replayed_together(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        for number in range(5):
            await fail(queue, await queue.submit("bill", number), f"ValueError: invoice {number} has no date")
        await fail(queue, await queue.submit("bill", None), "KeyError: 'customer'")
        await queue.hints.flush()
        tab = await tabs.open(visitor.dashboard.link, "/failures")
        await tab.shown("6 failed tasks", "KeyError: 'customer'")
        await expect(tab.page.locator("section.panel")).to_have_count(2)
        await tab.page.get_by_role("button", name="Replay all 5").click()
        await tab.page.get_by_role("dialog").get_by_role("button", name="Replay all 5").click()
        await expect(tab.page.get_by_role("status")).to_contain_text("5 replayed")
        await tab.shown("1 failed task")
        pending = [each for each in await queue.list() if str(each.status) == "pending"]
        assert len(pending) == 5


async def show(tab: Tab, *, hidden: bool) -> None:
    """As if another tab had been brought to the front, or this one."""
    await tab.page.evaluate(
        """hidden => {
            Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
            Object.defineProperty(document, "visibilityState", {
                configurable: true, get: () => hidden ? "hidden" : "visible" });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )
