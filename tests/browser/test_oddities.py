"""Stores that misbehave, objects that nobody of ours wrote, and clocks that are off: the page goes on, and says so."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Route, expect

from qo.core import keys
from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from support.ui.browsers import PERIOD_MS, Tab, Tabs
from support.ui.dashboards import visiting
from support.ui.showcases import ERROR, WORKER, claimed, fail, fill, queue_on

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]

WRONG: list[Any] = [5, {"a": 1}, None]
NARROW = {"width": 320, "height": 640}


class Clock:
    def __init__(self, ahead: timedelta) -> None:
        self.ahead = ahead

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


async def broken_copies(queue: Queue, prefix: str, like: str) -> None:
    """Beside the object whose key has ``like`` in it, one for each of its members that is of the wrong kind."""
    (key,) = (each.key for each in (await queue.store.list(prefix)).entries if like in each.key)
    stored = await queue.store.get(key)
    assert stored is not None
    whole = json.loads(stored.body)
    for place, name in enumerate(whole):
        for kind, wrong in enumerate(WRONG):
            other = key.replace(like, f"{place:08x}-{kind:04x}-4000-8000-000000000000")
            await queue.store.put(other, json.dumps({**whole, name: wrong}).encode())
    for number, text in enumerate((b"", b"[]", b"7", b"\xff\xfe", b"{", b"null")):
        await queue.store.put(key.replace(like, f"f000000{number}-0000-4000-8000-000000000000"), text)


async def test_objects_that_are_none_hide_no_others(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        there = await fill(queue)
        await broken_copies(queue, keys.TASKS, there.failed)
        await broken_copies(queue, keys.WORKERS, WORKER)
        await broken_copies(queue, keys.SCHEDULES, "nightly-report")
        tab = await tabs.open(visitor.dashboard.link, "/")
        for route, said in {
            "/": "bill",
            "/tasks": "bill",
            "/failures": ERROR,
            "/workers": WORKER,
            "/shards": "16 shards",
            "/schedules": "nightly-report",
        }.items():
            await tab.go(route)
            await tab.shown(said)
            await tab.quiet()
            await expect(tab.page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("text", ['{"types": 5}', '{"queue": {"by": 7}}', '{"workers": {"w": null}}', "{", "[]"])
async def test_wishes_that_are_none_hide_no_task(text: str, tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        await fill(queue)
        await queue.store.put(keys.DESIRED, text.encode())
        tab = await tabs.open(visitor.dashboard.link, "/")
        await tab.shown("bill")
        await tab.go("/workers")
        await tab.shown(WORKER)


@pytest.mark.parametrize("depth", [190, 5000])  # As deep as qo takes, and deeper than browsers do.
async def test_a_value_is_shown_however_deep_it_is(depth: int, tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        task = await given(queue, "[" * depth + "]" * depth)
        tab = await tabs.open(visitor.dashboard.link, f"/task/{task}")
        await tab.shown(task, "Input", "What changed")
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


async def test_of_a_wide_value_only_what_is_unfolded_is_drawn(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        task = await given(queue, json.dumps([[[0] * 40] * 40] * 40))
        tab = await tabs.open(visitor.dashboard.link, f"/task/{task}")
        await tab.shown(task)
        folds = tab.page.locator(".tree details")
        await expect(folds).to_have_count(1 + 40 + 40 * 40)
        await tab.page.locator(".tree details:not([open]) > summary").first.click()
        await expect(tab.page.locator(".tree .leaf")).to_have_count(40)


async def given(queue: Queue, value: str) -> str:
    """A task with this JSON as its input, which qo itself might not take; its id."""
    task = await queue.submit("odd", "HERE")
    (entry,) = (await queue.store.list(keys.TASKS)).entries
    stored = await queue.store.get(entry.key)
    assert stored is not None
    await queue.store.put(entry.key, stored.body.replace(b'"HERE"', value.encode()))
    return task.id


@pytest.mark.parametrize("hours", [-3, 3])
async def test_a_clock_that_is_off_by_hours_does_no_harm(hours: int, tabs: Tabs) -> None:
    clock = Clock(timedelta(hours=hours))  # The store's: to the page its own is off the other way.
    async with await queue_on(MemoryStore(clock)) as queue, visiting(queue.store) as visitor:
        there = await fill(queue)
        tab = await tabs.new(clock=True)  # Which stands still: the first look has to be good.
        await tab.open(visitor.dashboard.link, "/")
        await tab.shown("bill")
        await expect(tab.page.get_by_role("alert")).to_have_count(0)
        await tab.go(f"/task/{there.running}")
        await tab.shown("expires in")
        await tab.go(f"/task/{there.failed}")
        await tab.page.get_by_role("button", name="Replay").click()
        await tab.page.get_by_role("button", name="Replay the task").click()
        await expect(tab.page.get_by_role("dialog")).to_have_count(0)
        assert str((await queue.get(there.failed)).status) == "pending"


async def test_when_credentials_end_is_reckoned_by_the_servers_clock(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        await fill(queue)
        ends = datetime.now(UTC) + timedelta(minutes=30)
        text = replace(visitor.dashboard.credentials, expires_at=ends).text()
        tab = await tabs.new()
        # Of a machine whose clock is three hours ahead.
        await tab.page.add_init_script("const now = Date.now; Date.now = () => now() + 3 * 3600e3")
        await tab.open(f"{visitor.dashboard.url}/#c={text}", "/")
        await tab.shown("bill")


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "do not allow: listing"),
        (403, "ExpiredToken", "have expired"),
        (500, "InternalError", "The store answered 500"),
        (503, "SlowDown", "The store answered 503"),
        (200, None, "expected ListBucketResult"),  # A proxy that answers with a page of its own.
    ],
)
async def test_a_bucket_that_refuses_is_named_and_looked_at_again(
    status: int, code: str | None, said: str, tabs: Tabs
) -> None:
    body = "<html>Sign in</html>" if code is None else f"<Error><Code>{code}</Code><Message>no</Message></Error>"

    async def refuse(route: Route) -> None:
        await route.fulfill(status=status, body=body, content_type="application/xml")

    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        await fill(queue)
        tab = await tabs.new(clock=True)
        await tab.page.route("**/s3/qo?**", refuse)
        for route in ("/", "/tasks", "/failures", "/shards", "/workers", "/schedules"):
            await (tab.open(visitor.dashboard.link, route) if route == "/" else tab.go(route))
            await expect(tab.page.get_by_role("alert").first).to_contain_text(said)
        await tab.page.unroute("**/s3/qo?**")
        await tab.quiet()
        await tab.page.clock.fast_forward(PERIOD_MS)
        await tab.shown("nightly-report")
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


async def test_a_thousand_versions_are_read_a_part_at_a_time(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        held = await claimed(queue, await queue.submit("slow", None), lease_s=900)
        for done in range(1000):
            await queue.renew(held, 900, progress={"done": done, "total": 1000})
        tab = await tabs.open(visitor.dashboard.link, f"/task/{held.task.id}")
        await tab.shown("1,002 versions")
        assert len(tab.asked) < 100
        await tab.page.get_by_role("button", name="Read 942 older versions").click()
        await expect(tab.page.get_by_role("button", name="Read 742 older versions")).to_be_visible()
        await expect(tab.page.get_by_role("alert")).to_have_count(0)


async def test_two_tabs_that_act_at_once_leave_one_change(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        failed = await fail(queue, await queue.submit("bill", None))
        pair = [await tabs.open(visitor.dashboard.link, f"/task/{failed.id}") for _ in range(2)]
        for tab in pair:
            await tab.page.get_by_role("button", name="Replay").click()
        for tab in pair:
            await tab.page.get_by_role("button", name="Replay the task").click()
        await expect(pair[0].page.get_by_role("dialog")).to_have_count(0)
        await settled(pair[1])
        moves = [str(each.status) for each in await queue.history(failed.id)]
        assert moves.count("pending") == 2  # Submitted, and replayed once.


async def settled(tab: Tab) -> None:
    """Either it found the task replayed already, or it says what is in the way."""
    refused = tab.page.get_by_role("dialog").get_by_role("alert")
    gone = tab.page.get_by_role("button", name="Replay the task")
    await expect(refused.or_(tab.page.locator("body:not(:has(dialog))")).first).to_be_visible()
    assert await refused.count() == 1 or await gone.count() == 0


async def test_long_words_are_broken_on_the_narrowest_phone(tabs: Tabs) -> None:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        there = await fill(queue)
        task = await fail(queue, await queue.submit("t" * 120, {"k" * 200: "v" * 500}), "E" * 400, "T" * 4000)
        await queue.hints.flush()
        tab = await tabs.open(visitor.dashboard.link, "/", viewport=NARROW)
        for route in (
            "/",
            "/tasks",
            "/failures",
            "/shards",
            "/workers",
            f"/worker/{WORKER}",
            "/schedules",
            f"/task/{task.id}",
            f"/task/{there.running}",
        ):
            await tab.go(route)
            await tab.quiet()
            assert await tab.wide() == 0, route
