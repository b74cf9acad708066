"""Push: a task starts at once, and one whose wake-up is lost starts all the same."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest

import qo
from qo.core.poll import Pace
from qo.core.push import sign
from qo.core.task import Status, Task
from qo.errors import ConfigError
from qo.queue import roster
from qo.queue.options import NewTask, Options
from qo.queue.pusher import PushConfig
from qo.queue.queue import Queue
from qo.store.port import ObjectStore
from qo.worker.worker import Worker
from support.stores.queues import app_of, ended, until, working
from support.worker.processes import Place

TOKEN = "a push token of the tests"
LOOPBACK = [ip_network("127.0.0.0/8")]
SLOW = Pace(min_s=60.0, max_s=60.0)  # Whoever relies on polls alone waits for a minute.
TAKES: dict[str, Any] = {"http": "127.0.0.1:0", "push_tokens": (TOKEN,), "pace": SLOW}


async def echo(input: Any) -> Any:
    return input


async def hold(input: Any) -> Any:
    await asyncio.sleep(60)


APP = app_of(echo, hold)


def pushing(store: ObjectStore, **changes: Any) -> Queue:
    return Queue(store, push=PushConfig(TOKEN, LOOPBACK, **changes))


@pytest.fixture
async def producer(any_store: ObjectStore) -> AsyncIterator[Queue]:
    """A producer that pushes, with time that runs as everywhere."""
    made = pushing(any_store, timeout_s=5.0)
    yield made
    assert made.pusher is not None
    await made.pusher.close()


async def idle(worker: Worker) -> None:
    """Wait until the worker rests after a look that found nothing."""
    await until(lambda: _true(worker.stats.empty_looks > 0 and worker.http is not None))


async def _true(value: bool) -> bool:
    return value


async def quick(queue: Queue, task: Task, within_s: float = 15.0) -> Task:
    async with asyncio.timeout(within_s):
        return await ended(queue, task.id)


async def test_a_worker_that_rests_for_a_minute_starts_a_pushed_task_at_once(
    any_store: ObjectStore, producer: Queue
) -> None:
    async with working(Queue(any_store), APP, **TAKES) as worker:
        await idle(worker)
        looks = worker.stats.looks
        task = await producer.submit("echo", 1)
        assert (await quick(producer, task)).output == 1
        many = await producer.submit_many([NewTask("echo", n) for n in range(10)])
        for each in many:
            await quick(producer, each)
        assert producer.pusher is not None
        assert producer.pusher.counts["sent"] >= 2
        assert worker.stats.pushed == 11
        assert worker.stats.looks == looks, "a pushed task is claimed without a LIST"


async def test_replayed_and_released_tasks_are_pushed_too(any_store: ObjectStore, producer: Queue) -> None:
    async with working(Queue(any_store), APP, **TAKES) as worker:
        await idle(worker)
        task = await producer.submit("echo", 1, Options(delay_s=3600))
        await producer.cancel(task.id)
        await producer.replay(task.id)
        assert (await quick(producer, task)).status is Status.COMPLETED


async def test_a_task_that_is_not_due_is_not_pushed(any_store: ObjectStore, producer: Queue) -> None:
    async with working(Queue(any_store), APP, **TAKES) as worker:
        await idle(worker)
        await producer.submit("echo", 1, Options(delay_s=3600))
        assert producer.pusher is not None
        await producer.pusher.close()
        assert not producer.pusher.counts


async def test_a_lost_wake_up_costs_time_and_no_work(any_store: ObjectStore) -> None:
    """The address leads nowhere, is another program's, or the token is wrong: the worker polls all the same."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        takes = {"http": "127.0.0.1:0", "push_tokens": (TOKEN,), "push_address": address}
        async with working(Queue(any_store), APP, **takes) as worker:
            await idle(worker)
            producer = pushing(any_store, timeout_s=0.05)
            task = await producer.submit("echo", 1)
            assert (await quick(producer, task)).output == 1
            assert producer.pusher is not None
            await producer.pusher.close()
            assert producer.pusher.counts["lost"] == 1
            await producer.submit("echo", 2)
            await producer.pusher.close()
            assert producer.pusher.counts["lost"] == 1, "it is left alone for a while"


async def test_a_wrong_token_wakes_nobody_and_the_task_still_starts(any_store: ObjectStore) -> None:
    async with working(Queue(any_store), APP, http="127.0.0.1:0", push_tokens=(TOKEN,)) as worker:
        await idle(worker)
        producer = Queue(any_store, push=PushConfig("another token of the tests", LOOPBACK, timeout_s=5.0))
        task = await producer.submit("echo", 1)
        assert (await quick(producer, task)).output == 1
        assert producer.pusher is not None
        await producer.pusher.close()
        assert producer.pusher.counts["lost"] == 1


async def test_a_full_worker_is_passed_over_for_one_with_room(any_store: ObjectStore, producer: Queue) -> None:
    full = working(
        Queue(any_store), APP, worker_id="full", concurrency=1, cancel_grace_s=0.1, shutdown_grace_s=0, **TAKES
    )
    async with full as busy, working(Queue(any_store), APP, worker_id="free", **TAKES) as free:
        await idle(busy)
        await idle(free)
        await producer.submit("hold")
        await until(lambda: _true(busy.stats.claimed + free.stats.claimed == 1))
        for n in range(5):
            task = await quick(producer, await producer.submit("echo", n))
            assert task.output == n


async def test_the_roster_is_listed_once_for_many_submissions(any_store: ObjectStore) -> None:
    lists: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(any_store, name)

        def list(self, prefix: str, **how: Any) -> Any:
            lists.append(prefix)
            return any_store.list(prefix, **how)

    producer = Queue(Counting(), push=PushConfig(TOKEN, LOOPBACK))  # type: ignore[arg-type]
    for n in range(20):
        await producer.submit("echo", n)
    assert producer.pusher is not None
    await producer.pusher.close()
    assert lists == ["workers/"]


async def test_records_that_lead_elsewhere_are_never_called(any_store: ObjectStore) -> None:
    now = await any_store.now()
    with socket.create_server(("127.0.0.1", 0)) as victim:
        port = victim.getsockname()[1]
        for worker_id, address, host in (
            ("outside", "10.0.0.1:80", "elsewhere"),
            ("named", f"localhost:{port}", socket.gethostname()),
            ("elsewhere", f"127.0.0.1:{port}", "another-host"),
        ):
            info = roster.WorkerInfo(
                worker_id=worker_id,
                started_at=now,
                last_heartbeat=now,
                heartbeat_s=15.0,
                task_types=["echo"],
                slots=1,
                push=address,
                host=host,
            )
            await roster.report(any_store, info)
        producer = pushing(any_store)
        await producer.submit("echo", 1)
        assert producer.pusher is not None
        await producer.pusher.close()
        assert producer.pusher.counts == {"unsent": 1}
        victim.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            victim.accept()


async def test_a_worker_that_is_silent_or_leaves_is_not_woken(any_store: ObjectStore) -> None:
    now = await any_store.now()
    common: dict[str, Any] = {"started_at": now, "task_types": ["echo"], "slots": 1, "push": "127.0.0.1:9"}
    old = now - timedelta(seconds=100)
    host = socket.gethostname()
    silent = roster.WorkerInfo(worker_id="silent", last_heartbeat=old, heartbeat_s=1.0, host=host, **common)
    leaving = roster.WorkerInfo(worker_id="leaving", last_heartbeat=now, state="draining", host=host, **common)
    await roster.report(any_store, silent)
    await roster.report(any_store, leaving)
    producer = pushing(any_store)
    await producer.submit("echo", 1)
    assert producer.pusher is not None
    await producer.pusher.close()
    assert producer.pusher.counts == {"unsent": 1}


async def test_push_without_a_secret_or_with_a_short_one_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="QO_PUSH_TOKEN"):
        async with qo.connect("memory:", **{"push.enabled": "yes"}):
            pass
    with pytest.raises(ConfigError, match="too short"):
        qo.connect("memory:", **{"push.token": "short"})


# The receiving side.


async def post(
    address: str, body: bytes, authorization: str | None, length: int | None = None
) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /wake HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body) if length is None else length}\r\n"
    head += "" if authorization is None else f"Authorization: {authorization}\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    reply = await reader.read()
    writer.close()
    return int(reply.split()[1]), reply.partition(b"\r\n\r\n")[2]


async def test_without_a_signature_nothing_is_done_and_nothing_revealed(memory_store: ObjectStore) -> None:
    async with working(Queue(memory_store), APP, **TAKES) as worker:
        await idle(worker)
        address = worker.http or ""
        body = b'{"tasks": []}'
        good = sign(TOKEN, "w", body)
        assert await post(address, body, good) == (204, b"")
        refusal = (401, b"unauthorized\n")
        assert await post(address, body, None) == refusal
        assert await post(address, body, "Bearer " + TOKEN) == refusal
        assert await post(address, body, sign("another token", "w", body)) == refusal
        assert await post(address, body, sign(TOKEN, "another worker", body)) == refusal
        assert await post(address, b'{"tasks": [ ]}'[: len(body)], good) == refusal
        assert await post(address, b"", None, length=100_000) == refusal, "before the body comes"
        assert (await post(address, b"", sign(TOKEN, "w", b""), length=100_000))[0] == 413
        for broken in (b"", b"[]", b'{"tasks": ["x"]}', b'{"tasks": 1}', b"\xff", b"[" * 3000):
            assert (await post(address, broken, sign(TOKEN, "w", broken)))[0] == 400


async def test_a_worker_without_a_token_takes_no_wake_ups(memory_store: ObjectStore) -> None:
    async with working(Queue(memory_store), APP, http="127.0.0.1:0") as worker:
        await idle(worker)
        assert (await post(worker.http or "", b"{}", sign(TOKEN, "w", b"{}")))[0] == 405
        info = await roster.find(memory_store, "w")
        assert info is not None
        assert info.push is None


async def test_named_tasks_that_are_missing_or_ended_do_no_harm(any_store: ObjectStore, producer: Queue) -> None:
    queue = Queue(any_store)
    async with working(queue, APP, **TAKES) as worker:
        await idle(worker)
        ended_task = await queue.submit("echo", options=Options(delay_s=3600))  # Nobody claims it before.
        await queue.cancel(ended_task.id)
        ids = ["00000000-0000-4000-8000-000000000000", ended_task.id]
        body = b'{"tasks": ["%b", "%b"]}' % (ids[0].encode(), ids[1].encode())
        assert await post(worker.http or "", body, sign(TOKEN, "w", body)) == (204, b"")
        task = await producer.submit("echo", 1)
        assert (await quick(producer, task)).output == 1
        assert worker.stats.claimed == 1


@pytest.mark.timeout(120)
async def test_a_command_wakes_a_worker_process(place: Place) -> None:
    settings = {
        "QO_PUSH_TOKEN": TOKEN,
        "QO_POLL_MIN_MS": "30000",
        "QO_POLL_MAX_MS": "30000",
        "QO_HEARTBEAT_S": "5",
    }
    async with place.worker("pushed", **settings):
        await until(lambda: _advertises(place, "pushed"), within_s=60)
        task_id = (await place.ok("submit", "-t", "work", "-i", '{"s": 0}', **settings, QO_PUSH="1")).strip()
        task = await ended(place.queue, task_id)
        assert task.status is Status.COMPLETED
        assert (task.completed_at or task.created_at) - task.created_at < timedelta(seconds=15)


async def _advertises(place: Place, worker_id: str) -> bool:
    info = await roster.find(place.queue.store, worker_id)
    return info is not None and info.push is not None
