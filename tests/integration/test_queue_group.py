"""One process that works on several queues: each by its weight, in one set of slots, stopped together."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from qo.config.origins import load
from qo.config.settings import Settings
from qo.core.task import Status
from qo.errors import ConfigError
from qo.queue import roster
from qo.queue.connecting import connect
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.queue.queues_below import queue_settings
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.queue_group import run_queues
from support.stores.queues import ended, until


def settings_at(path: Path, queues: str = "high=3,low=1", **more: Any) -> Settings:
    flags = {
        "store": f"local:{path}",
        "worker.queue": queues,
        "worker.concurrency": 2,
        "worker.http": "off",
        **more,
    }
    return load(flags, environ={})


async def test_all_queues_are_drained_within_the_slots_and_counted_together(tmp_path: Path) -> None:
    settings, running, peak, ran = settings_at(tmp_path), 0, 0, []
    app = App()

    @app.task("work")
    async def work(input: str, ctx: Context) -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.01)
        running -= 1
        ran.append(input)
        return ctx.worker_id

    for name in ("high", "low"):
        async with connect(queue_settings(settings, name)) as queue:
            await queue.submit_many([NewTask("work", name) for _ in range(10)])
    counts = await run_queues(app, settings, stop_when_empty=True)
    assert (counts["acked"], counts["claimed"], counts["held"]) == (20, 20, 0)
    assert peak <= 2
    assert sorted(ran) == ["high"] * 10 + ["low"] * 10
    ids: set[str] = set()
    for name in ("high", "low"):
        async with connect(queue_settings(settings, name)) as queue:
            ids |= {task.output for task in await queue.list(status=Status.COMPLETED)}
    assert len(ids) == 1, "one process has one id in all its queues"


async def test_a_signal_stops_the_workers_of_all_queues(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, f"high=2,local:{tmp_path / 'elsewhere'}")
    begun, app = asyncio.Event(), App()

    @app.task("work")
    async def work(input: Any) -> None:
        begun.set()
        await asyncio.sleep(0.2)

    async with connect(queue_settings(settings, "high")) as queue:
        task = await queue.submit("work")
        running = asyncio.create_task(run_queues(app, settings))
        await begun.wait()
        assert len(await roster.workers(queue.store)) == 1
        os.kill(os.getpid(), signal.SIGTERM)
        counts = await running
        assert counts["acked"] == 1
        assert (await queue.get(task.id)).status is Status.COMPLETED
        assert await roster.workers(queue.store) == []


async def test_long_tasks_of_one_queue_leave_a_slot_to_the_other(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "slow=9,quick=1")
    begun, done, app = asyncio.Event(), asyncio.Event(), App()

    @app.task("long")
    async def long(input: Any) -> None:
        begun.set()
        await done.wait()

    @app.task("short")
    async def short(input: Any) -> None:
        return None

    async with (
        connect(queue_settings(settings, "slow")) as slow,
        connect(queue_settings(settings, "quick")) as quick,
    ):
        await slow.submit_many([NewTask("long", n) for n in range(3)])
        running = asyncio.create_task(run_queues(app, settings, kept_free=1, stop_when_empty=False))
        await begun.wait()
        task = await quick.submit("short")
        await ended(quick, task.id)
        assert len(await slow.list(status=Status.RUNNING)) == 1, "one of two slots is left to the other queue"
        done.set()
        os.kill(os.getpid(), signal.SIGTERM)
        await running


async def test_wake_ups_for_all_queues_go_to_the_one_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = settings_at(
        tmp_path,
        **{
            "worker.http": address,
            "worker.push_address": address,
            "worker.poll_min_ms": 60_000,
            "worker.poll_max_ms": 60_000,
            "push.token": "a push token of the tests",
            "push.enabled": True,
        },
    )
    app = App()

    @app.task("work")
    async def work(input: Any) -> None:
        return None

    running = asyncio.create_task(run_queues(app, settings))
    try:
        for place, name in enumerate(("high", "low")):
            async with connect(queue_settings(settings, name)) as queue:

                async def workers(queue: Queue = queue) -> list[roster.WorkerInfo]:
                    return [each for each in await roster.workers(queue.store) if each.state == "running"]

                (worker,) = await until(workers)
                assert (worker.push, worker.push_place) == (address, place)
                task = await queue.submit("work")
                await ended(queue, task.id)
                pusher = queue.pusher
                assert pusher is not None
                await pusher.close()  # Its answer may come after the end of the task.
                assert pusher.counts == {"sent": 1}
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        await running


@pytest.mark.fast
@pytest.mark.parametrize("queues", ["high=0", "high=3,high=1", "a b", "/etc", "high=9999"])
def test_queues_that_make_no_sense_are_refused(tmp_path: Path, queues: str) -> None:
    with pytest.raises(ConfigError, match="such as high=3,low=1"):
        settings_at(tmp_path, queues)
