"""Every page, from a link that leads right to it: on the embedded store, and in a real bucket."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import expect

from qo.config.settings import S3Settings, Settings
from qo.config.ui import UiSettings
from qo.core.task import Status
from qo.queue.queue import Queue
from qo.store.opening import open_store
from qo.store.queue_manifest import Proof, record_proof
from qo.ui.assets import Assets
from qo.ui.dashboard import Dashboard
from qo.ui.minting import mint
from qo.ui.page_deploy import deploy
from qo.ui.serving import serve
from support.servers.s3 import REGION
from support.ui.browsers import Tabs
from support.ui.dashboards import ROLE, running_with_sts
from support.ui.showcases import DEAD, ERROR, WORKER, Showcase, fill, queue_on

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Place:
    link: str
    queue: Queue
    there: Showcase


@asynccontextmanager
async def filled(settings: Settings) -> AsyncIterator[tuple[Queue, Showcase]]:
    store, _ = await open_store(settings)
    async with await queue_on(store) as queue:
        proof = Proof(
            proven_at=await store.now(), server="tests", checks=(), conditional_delete=True, versioned=True
        )
        await record_proof(store, proof)
        yield queue, await fill(queue)


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[str]:
    """As ``qo ui`` does: the link."""
    stop = asyncio.Event()
    told: asyncio.Future[Dashboard] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(serve(settings, stop, on_start=told.set_result, port=0))
    await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
    try:
        yield told.result().link
    finally:
        stop.set()
        await running


@pytest_asyncio.fixture(loop_scope="session")
async def embedded(tmp_path: Path, built: Assets) -> AsyncIterator[Place]:
    """As ``qo ui`` shows the store of a directory."""
    settings = Settings(store=f"local:{tmp_path / '.qo'}")
    async with filled(settings) as (queue, there), serving(settings) as link:
        yield Place(link, queue, there)


@pytest.fixture(scope="module")
def sts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server that hands out credentials."""
    with running_with_sts(tmp_path_factory.mktemp("seaweed-browser")) as server:
        server.admin.create_bucket(Bucket="shown")
        server.admin.put_bucket_versioning(Bucket="shown", VersioningConfiguration={"Status": "Enabled"})
        yield server.endpoint


@pytest_asyncio.fixture(loop_scope="session")
async def bucket(sts: str, built: Assets) -> AsyncIterator[Place]:
    """As ``qo ui deploy --public`` and ``qo ui credentials --link`` leave it; no process of qo runs."""
    settings = Settings(
        store=f"s3://shown/team-{uuid4()}",
        s3=S3Settings(endpoint=sts, region=REGION),
        ui=UiSettings(role_arn=ROLE),
    )
    async with filled(settings) as (queue, there):
        deployed = await deploy(settings, public=True, assets=built)
        assert deployed.todos == []
        held = await asyncio.to_thread(mint, settings, read_only=False, hours=1)
        yield Place(f"{deployed.link}#c={held.text()}", queue, there)


@pytest.fixture(params=["embedded", pytest.param("bucket", marks=[pytest.mark.s3, pytest.mark.long])])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(request.param)


async def test_every_page_of_the_queue_opens_from_a_link_and_shows_what_is_there(place: Place, tabs: Tabs) -> None:
    there = place.there
    pages: dict[str, tuple[str, list[str]]] = {
        "/": ("Overview", ["Waiting", "7 tasks", ERROR, "greet", "$0.24"]),
        "/tasks": ("Tasks", ["greet", "train", ERROR, WORKER]),
        f"/task/{there.pending}": (there.pending, ["pending", "ada", "submitted"]),
        f"/task/{there.running}": (there.running, ["expires in", WORKER, "claimed, attempt 1"]),
        f"/task/{there.completed}": (there.completed, ["hello eve", "completed"]),
        f"/task/{there.failed}": (there.failed, [ERROR, 'File "bill.py", line 7', "3 versions"]),
        f"/task/{there.cancelled}": (there.cancelled, ["by tests: not wanted any more"]),
        f"/task/{there.archived}": (there.archived, ["was completed"]),
        "/failures": ("Failures", [ERROR, "1 failed task"]),
        "/shards": ("Shards", ["16 shards", "1 running"]),
        "/workers": ("Workers", [WORKER, "active", DEAD, "stale"]),
        f"/worker/{WORKER}": (WORKER, ["1,234", "machine-7", "98,765"]),
        "/schedules": ("Schedules", ["nightly-report", "0 3 * * *", "enabled"]),
        "/pipelines": ("Pipelines", ["No dispatcher is configured"]),
    }
    tab = await tabs.open(place.link, "/")
    for number, (route, (heading, texts)) in enumerate(pages.items()):
        # A load takes ten times as long as a step, and does the same from there on.
        await (tab.go(route) if number % 4 else tab.open(place.link, route))
        await tab.heading(re.compile(re.escape(heading)))
        await tab.shown(*texts)
        await expect(tab.page.get_by_role("alert")).to_have_count(0)
        assert await tab.page.evaluate("location.hash") == f"#{route}"


async def test_each_waiting_task_is_counted_in_its_shard(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/shards")
    waiting = tab.page.get_by_role("img", name="waiting")
    await expect(waiting).to_have_count(16)
    told = [int((await each.get_attribute("aria-label") or "").split()[0]) for each in await waiting.all()]
    assert sum(told) == 2  # The one that is due, and the one that will be in an hour.


async def test_a_list_is_narrowed_by_its_address_and_by_hand(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, "/tasks?status=failed")
    rows = tab.page.locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("bill")
    await tab.page.get_by_label("Status").select_option("")
    await expect(rows).to_have_count(6)  # All but the archived one.
    await tab.page.get_by_label("Status").select_option("all")
    await expect(rows).to_have_count(7)
    await tab.page.get_by_label("Type").fill("train")
    await tab.page.get_by_label("Status").select_option("")
    await expect(rows).to_have_count(6)
    await tab.page.get_by_label("Type").press("Enter")  # What was typed outlives a new list.
    await expect(rows).to_have_count(1)
    assert await tab.page.evaluate("location.hash") == "#/tasks?type=train"
    await tab.page.get_by_label("Id").fill(place.there.failed)
    await tab.page.get_by_label("Id").press("Enter")
    await tab.shown('File "bill.py", line 7')
    await tab.page.go_back()
    await expect(rows).to_have_count(1)


async def test_any_two_versions_of_a_task_can_be_compared(place: Place, tabs: Tabs) -> None:
    tab = await tabs.open(place.link, f"/task/{place.there.failed}")
    differences = tab.page.locator("table.diff tbody tr")
    await expect(differences.filter(has_text="status")).to_contain_text(["runningfailed"])
    await tab.page.get_by_label("From").select_option(index=0)
    await expect(differences.filter(has_text="status")).to_contain_text(["pendingfailed"])
    await tab.page.get_by_label("To").select_option(index=0)
    await tab.shown("No differences")


async def test_what_the_page_does_is_what_the_queue_then_says(place: Place, tabs: Tabs) -> None:
    queue = place.queue
    wrong = await queue.submit("walk", {"n": 1})
    await queue.hints.flush()
    tab = await tabs.open(place.link, f"/task/{wrong.id}")
    press = tab.page.get_by_role("button", name="Cancel", exact=True)
    await press.click()
    await tab.page.get_by_label("Why").fill("asked by a test")
    await tab.page.get_by_role("button", name="Cancel the task").click()
    await expect(tab.page.get_by_role("status")).to_contain_text("The task was cancelled.")
    cancelled = await queue.get(wrong.id)
    assert (cancelled.status, cancelled.cancel_reason) == (Status.CANCELLED, "asked by a test")
    for verb, after in (("Archive", Status.ARCHIVED), ("Unarchive", Status.CANCELLED), ("Replay", Status.PENDING)):
        await tab.page.get_by_role("button", name=verb, exact=True).click()
        await tab.page.get_by_role("button", name=f"{verb} the task").click()
        await expect(tab.page.get_by_role("dialog")).to_have_count(0)
        assert (await queue.get(wrong.id)).status is after
    history = [each.status for each in await queue.history(wrong.id)]
    assert history == [Status.PENDING, Status.CANCELLED, Status.ARCHIVED, Status.CANCELLED, Status.PENDING]
    # A worker finds it by the index that the page wrote.
    assert wrong.id in [each.id for each in await queue.list(status=Status.PENDING)]
    await queue.cancel(wrong.id)


async def test_the_queues_of_runtimes_can_be_chosen(tmp_path: Path, tabs: Tabs) -> None:
    root = Settings(store=f"local:{tmp_path / '.qo'}")
    below = Settings(store=f"local:{tmp_path / '.qo/queues/python'}")
    async with filled(root), filled(below) as (queue, _):
        await queue.submit("only-in-the-branch", None)
        await queue.hints.flush()
        async with serving(root) as link:
            tab = await tabs.open(link, "/tasks")
            await tab.shown("greet")
            await expect(tab.page.get_by_text("only-in-the-branch")).to_have_count(0)
            await tab.page.get_by_role("combobox", name="Queue").select_option(label="python")
            await tab.shown("only-in-the-branch")
            await tab.page.get_by_role("navigation", name="Queue").get_by_role("link", name="Tasks").click()
            await tab.heading("Tasks")
            await tab.shown("only-in-the-branch")  # The choice holds from page to page.
