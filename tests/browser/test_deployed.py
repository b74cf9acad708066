"""The page in a bucket of a real server, deployed and let in as the guide says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.async_api import expect

from qo.config.settings import S3Settings, Settings
from qo.config.ui import UiSettings
from qo.core.task import Status
from qo.ui.assets import Assets
from qo.ui.minting import mint
from qo.ui.page_deploy import deploy
from support.servers.s3 import REGION, S3Server
from support.ui.browsers import Tabs
from support.ui.dashboards import ROLE, running_with_sts
from support.ui.showcases import fail, fill, queue_on

pytestmark = [pytest.mark.s3, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_with_sts(tmp_path_factory.mktemp("seaweed-page")) as server:
        yield server


async def test_a_page_in_the_bucket_shows_and_acts_with_minted_credentials_and_finds_later_queues(
    server: S3Server, built: Assets, tabs: Tabs
) -> None:
    bucket = server.make_bucket()
    settings = Settings(
        store=f"s3://{bucket}/team",
        s3=S3Settings(endpoint=server.endpoint, region=REGION),
        ui=UiSettings(role_arn=ROLE),
    )
    page = (await deploy(settings, public=True, assets=built)).link
    async with (
        await queue_on(await server.open_store(bucket, prefix="team/")) as queue,
        await queue_on(await server.open_store(bucket, prefix="team/queues/later/")) as later,
    ):
        there = await fill(queue)
        await fail(later, await later.submit("sweep", {}))
        held = await asyncio.to_thread(mint, settings, read_only=False, hours=1)
        tab = await tabs.new()
        refused: list[str] = []
        tab.page.on("response", lambda reply: refused.append(reply.url) if reply.status >= 400 else None)
        await tab.open(f"{page}#c={held.text()}", "/")
        await tab.shown("bill", "greet", "train")
        for route in ("/tasks", "/failures", "/shards", "/workers", "/schedules"):
            await tab.go(route)
            await tab.quiet()
        await expect(tab.page.get_by_role("alert")).to_have_count(0)

        await tab.go(f"/task/{there.failed}")
        await tab.page.get_by_role("button", name="Replay").click()
        await tab.page.get_by_role("button", name="Replay the task").click()
        await expect(tab.page.get_by_role("dialog")).to_have_count(0)
        assert (await queue.get(there.failed)).status is Status.PENDING

        await tab.go("/")
        await tab.page.get_by_role("combobox", name="Queue").select_option("later")
        await tab.shown("sweep")
        await tab.quiet()
        assert refused == []  # Not even for what most queues lack: a browser writes each down as an error.
