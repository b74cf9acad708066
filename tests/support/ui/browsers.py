"""A real browser for the dashboard's page: Chromium of the machine, driven by Playwright.

    async def test_something(tabs: Tabs) -> None:      # fixtures are in tests/browser/conftest.py
        tab = await tabs.open(dashboard.link, "/tasks")
        await expect(tab.page.get_by_role("heading", name="Tasks")).to_be_visible()

Whatever a tab asked for is checked when the test ends: nothing may leave loopback, and nothing may break.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Playwright, Request, expect

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_GET_IT = (
    "there is no browser: install Chromium (on Debian and Ubuntu `apt-get install --no-install-recommends chromium`, "
    f"on a Mac `brew install chromium`), so that one of {', '.join(NAMES)} is on the PATH"
)
FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 60_000  # For a machine that is busy with other things.
QUIET_S = 0.25
PERIOD_MS = 7_000  # How often the page looks again.
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 900}
CANARY = "__pwned"

expect.set_options(timeout=PATIENCE_MS)


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


async def launch(playwright: Playwright, executable: str) -> Browser:
    as_root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return await playwright.chromium.launch(executable_path=executable, headless=True, args=[*FLAGS, *as_root])


class Tab:
    """A page in the browser, with all that it asked for and complained of."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[Request] = []
        self.complaints: list[str] = []
        self._under_way: set[Request] = set()
        page.on("request", self._began)
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._ended)
        page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        page.on("console", self._said)

    def _began(self, request: Request) -> None:
        self.asked.append(request)
        self._under_way.add(request)

    def _ended(self, request: Request) -> None:
        self._under_way.discard(request)

    def _said(self, message: ConsoleMessage) -> None:
        # A 404 or 403 is an answer like another; the browser calls each an error.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    async def open(self, link: str, route: str = "/") -> None:
        """Load the page anew. ``link``: as it is printed, with credentials or without."""
        place, mark, text = link.partition("#c=")
        await self.page.goto("about:blank")  # Else only the fragment changes, and nothing is loaded.
        await self.page.goto(f"{place}#c={text}&{route}" if mark else f"{place}#{route}")
        await self.page.locator("main").first.wait_for()

    async def go(self, route: str) -> None:
        """To another page, as a link does."""
        await self.page.evaluate("route => { location.hash = route }", route)

    async def quiet(self, for_s: float = QUIET_S) -> None:
        """Returns once all is shown, nothing is under way, and nothing follows."""
        await expect(self.page.locator(".loading")).to_have_count(0)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while True:
                before = len(self.asked)
                await asyncio.sleep(for_s)
                if not self._under_way and len(self.asked) == before:
                    return

    async def shown(self, *texts: str) -> None:
        """All of these are to be read on the page."""
        for text in texts:
            await expect(self.page.locator("main").get_by_text(text).filter(visible=True).first).to_be_visible()

    async def heading(self, name: str | re.Pattern[str]) -> None:
        await expect(self.page.get_by_role("heading", name=name, level=1).first).to_be_visible()

    async def ran_script(self) -> bool:
        return await self.page.evaluate(f"'{CANARY}' in window")

    async def wide(self) -> int:
        """By how many pixels the page is wider than the window."""
        return await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def check(self, *, forgiven: Iterable[str] = ()) -> None:
        outside = [each.url for each in self.asked if not on_loopback(each.url)]
        assert outside == [], "the page may talk to nobody but its own servers"
        assert [each for each in self.complaints if not any(part in each for part in forgiven)] == []


class Tabs:
    """The tabs of one test."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: list[Tab] = []
        self.forgiven: list[str] = []  # Complaints that a test provokes.

    async def new(self, *, clock: bool = False, **options: Any) -> Tab:
        """``clock``: the page's time can be moved on. ``options``: of a browser context."""
        chosen: Mapping[str, Any] = {"viewport": DESK, "reduced_motion": "reduce", **options}
        context = await self._browser.new_context(**chosen)
        context.set_default_timeout(PATIENCE_MS)
        tab = Tab(await context.new_page())
        if clock:
            await tab.page.clock.install()
        self._opened.append(tab)
        return tab

    async def open(self, link: str, route: str = "/", **options: Any) -> Tab:
        tab = await self.new(**options)
        await tab.open(link, route)
        return tab

    async def close(self) -> None:
        for tab in self._opened:
            await tab.page.context.close()
        for tab in self._opened:
            tab.check(forgiven=self.forgiven)


class Screenshots:
    """Pictures of pages, kept where QO_SCREENSHOTS says."""

    def __init__(self, otherwise: Path) -> None:
        self.directory = Path(os.environ.get("QO_SCREENSHOTS") or otherwise)
        self.directory.mkdir(parents=True, exist_ok=True)

    async def take(self, tab: Tab, name: str) -> None:
        # animations="disabled" would wait for what never ends, a pulse.
        await tab.page.screenshot(path=self.directory / f"{name}.png", full_page=True)


def on_loopback(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")
