"""One browser for the whole run, and the page, built."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright

from qo.queue.queue import Queue
from qo.store.memory import MemoryStore
from qo.ui.assets import STATIC as BUILT
from qo.ui.assets import Assets
from support.ui.browsers import HOW_TO_GET_IT, Screenshots, Tabs, find_chromium, launch
from support.ui.dashboards import Visitor, visiting
from support.ui.showcases import Showcase, fill, queue_on

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    """The page. make has built it; where pytest is run by itself, it is built here."""
    with (tmp_path_factory.getbasetemp().parent / "page.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Tests run in two processes.
        if not (BUILT / "index.html").exists():
            subprocess.run([sys.executable, "hatch_build.py", "build"], cwd=ROOT, check=True)
    return Assets()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(built: Assets) -> AsyncIterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip(HOW_TO_GET_IT)
    async with async_playwright() as playwright:
        launched = await launch(playwright, executable)
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tabs(browser: Browser) -> AsyncIterator[Tabs]:
    opened = Tabs(browser)
    yield opened
    await opened.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Screenshots:
    return Screenshots(tmp_path)


# A queue with a bit of everything, and the way to its dashboard; each test has another one. Modules that want others
# have their own.


@pytest_asyncio.fixture(loop_scope="session")
async def stocked_queue() -> AsyncIterator[tuple[Queue, Showcase]]:
    async with await queue_on(MemoryStore()) as queue:
        yield queue, await fill(queue)


@pytest.fixture
def queue(stocked_queue: tuple[Queue, Showcase]) -> Queue:
    return stocked_queue[0]


@pytest.fixture
def there(stocked_queue: tuple[Queue, Showcase]) -> Showcase:
    return stocked_queue[1]


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(queue: Queue) -> AsyncIterator[Visitor]:
    async with visiting(queue.store) as visitor:
        yield visitor
