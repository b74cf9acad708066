"""A scaler with worker processes for real: from zero to the most and back, deaths, restarts, outages, two at once."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from support.dispatcher.sites import SHORT_LEASE_S, WITHIN_S, Process, Site, embedded, job, on_postgres, pipeline
from support.scaling.scaled_sites import list_live, pid_of, run_scaler, wait_for_workers
from support.stores.queues import until

__all__ = ["embedded", "on_postgres"]

GATED = job("a", operator="gated", config={"gate": "gate"})


@pytest.fixture(params=["embedded", pytest.param("on_postgres", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)


async def test_workers_come_with_a_burst_go_after_it_and_one_that_is_killed_is_replaced(site: Site) -> None:
    """No task is lost and none runs twice, except that of the killed worker, which runs again."""
    names = [f"p{number}" for number in range(6)]
    async with site.dispatcher(), run_scaler(site, "s1"):
        await site.deploy(pipeline(GATED, lease_s=SHORT_LEASE_S))
        assert await list_live(site) == []
        await site.emit(*names)
        workers = await wait_for_workers(site, 2)  # Six tasks would need three workers of two slots.
        await site.noted("begin", 4)
        os.kill(pid_of(site, workers[0]), signal.SIGKILL)

        async def replaced() -> bool:
            return {each.uid for each in await list_live(site)} - {each.uid for each in workers} != set()

        await until(replaced, within_s=WITHIN_S, every_s=0.05)
        site.lapse(f"{workers[0].name}-{workers[0].uid}")
        (site.directory / "gate").touch()
        await site.completed({"a": len(names)})
        await wait_for_workers(site, 0)
        answer = await site.client.get("/v1/scaling", decisions=100)
    site.audit(["a"], names)
    assert site.notes("end") == {f"a {name}": 1 for name in names}
    [runtime] = answer["runtimes"]
    codes = {each["code"] for each in runtime["decisions"]}
    assert codes >= {"work_at_zero", "idle"}
    assert runtime["load"] | {"task_s": 0, "busy": {}} == {
        "runtime": "python",
        "waiting": 0,
        "running": 0,
        "oldest_s": 0,
        "task_s": 0,
        "in_flight_max": None,
        "held": 0,
        "busy": {},
    }
    shown = await asyncio.to_thread(site.qo().ok, "scaling")
    assert "start 2" in shown
    assert "nothing has been waiting or running for" in shown


@pytest.mark.long
async def test_a_scaler_that_is_restarted_finds_its_workers_again(site: Site) -> None:
    async with site.dispatcher():
        await site.deploy(pipeline(GATED))
        async with run_scaler(site, "s1") as first:
            await site.emit("p0", "p1")
            before = await wait_for_workers(site, 1)
            await site.noted("begin", 2)
            first.signal(signal.SIGTERM)
            assert await first.code() == 0
            assert [each.uid for each in await list_live(site)] == [each.uid for each in before]
            async with run_scaler(site, "s1") as second:
                await until(lambda: _contains(second, "decides for python"), within_s=WITHIN_S, every_s=0.05)
                assert [each.uid for each in await list_live(site)] == [each.uid for each in before]
                (site.directory / "gate").touch()
                await site.completed({"a": 2})
                await wait_for_workers(site, 0)
    site.audit(["a"], ["p0", "p1"])


@pytest.mark.long
async def test_while_the_dispatcher_is_away_all_workers_stay(site: Site) -> None:
    async with run_scaler(site, "s1") as scaler:
        async with site.dispatcher():
            await site.deploy(pipeline(GATED))
            await site.emit("p0", "p1", "p2", "p3")
            before = await wait_for_workers(site, 2)
            await site.noted("begin", 4)
        await until(lambda: _contains(scaler, "all workers stay as they are"), within_s=WITHIN_S, every_s=0.05)
        assert [each.uid for each in await list_live(site)] == [each.uid for each in before]
        (site.directory / "gate").touch()
        async with site.dispatcher():
            await site.completed({"a": 4})
            await wait_for_workers(site, 0)
    site.audit(["a"], ["p0", "p1", "p2", "p3"])


@pytest.mark.long
async def test_of_two_scalers_one_decides_and_the_other_takes_over(site: Site) -> None:
    async with site.dispatcher(), run_scaler(site, "s1", min=2) as first:
        await wait_for_workers(site, 2)
        async with run_scaler(site, "s2", min=2) as second:
            await until(lambda: _contains(second, "s1 decides for python"), within_s=WITHIN_S, every_s=0.05)
            before = await wait_for_workers(site, 2)
            first.signal(signal.SIGKILL)
            await until(lambda: _contains(second, "this scaler decides"), within_s=WITHIN_S, every_s=0.05)
            os.kill(pid_of(site, before[0]), signal.SIGKILL)

            async def replaced() -> bool:
                return len({each.uid for each in await list_live(site)} - {each.uid for each in before}) == 1

            await until(replaced, within_s=WITHIN_S, every_s=0.05)


@pytest.mark.long
async def test_a_scaler_that_ends_with_drain_takes_its_workers_along(site: Site) -> None:
    async with site.dispatcher(), run_scaler(site, "s1", "--drain", min=1) as scaler:
        await wait_for_workers(site, 1)
        scaler.signal(signal.SIGTERM)
        assert await scaler.code() == 0
        assert await list_live(site) == []


async def _contains(process: Process, text: str) -> bool:
    return text in process.said
