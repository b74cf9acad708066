"""How the page is let in, what it does when it is not, and that it keeps nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from qo.core.task import Status
from qo.queue.queue import Queue
from qo.ui.access_links import PageCredentials
from qo.ui.assets import STATIC
from qo.ui.dashboard import Dashboard, Served
from support.ui.browsers import Tab, Tabs
from support.ui.dashboards import Visitor, visiting

pytestmark = pytest.mark.asyncio(loop_scope="session")


def changed(held: PageCredentials, **fields: Any) -> str:
    return replace(held, **fields).text()


async def asked_for_new_ones(tab: Tab) -> None:
    await expect(tab.page.get_by_role("button", name="Open")).to_be_visible()
    await expect(tab.page.get_by_role("navigation")).to_have_count(0)


async def paste(tab: Tab, text: str) -> None:
    await tab.page.get_by_role("textbox").fill(text)
    await tab.page.get_by_role("button", name="Open").click()


async def test_without_credentials_the_page_asks_for_them_and_for_nothing_else(
    visitor: Visitor, tabs: Tabs
) -> None:
    tab = await tabs.open(f"{visitor.dashboard.url}/", "/workers")
    await asked_for_new_ones(tab)
    await tab.shown("qo ui")
    await tab.quiet()
    assert [each.url for each in tab.asked if "/s3" in each.url] == []
    await paste(tab, "not credentials at all")
    await expect(tab.page.get_by_role("alert")).to_contain_text("These are not valid credentials")
    await paste(tab, visitor.dashboard.link)
    await tab.heading("Workers")  # Where the link led to.
    await tab.shown("worker-one")


async def test_credentials_leave_no_trace_in_the_browser(visitor: Visitor, tabs: Tabs) -> None:
    held = visitor.dashboard.credentials
    tab = await tabs.open(visitor.dashboard.link, "/tasks")
    await tab.shown("greet")
    await tab.page.keyboard.press("l")  # The theme is the one thing that is stored.
    kept = await tab.page.evaluate(
        """async () => JSON.stringify([
            location.href, document.cookie, {...localStorage}, {...sessionStorage}, history.state, document.title,
            document.documentElement.outerHTML, window.name, (await indexedDB.databases()), (await caches.keys()),
        ])"""
    )
    for secret in (held.secret_access_key, held.access_key_id, held.text()):
        assert secret not in kept
    assert await tab.page.evaluate("Object.keys(localStorage)") == ["qo-theme"]
    assert await tab.page.context.cookies() == []
    assert not any(held.secret_access_key in each.url or held.text() in each.url for each in tab.asked)
    # What is in the history is without them, too: whoever reloads is asked again.
    await tab.page.reload()
    await asked_for_new_ones(tab)


async def test_credentials_that_end_are_asked_for_again_and_new_ones_go_on_where_one_was(
    visitor: Visitor, tabs: Tabs
) -> None:
    held = visitor.dashboard.credentials
    tab = await tabs.new(clock=True)
    ends = datetime.now(UTC) + timedelta(minutes=10)
    await tab.open(f"{visitor.dashboard.url}/#c={changed(held, expires_at=ends)}", "/workers")
    await tab.shown("worker-one")
    await tab.page.clock.fast_forward(601_000)
    await asked_for_new_ones(tab)
    await tab.shown("These credentials have expired")
    await paste(tab, changed(held, expires_at=ends))
    await tab.shown("These credentials have expired")  # The same ones do not help.
    await paste(tab, changed(held, expires_at=ends + timedelta(hours=1)))
    await tab.shown("worker-one")


@pytest.mark.long
async def test_after_a_restart_the_old_link_is_refused_and_the_new_one_can_be_given(
    queue: Queue, tabs: Tabs
) -> None:
    async def below() -> list[str]:
        return []

    dashboard = await Dashboard.open(Served(queue.store, below))
    tab = await tabs.open(dashboard.link, "/workers")
    await tab.shown("worker-one")
    await tab.quiet()
    await dashboard.close()
    again = await Dashboard.open(Served(queue.store, below), port=int(dashboard.url.rsplit(":", 1)[1]))
    try:
        await tab.page.keyboard.press("r")
        alert = tab.page.get_by_role("alert")
        await expect(alert).to_contain_text("The store does not know the credentials of this page")
        await tab.shown("This is the state of the last successful refresh")
        await alert.get_by_role("button", name="Enter other credentials").click()
        await asked_for_new_ones(tab)
        await paste(tab, again.link)
        await tab.shown("worker-one")
        await expect(tab.page.get_by_role("alert")).to_have_count(0)
    finally:
        await again.close()


async def test_a_store_that_is_gone_is_named_and_found_again_by_itself(queue: Queue, tabs: Tabs) -> None:
    async with visiting(queue.store) as gone:
        tab = await tabs.open(gone.dashboard.link, "/workers")
        await tab.shown("worker-one")
        await tab.quiet()
    await tab.page.keyboard.press("r")
    await expect(tab.page.get_by_role("alert")).to_contain_text("No answer from 127.0.0.1")
    await tab.shown("worker-one")  # What was seen last is still to be seen.


async def test_who_may_only_look_is_offered_no_action_and_told_why(queue: Queue, tabs: Tabs) -> None:
    failed = (await queue.list(status=Status.FAILED))[0]
    async with visiting(queue.store, read_only=True) as viewer:
        tab = await tabs.open(viewer.dashboard.link, f"/task/{failed.id}")
        await tab.shown(failed.id, "These credentials are read-only.")
        await expect(tab.page.get_by_role("button", name="Replay")).to_have_count(0)
        # Even where the page believes that it may, the store has the last word.
        lying = changed(viewer.dashboard.credentials, may_act=True)
        await tab.open(f"{viewer.dashboard.url}/#c={lying}", f"/task/{failed.id}")
        await tab.page.get_by_role("button", name="Replay").click()
        await tab.page.get_by_role("button", name="Replay the task").click()
        refused = tab.page.get_by_role("dialog").get_by_role("alert")
        await expect(refused).to_contain_text("do not allow: writing tasks/")
    assert (await queue.get(failed.id)).status is Status.FAILED


async def test_a_store_that_does_not_allow_the_page_is_told_from_the_page_with_what_to_do(
    visitor: Visitor, tabs: Tabs, tmp_path: Path
) -> None:
    config = {"endpoint": f"{visitor.dashboard.url}/s3", "bucket": "qo", "prefix": "", "region": "us-east-1"}
    tabs.forgiven += ["CORS policy"]  # The browser says it as well.
    with hosted(tmp_path / "page", json.dumps(config)) as elsewhere:
        tab = await tabs.open(f"{elsewhere}/index.html#c={visitor.dashboard.credentials.text()}")
        alert = tab.page.get_by_role("alert")
        await expect(alert).to_contain_text(f"No answer from {visitor.host}")
        await expect(alert).to_contain_text("qo ui deploy")
        await expect(alert).to_contain_text("CORS")


@pytest.mark.long
@pytest.mark.parametrize("config", ["not json", "{}"])
async def test_a_page_without_a_proper_config_says_what_to_run(config: str, tabs: Tabs, tmp_path: Path) -> None:
    with hosted(tmp_path / "page", config) as elsewhere:
        tab = await tabs.open(f"{elsewhere}/index.html")
        await expect(tab.page.get_by_role("alert")).to_contain_text("qo ui deploy")


@contextmanager
def hosted(directory: Path, config: str) -> Iterator[str]:
    """The page on a web server that knows nothing of qo: its address."""
    shutil.copytree(STATIC, directory)
    (directory / "config.json").write_text(config)
    handler = partial(Quiet, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
