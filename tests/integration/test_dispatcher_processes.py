"""Dispatchers and workers as processes: two at once, outages, stalls and polite ends."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from qo.core.task import Status
from support.dispatcher.sites import SHORT_LEASE_S, WITHIN_S, Site, embedded, job, on_postgres, pipeline, servers
from support.process_family import pause, resume
from support.stores.queues import until

__all__ = ["embedded", "on_postgres", "servers"]

GATED = job("a", operator="gated", config={"gate": "gate"})


@pytest.fixture(params=["on_postgres", pytest.param("embedded", marks=pytest.mark.long)])
def on_postgres_first(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["embedded", pytest.param("on_postgres", marks=pytest.mark.long)])
def embedded_first(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)


@pytest.fixture(
    params=[
        "on_postgres",
        pytest.param("embedded", marks=pytest.mark.long),
        pytest.param("servers", marks=[pytest.mark.s3, pytest.mark.long]),
    ]
)
def shared(request: pytest.FixtureRequest) -> Site:
    """For several dispatchers: with PostgreSQL first, as users run them."""
    return request.getfixturevalue(request.param)


def opened(site: Site) -> Path:
    gate = site.directory / "gate"
    gate.touch()
    return gate


async def test_two_dispatchers_share_the_work_and_one_may_die(shared: Site) -> None:
    """Each has a worker of its own. When one dies, its worker's tasks and wake-ups come to the other in time."""
    site = shared
    async with (
        site.dispatcher(0, QO_DISPATCHER_SWEEP_S="3"),
        site.dispatcher(1) as doomed,
        site.worker("w0", 0),
        site.worker("w1", 1),
    ):
        await site.deploy(pipeline(job("a"), job("b", "a"), lease_s=SHORT_LEASE_S))
        names: list[str] = []

        async def both_work() -> bool:
            """One that is ahead may do all that there is: there is always more."""
            more = [f"p{len(names) + number}" for number in range(4)]
            await site.emit(*more)
            names.extend(more)
            return {row["worker_id"] for row in site.tasks("a")} >= {"w0", "w1"}

        await until(both_work, within_s=WITHIN_S, every_s=0.2)
        feeding = asyncio.create_task(site.feed(3))
        doomed.signal(signal.SIGKILL)
        await doomed.code()
        names += await feeding
        await site.completed({"a": len(names), "b": len(names)})
    site.audit(["a", "b"], names)
    assert site.read("b") == {name: f"a {name}\nb {name}\n" for name in names}


async def test_a_dispatcher_never_takes_from_a_queue(embedded: Site) -> None:
    """It sends wake-ups and leaves them alone: without a worker nothing runs."""
    site = embedded
    async with site.dispatcher():
        await site.deploy(pipeline(job("a")))
        for sent in (3, 6):  # It has gone round its loops when the later ones are there.
            await site.emit(*(f"p{number}" for number in range(sent - 3, sent)))
            messages = await site.woken(sent)
    assert {(each.status, each.attempt) for each in messages} == {(Status.PENDING, 0)}
    assert {(row["status"], row["attempt"]) for row in site.tasks("a")} == {("pending", 0)}


async def test_a_worker_outlives_an_outage_of_its_dispatcher(on_postgres_first: Site) -> None:
    """Longer than the lease: as long as nobody else has begun, the result still counts."""
    site = on_postgres_first
    async with site.worker("w1"):
        async with site.dispatcher() as before:
            await site.deploy(pipeline(GATED, lease_s=SHORT_LEASE_S))
            await site.emit("p")
            await site.noted("begin", 1)
            before.signal(signal.SIGKILL)
            await before.code()
            opened(site)
            await site.noted("end", 1)

        async def lapsed() -> bool:
            with site.state.read() as tx:
                return site.task("a")["lease_expires_at"] < tx.now

        await until(lapsed, within_s=WITHIN_S, every_s=0.1)
        async with site.dispatcher():
            await site.completed({"a": 1}, hasten=False)
    task = site.task("a")
    assert (task["attempt"], site.attempts(task["id"])) == (1, ["completed"])
    assert site.read("a") == {"p": "a p by attempt 1\n"}
    site.audit(["a"], ["p"])


async def test_a_worker_that_was_frozen_for_too_long_settles_nothing(embedded_first: Site) -> None:
    """It wakes up when its successor is done, finishes its own attempt, and is told that nobody wants it."""
    site = embedded_first
    async with site.dispatcher(), site.worker("w1") as frozen:
        await site.deploy(pipeline(GATED, lease_s=SHORT_LEASE_S))
        await site.emit("p")
        await site.noted("begin", 1)
        pause(frozen.process.pid)
        opened(site)
        async with site.worker("w2"):
            await site.completed({"a": 1})
        resume(frozen.process.pid)

        async def told() -> bool:
            return "the lease is lost" in frozen.said or "was refused" in frozen.said

        await until(told, within_s=WITHIN_S, every_s=0.05)
        frozen.signal(signal.SIGTERM)
        assert await frozen.code() == 0
    task = site.task("a")
    assert (task["worker_id"], site.attempts(task["id"])) == ("w2", ["timed_out", "completed"])
    assert site.read("a") == {"p": "a p by attempt 2\n"}
    site.audit(["a"], ["p"])


@pytest.mark.long
async def test_a_worker_that_loses_only_its_wake_up_gives_the_task_back_at_no_cost(embedded: Site) -> None:
    """The message has a short lease and goes to another; the task's own lease is long and still good. To keep quiet
    about it would keep the task from everyone until that has run out."""
    site = embedded
    async with site.dispatcher(), site.worker("w1", QO_LEASE_S="2") as frozen:
        await site.deploy(pipeline(GATED, lease_s=3600))
        await site.emit("p")
        await site.noted("begin", 1)
        pause(frozen.process.pid)
        async with site.worker("w2"):

            async def taken_over() -> bool:
                return all(message.ended for message in await site.woken(1))

            await until(taken_over, within_s=WITHIN_S, every_s=0.2)
            resume(frozen.process.pid)

            async def given_back() -> bool:
                return site.attempts(site.task("a")["id"])[:1] == ["released"]

            await until(given_back, within_s=WITHIN_S, every_s=0.1)
            opened(site)
            await site.completed({"a": 1}, hasten=False)
    assert (site.task("a")["retry_count"], site.attempts(site.task("a")["id"])[-1]) == (0, "completed")
    site.audit(["a"], ["p"])


@pytest.mark.long
async def test_a_worker_that_is_told_to_stop_gives_its_task_back_at_no_cost(embedded: Site) -> None:
    site = embedded
    async with site.dispatcher(), site.worker("w1", QO_SHUTDOWN_GRACE_S="0.2") as leaving:
        await site.deploy(pipeline(GATED))
        await site.emit("p")
        await site.noted("begin", 1)
        leaving.signal(signal.SIGTERM)
        assert await leaving.code() == 0
        opened(site)
        async with site.worker("w2"):
            await site.completed({"a": 1}, hasten=False)
    task = site.task("a")
    assert (task["attempt"], task["retry_count"], task["worker_id"]) == (2, 0, "w2")
    assert site.attempts(task["id"]) == ["released", "completed"]
    site.audit(["a"], ["p"])


async def test_a_worker_that_is_told_to_stop_finishes_what_it_has_begun(embedded: Site) -> None:
    site = embedded
    async with site.dispatcher(), site.worker("w1") as leaving:
        await site.deploy(pipeline(GATED))
        await site.emit("p")
        await site.noted("begin", 1)
        leaving.signal(signal.SIGTERM)
        opened(site)
        assert await leaving.code() == 0
    task = site.task("a")
    assert (task["status"], site.attempts(task["id"])) == ("completed", ["completed"])


@pytest.mark.long
async def test_files_are_announced_once_however_often_the_scheduler_is_killed(embedded: Site) -> None:
    site, inbox = embedded, embedded.directory / "inbox"
    inbox.mkdir()
    watched = json.loads(pipeline(job("a")))
    watched["jobs"][0]["source"] = {"kind": "files", "path": str(inbox), "pattern": "*.csv", "poll_seconds": 1}
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(json.dumps(watched))
        for number in range(2):
            (inbox / f"{number}.csv").write_text("1,2\n")
            async with site.scheduler() as scheduler:
                await site.completed({"a": number + 1})
                scheduler.signal(signal.SIGKILL)
                await scheduler.code()
        (inbox / "2.csv").write_text("3,4\n")
        async with site.scheduler() as scheduler:
            await site.completed({"a": 3})
            scheduler.signal(signal.SIGTERM)
            assert await scheduler.code() == 0, scheduler.said
    site.audit(["a"], [row["partition_key"] for row in site.tasks("a")])
    assert len(site.tasks("feed")) == 3
