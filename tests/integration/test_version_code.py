"""A version is its code: whatever a worker had imported, and whatever lies in its directory, its tasks run what was
deployed. Real dispatchers and workers."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from qo.dispatcher.bundles.bundle_store import bundle_id_for
from support.dispatcher.code_versions import Shop
from support.dispatcher.sites import WITHIN_S, Site, embedded, servers, site
from support.stores.queues import until

__all__ = ["embedded", "servers", "site"]


@pytest.mark.parametrize("own_process", [False, True], ids=["beside", "own-process"])
async def test_a_deploy_beside_running_workers_is_built_by_the_new_code_and_a_rollback_by_the_old(
    site: Site, own_process: bool
) -> None:
    shop = Shop(site, own_process=own_process)
    shop.write(rate=1)
    async with site.dispatcher(), site.worker("w1"):
        await shop.deploy()
        await site.emit("p1")
        await shop.served({"p1": "1"})
        shop.write(rate=2)
        assert await shop.deploy() == 2
        assert shop.serving() == {"p1": "2"}
        await shop.rollback()
        await site.emit("p2")
        await shop.served({"p1": "1", "p2": "1"})
        (last,) = [row["id"] for row in site.tasks("priced") if row["partition_key"] == "p2"]
        log = await site.client.get(f"/v1/tasks/{last}/log")
        assert [line["text"] for line in log["lines"]] == ["at rate 1"]  # In whichever process it ran.


async def test_two_versions_are_run_at_the_same_time_by_one_worker(embedded: Site) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    async with embedded.dispatcher(), embedded.worker("w1"):
        await shop.deploy()
        await embedded.emit("p1", "p2", "p3")
        await shop.served({name: "1" for name in ("p1", "p2", "p3")})
        shop.write(rate=2)
        staged = await shop.stage()
        await embedded.emit("p4")  # Both versions make it.
        await shop.served({name: "1" for name in ("p1", "p2", "p3", "p4")})
        assert await shop.deploy() == staged["version"]
        assert shop.serving() == {name: "2" for name in ("p1", "p2", "p3", "p4")}


@pytest.mark.long
async def test_editing_the_directory_without_a_deploy_changes_nothing(embedded: Site) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    async with embedded.dispatcher():
        async with embedded.worker("w1", PYTHONPATH=str(shop.home)):
            await shop.deploy()
            await embedded.emit("p1")
            await shop.served({"p1": "1"})
            shop.write(rate=5)
            await embedded.emit("p2")
            await shop.served({"p1": "1", "p2": "1"})
        async with embedded.worker("w2", PYTHONPATH=str(shop.home)):  # A restart does not, either.
            await embedded.emit("p3")
            await shop.served({"p1": "1", "p2": "1", "p3": "1"})


@pytest.mark.parametrize("harm", ["gone", pytest.param("tampered", marks=pytest.mark.long)])
async def test_without_its_code_a_task_waits_and_a_deploy_of_the_same_file_brings_it_back(
    embedded: Site, harm: str
) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    async with embedded.dispatcher():
        await shop.deploy()
        bundle = shop.bundle()
        body = bundle.read_bytes()
        if harm == "gone":
            bundle.unlink()
        else:
            bundle.write_bytes(body.replace(b"PK", b"PQ", 1))
        async with embedded.worker("w1"):
            await embedded.emit("p1")
            task = await until(_put_off(embedded), within_s=WITHIN_S, every_s=0.1)
            assert "the code of its version cannot be read" in task["reschedule_reason"]
            assert (task["status"], task["retry_count"]) == ("pending", 0)
            assert shop.serving() == {}
            if harm == "gone":
                assert (await shop.stage())["changed"] is False
                assert bundle.read_bytes() == body
            else:
                bundle.write_bytes(body)
            await shop.served({"p1": "1"})


def _put_off(site: Site) -> Any:
    async def found() -> Any:
        tasks = [await site.client.get(f"/v1/tasks/{row['id']}") for row in site.tasks("priced")]
        return next((task for task in tasks if task["reschedule_reason"]), None)

    return found


async def test_a_process_of_a_version_that_is_killed_costs_an_attempt_and_the_next_one_succeeds(
    embedded: Site,
) -> None:
    shop = Shop(embedded, own_process=True)
    shop.write(rate=1)
    text = (shop.home / "pipeline.yaml").read_text()
    (shop.home / "pipeline.yaml").write_text(text + "    config: {s: 1.5}\n")
    async with embedded.dispatcher(), embedded.worker("w1") as worker:
        await shop.deploy()
        await embedded.emit("p1")

        async def child() -> int | None:
            path = f"/proc/{worker.process.pid}/task/{worker.process.pid}/children"
            with open(path) as listed:  # noqa: ASYNC230 - a file of the kernel's.
                children = [int(each) for each in listed.read().split()]
            running = any(row["status"] == "running" for row in embedded.tasks("priced"))
            return children[0] if children and running else None

        os.kill(await until(child, within_s=WITHIN_S, every_s=0.05), signal.SIGKILL)
        await shop.served({"p1": "1"})
        task = embedded.task("priced")
        assert embedded.attempts(task["id"])[0] == "retried"
        assert task["attempt"] == 2


@pytest.mark.long
async def test_a_worker_that_ends_gives_back_what_the_process_of_a_version_runs(embedded: Site) -> None:
    shop = Shop(embedded, own_process=True)
    shop.write(rate=1)
    text = (shop.home / "pipeline.yaml").read_text()
    (shop.home / "pipeline.yaml").write_text(text + "    config: {s: 2}\n")
    async with embedded.dispatcher():
        async with embedded.worker("w1", QO_SHUTDOWN_GRACE_S="0.1", QO_CANCEL_GRACE_S="10") as worker:
            await shop.deploy()
            await embedded.emit("p1")

            async def running() -> bool:
                return any(row["status"] == "running" for row in embedded.tasks("priced"))

            await until(running, within_s=WITHIN_S, every_s=0.05)
            worker.signal(signal.SIGTERM)
            await worker.code()
        async with embedded.worker("w2"):
            await shop.served({"p1": "1"})
        assert embedded.task("priced")["retry_count"] == 0


async def test_code_that_a_deploy_leaves_out_is_the_workers_own_and_is_marked_so(embedded: Site) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    async with embedded.dispatcher(), embedded.worker("w1", PYTHONPATH=str(shop.home)) as worker:
        await shop.deploy(code=False)
        await embedded.emit("p1")
        await shop.served({"p1": "1"})
        task = await embedded.client.get(f"/v1/tasks/{embedded.task('priced')['id']}")
        worker.signal(
            signal.SIGTERM
        )  # Lineage is written after the commit: a worker that ends in order has written it.
        await worker.code()
    assert (task["bundle"], task["code"], task["attempts"][0]["code"]) == (None, None, None)
    lineage = [
        json.loads(path.read_text())["run"]["facets"]["qo_task"]
        for path in (embedded.directory / ".qo" / "data" / "_lineage").rglob("*-complete.json")
    ]
    assert [each["ownCode"] for each in lineage] == [True]


@pytest.mark.long
async def test_an_attempt_reports_the_code_that_it_ran(embedded: Site) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    async with embedded.dispatcher(), embedded.worker("w1"):
        await shop.deploy()
        await embedded.emit("p1")
        await shop.served({"p1": "1"})
        task = await embedded.client.get(f"/v1/tasks/{embedded.task('priced')['id']}")
        shown = await embedded.client.get(f"/v1/bundles/{bundle_id_for(task['bundle'])}")
    assert task["attempts"][0]["code"] == task["code"] is not None
    assert (shown["runtime"], shown["state"]) == ("pipeline", "final")


@pytest.mark.parametrize("policy", [pytest.param("warn", marks=pytest.mark.long), "refuse"])
async def test_an_installed_package_that_differs_from_the_recorded_one_is_reported_and_can_be_refused(
    embedded: Site, policy: str
) -> None:
    shop = Shop(embedded)
    shop.write(rate=1)
    # A distribution that only the deploying side has.
    info = shop.home / "elsewhere-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("msgspec\n")
    import sys

    sys.path.insert(0, str(shop.home))
    try:
        (shop.home / "rates.py").write_text("import msgspec\n" + (shop.home / "rates.py").read_text())
        async with embedded.dispatcher(), embedded.worker("w1", QO_WORKER_PACKAGES=policy):
            await shop.deploy()
            await embedded.emit("p1")
            if policy == "refuse":
                task = await until(_put_off(embedded), within_s=WITHIN_S, every_s=0.1)
                assert "elsewhere 1.0 is not installed" in task["reschedule_reason"]
                assert shop.serving() == {}
            else:
                await shop.served({"p1": "1"})
                task = await embedded.client.get(f"/v1/tasks/{embedded.task('priced')['id']}")
                assert task["attempts"][0]["packages"] == ["elsewhere 1.0 is not installed"]
    finally:
        sys.path.remove(str(shop.home))
