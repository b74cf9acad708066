"""Game days: what is drilled on a running system. Real processes, real databases, real stores, real signals.

Each drill breaks one part while work flows, and asks the same of the rest: nothing lost, nothing doubled, and work
goes on when the part is back.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.core.task import Status
from qo.dispatcher.state import schema
from qo.queue.options import NewTask, Options
from support.dispatcher.sites import (
    SHORT_LEASE_S,
    WITHIN_S,
    BucketSite,
    Site,
    embedded,
    job,
    pipeline,
    proven,
    servers,
    site,
)
from support.process_family import family_of, paused
from support.servers.postgres import PostgresServer
from support.servers.s3 import S3Server, start_seaweed
from support.stores.queues import until

__all__ = ["embedded", "servers", "site"]

PAUSE_S = 2.5
TWO_STEPS = pipeline(job("a"), job("b", "a"))


def expected(names: list[str], *jobs: str) -> dict[str, str]:
    return {name: "".join(f"{each} {name}\n" for each in jobs) for name in names}


# Restart the dispatcher


@pytest.mark.long  # One that is killed for good is in test_dispatcher_processes.
async def test_a_dispatcher_may_be_restarted_or_killed_at_any_instant(site: Site) -> None:
    """Under load, politely and with kill -9. Who emits, and who works, waits for it and asks again."""
    chance = random.Random(20)
    async with AsyncExitStack() as stack, site.worker("w1"), site.worker("w2"):
        dispatcher = await stack.enter_async_context(site.dispatcher())
        await site.deploy(TWO_STEPS)
        feeding = asyncio.create_task(site.feed(10))
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            await asyncio.sleep(chance.uniform(0.1, 1.0))  # Any instant: there is nothing to wait for.
            dispatcher.signal(number)
            assert await dispatcher.code() == (0 if number == signal.SIGTERM else -number), dispatcher.said
            dispatcher = await stack.enter_async_context(site.dispatcher())
        names = await feeding
        await site.completed({"a": len(names), "b": len(names)})
    site.audit(["a", "b"], names)
    assert site.read("b") == expected(names, "a", "b")


# Kill a worker mid-task


@pytest.mark.long
async def test_the_task_of_a_killed_worker_is_finished_by_another(embedded: Site) -> None:
    """Its lease runs out, the reaper takes it back, and attempt 2 is another worker's."""
    site, gate = embedded, embedded.directory / "gate"
    async with site.dispatcher(), site.worker("w1") as doomed:
        await site.deploy(pipeline(job("a", operator="gated", config={"gate": "gate"}), lease_s=SHORT_LEASE_S))
        await site.emit("p")
        await site.noted("begin", 1)
        doomed.signal(signal.SIGKILL)
        await doomed.code()
        gate.touch()
        async with site.worker("w2"):
            await site.completed({"a": 1})
    task = site.task("a")
    assert (task["attempt"], task["retry_count"], task["worker_id"]) == (2, 1, "w2")
    assert site.attempts(task["id"]) == ["timed_out", "completed"]
    assert site.read("a") == {"p": "a p by attempt 2\n"}
    site.audit(["a"], ["p"])


# Duplicate wake-ups


@pytest.mark.long
async def test_duplicate_wake_ups_run_nothing_twice(embedded: Site) -> None:
    """A wake-up is only a hint: any number of them, from anyone, begins one attempt."""
    site, names = embedded, [f"p{n}" for n in range(5)]
    async with site.dispatcher():
        await site.deploy(pipeline(job("a", config={"s": 0.1})))
        await site.emit(*names)
        sent = await site.woken(len(names))
        async with site.queue() as queue:
            copies = [NewTask("wake", message.input) for message in sent for _ in range(10)]
            same = [NewTask("wake", sent[0].input, Options(key=sent[0].idempotency_key, key_scope="wake"))] * 3
            by_hand = [*await queue.submit_many(copies), *await queue.submit_many(same)]
            async with site.worker("w1"), site.worker("w2"):
                await site.completed({"a": len(names)})

                async def all_heeded() -> bool:
                    found = await asyncio.gather(*(queue.get(each.id) for each in by_hand))
                    return all(each.status is Status.COMPLETED for each in found)

                await until(all_heeded, within_s=WITHIN_S, every_s=0.1)
    assert site.notes("begin") == {f"a {name}": 1 for name in names}
    assert {row["attempt"] for row in site.tasks("a")} == {1}
    site.audit(["a"], names)


# Pause the state database


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Somebody else has the whole database for a while."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


async def test_work_goes_on_after_the_state_database_stood_still(
    site: Site, request: pytest.FixtureRequest
) -> None:
    """PostgreSQL is frozen; of SQLite, which is no server, somebody holds the only lock. Requests wait meanwhile."""
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(TWO_STEPS)
        feeding = asyncio.create_task(site.feed(5))
        await site.noted("end", 1)
        if isinstance(site, BucketSite):
            server: PostgresServer = request.getfixturevalue("postgres_server")
            standstill = paused(*family_of(server.process.pid))
        else:
            standstill = _locked(site.directory / ".qo" / "state.db")
        with standstill:
            asked = asyncio.create_task(site.emit("meanwhile"))
            await asyncio.sleep(PAUSE_S)  # Nothing may happen, so there is nothing to wait for.
            assert not asked.done()
        assert (await asked)["accepted"] == 1
        names = [*await feeding, "meanwhile"]
        await site.completed({"a": len(names), "b": len(names)})
    site.audit(["a", "b"], names)
    assert site.read("b") == expected(names, "a", "b")


# Pause the data store


@pytest.mark.long
async def test_tasks_are_tried_again_when_the_data_store_refuses(embedded: Site) -> None:
    """The data is no database here but files, so its outage is a directory that cannot be written to."""
    site, data = embedded, embedded.directory / ".qo" / "data"
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(TWO_STEPS)
        data.rmdir()
        data.touch()  # Not a directory: whatever is written below it fails, even for root.
        await site.emit("p1", "p2")

        async def refused() -> bool:
            return [row["retry_count"] for row in site.tasks("a")] == [1, 1]

        await until(refused, within_s=WITHIN_S, every_s=0.1)
        assert all("data" in row["last_error"] for row in site.tasks("a"))
        data.unlink()
        await site.completed({"a": 2, "b": 2})
    assert {row["attempt"] for row in site.tasks("a")} == {2}
    assert {row["attempt"] for row in site.tasks("b")} == {1}
    site.audit(["a", "b"], ["p1", "p2"])
    assert site.read("b") == expected(["p1", "p2"], "a", "b")


@pytest.mark.s3
@pytest.mark.long
async def test_work_goes_on_after_the_bucket_stood_still(servers: BucketSite) -> None:
    """The bucket holds the data and the queue: both stand still, and no lease is lost to it."""
    site = servers
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(TWO_STEPS)
        feeding = asyncio.create_task(site.feed(5))
        await site.noted("end", 1)
        with paused(*family_of(site.server.process.pid)):
            await asyncio.sleep(PAUSE_S)  # Nothing may happen, so there is nothing to wait for.
        names = await feeding
        await site.completed({"a": len(names), "b": len(names)})
    site.audit(["a", "b"], names)
    assert await asyncio.to_thread(site.read, "b") == expected(names, "a", "b")


# Break the queue


async def _kept(site: Site, at_least: int) -> None:
    """So many wake-ups could not be sent and are kept."""

    def count() -> int:
        table = schema.outbox
        with site.state.read() as tx:
            kept = sa.select(sa.func.count()).where(table.c.state == "pending", table.c.attempts > 0)
            return tx.value(kept)

    async def enough() -> bool:
        return await asyncio.to_thread(count) >= at_least

    await until(enough, within_s=WITHIN_S, every_s=0.1)


async def test_wake_ups_wait_in_the_outbox_while_the_queue_is_broken(embedded: Site) -> None:
    site, queues = embedded, embedded.directory / ".qo" / "queues"
    async with site.dispatcher():
        await site.deploy(TWO_STEPS)
        queues.touch()  # Not a directory: no queue can be opened below it.
        await site.emit("p1", "p2", "p3")
        await _kept(site, 3)
        assert {(row["status"], row["attempt"]) for row in site.tasks("a")} == {("pending", 0)}
        queues.unlink()
        async with site.worker("w1"):
            await site.completed({"a": 3, "b": 3})
    site.audit(["a", "b"], ["p1", "p2", "p3"])


@pytest.fixture
def own_bucket(tmp_path: Path) -> Iterator[tuple[S3Server, str]]:
    """A bucket on a server that nobody else uses, so that it may be killed."""
    server = start_seaweed(tmp_path / "seaweed")
    yield server, server.make_bucket()
    server.stop()


@pytest.mark.s3
@pytest.mark.long
async def test_wake_ups_wait_in_the_outbox_while_the_bucket_is_down(
    tmp_path: Path, own_bucket: tuple[S3Server, str]
) -> None:
    """The worker is there all the time; its queue goes away under it and comes back."""
    server, bucket = own_bucket
    await proven(server, bucket)
    site = BucketSite(tmp_path, f"sqlite:{tmp_path / 'state.db'}", server, bucket)
    async with site.dispatcher(), site.worker("w1") as worker:
        await site.deploy(TWO_STEPS)
        await site.emit("before")
        await site.completed({"a": 1, "b": 1})
        server.kill()
        await site.emit("meanwhile")
        await _kept(site, 1)
        server.start()
        await site.completed({"a": 2, "b": 2})
        assert worker.process.returncode is None
    site.audit(["a", "b"], ["before", "meanwhile"])
    await site.close()


# Poison messages


async def test_malformed_wake_ups_are_set_aside(embedded: Site) -> None:
    """They fail for good at the first look, others pass them by, and no task hears of them."""
    site, names = embedded, ["p1", "p2"]
    nonsense = [
        None,
        [],
        "wake",
        7,
        {},
        {"task_id": None},
        {"task_id": ""},
        {"task_id": "x" * 4000},
        {"task": "p"},
    ]
    async with site.dispatcher():
        await site.deploy(TWO_STEPS)
        await site.emit(*names)
        await site.woken(len(names))
        async with site.queue() as queue:
            poison = await queue.submit_many([NewTask("wake", each) for each in nonsense])
            (unknown,) = await queue.submit_many([NewTask("wake", {"task_id": "no-such-task"})])
            async with site.worker("w1"):
                await site.completed({"a": 2, "b": 2})

                async def set_aside() -> bool:
                    found = await asyncio.gather(*(queue.get(each.id) for each in (*poison, unknown)))
                    return all(each.ended for each in found)

                await until(set_aside, within_s=WITHIN_S, every_s=0.1)
                dead = await asyncio.gather(*(queue.get(each.id) for each in poison))
            assert {(each.status, each.attempt) for each in dead} == {(Status.FAILED, 1)}
            assert {each.last_error for each in dead if "task_id" not in (each.last_error or "")} == set()
            assert (await queue.get(unknown.id)).output == "not claimed: not_found"
    assert {row["attempt"] for row in (*site.tasks("a"), *site.tasks("b"))} == {1}
    site.audit(["a", "b"], names)


# Delivery retries


@pytest.mark.long
async def test_a_delivery_is_tried_again_until_it_succeeds(embedded: Site) -> None:
    """A job without outputs: its effect is all there is. Every attempt can be looked at afterwards."""
    site = embedded
    effect = job("notify", "a", "deliver", outputs=0, config={"failures": 2}, max_attempts=3)
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(pipeline(job("a"), effect))
        await site.emit("p")
        await site.completed({"a": 1, "notify": 1}, hasten=False)
    task = site.task("notify")
    assert (site.notes("effect"), site.notes("begin")["notify p"]) == ({"notify p": 1}, 3)
    assert (task["retry_count"], task["output"]) == (2, {"delivered": "p"})
    shown = await asyncio.to_thread(site.qo().json, "run", "show", task["id"])
    assert [each["outcome"] for each in shown["attempts"]] == ["retried", "retried", "completed"]
    assert "the other side refused attempt 2" in shown["attempts"][1]["error"]
    site.audit(["a"], ["p"])


async def test_a_delivery_that_never_succeeds_is_given_up_and_can_be_replayed(embedded: Site) -> None:
    site = embedded
    effect = job("notify", operator="deliver", outputs=0, config={"failures": 2}, max_attempts=2)
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(pipeline(effect))
        await site.emit("p")

        async def given_up() -> bool:
            return [row["status"] for row in site.tasks("notify")] == ["failed"]

        await until(given_up, within_s=WITHIN_S, every_s=0.1)
        assert not site.notes("effect")
        await site.client.post(f"/v1/tasks/{site.task('notify')['id']}/replay")
        await site.completed({"notify": 1})
    assert site.notes("effect") == {"notify p": 1}
    assert site.attempts(site.task("notify")["id"]) == ["retried", "failed", "completed"]
