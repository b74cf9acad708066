"""Whoever may submit a task may not run a script in the page of who looks at it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio
from playwright.async_api import expect

from qo.core import keys
from qo.queue import control
from qo.queue.queue import Queue
from qo.queue.schedules import Schedules
from qo.store.memory import MemoryStore
from support.ui.attacks import ATTEMPTS, EVIL, SCRIPT, harmless
from support.ui.browsers import Tabs
from support.ui.dashboards import Visitor, visiting
from support.ui.showcases import WORKER, claimed, fail, hire, queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")

TYPE = f"<img src=x onerror={SCRIPT}>"


@dataclass(frozen=True)
class Place:
    visitor: Visitor
    failed: str
    done: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place() -> AsyncIterator[Place]:
    async with await queue_on(MemoryStore()) as queue, visiting(queue.store) as visitor:
        failed = await fail(queue, await queue.submit(TYPE, {EVIL: EVIL, "list": ATTEMPTS}), EVIL, EVIL)
        held = await claimed(queue, await queue.submit(TYPE, ATTEMPTS))
        await queue.renew(held, progress={"text": EVIL, "percent": 50, EVIL: EVIL})
        await queue.complete(held, {"__proto__": {"polluted": True}, EVIL: [EVIL]}, progress=EVIL)
        waiting = await queue.submit(TYPE, None)
        await queue.cancel(waiting.id, by=EVIL, reason=EVIL)
        await hire(queue, WORKER, current=[f"javascript:{SCRIPT}", EVIL])
        await spoil(queue)
        await Schedules(queue).create("nightly", task_type=TYPE, cron="0 3 * * *")
        await control.pause(queue, reason=EVIL[:200], by=TYPE)
        await queue.hints.flush()
        yield Place(visitor, failed.id, held.task.id)


async def spoil(queue: Queue) -> None:
    """A report of a worker that no worker of qo would write: whoever may write to the bucket may."""
    stored = await queue.store.get(keys.worker(WORKER))
    assert stored is not None
    said = json.loads(stored.body)
    said |= {
        "worker_id": EVIL,
        "host": EVIL,
        "http": f"javascript:{SCRIPT}",
        "state": EVIL,
        "task_types": ATTEMPTS,
    }
    await queue.store.put(keys.worker("evil"), json.dumps(said).encode())


async def test_what_is_in_the_queue_stays_text_on_every_page(place: Place, tabs: Tabs) -> None:
    # Without the policy of the page: it must not be needed.
    tab = await tabs.open(place.visitor.dashboard.link, "/", bypass_csp=True)
    for route in ("/", "/tasks", "/failures", f"/task/{place.failed}", "/workers", "/schedules", "/worker/evil"):
        await tab.go(route)
        await expect(tab.page.locator(".loading")).to_have_count(0)
        await tab.quiet()
        await harmless(tab)
    await tab.go(f"/task/{place.failed}")
    await tab.shown(ATTEMPTS[0])
    await tab.go(f"/task/{place.done}")
    await tab.shown(ATTEMPTS[0])
    await tab.page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    await tab.quiet()
    await harmless(tab)


async def test_an_address_is_text_too(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.visitor.dashboard.link, "/", bypass_csp=True)
    for route in (
        f"/tasks?type={ATTEMPTS[1]}&status={ATTEMPTS[0]}&shard={ATTEMPTS[2]}",
        f"/task/{ATTEMPTS[1]}",
        f"/worker/{ATTEMPTS[1]}",
        f"/failures?type={ATTEMPTS[1]}",
        f"/{ATTEMPTS[0]}",
        "/tasks?show=1e9",
        "/tasks?show=-1",
        "/task/%E0%A4%A",
        "/__proto__",
        "/task/__proto__",
    ):
        await tab.go(route)
        await expect(tab.page.locator(".loading")).to_have_count(0)
        await harmless(tab)


async def test_a_script_that_got_in_all_the_same_would_not_run(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.visitor.dashboard.link, "/")
    await tab.heading("Overview")
    tabs.forgiven += ["Content Security Policy", "violates the following"]
    await tab.page.evaluate(
        """script => {
            const inline = document.createElement("script");
            inline.textContent = script;
            document.body.append(inline);
            const image = document.createElement("img");
            image.setAttribute("onerror", script);
            image.src = "data:,";
            document.body.append(image);
            const style = document.createElement("link");
            style.rel = "stylesheet";
            style.href = "https://192.0.2.1/evil.css";
            document.head.append(style);
        }""",
        SCRIPT,
    )
    out = await tab.page.evaluate("fetch('http://localhost:9/').then(() => 'out', () => 'refused')")
    assert out == "refused"
    assert any("connect-src" in each for each in tab.complaints)
    assert not await tab.ran_script()
    tab.asked = [each for each in tab.asked if "192.0.2.1" not in each.url]  # The test itself asked for that.
