"""Every shard is polled, swept and listed, and nothing starves behind tasks that no worker can run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qo.core import keys
from qo.core.discovery import IndexMode
from qo.core.task import Status
from qo.queue import roster
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue.sweeper import Sweeper
from qo.store.memory import MemoryStore
from qo.worker.api.app import App
from support.cli.command import Qo
from support.stores.queues import (
    AT_ONCE,
    StoreClock,
    another,
    claimed,
    drain,
    ended,
    hasty,
    hints,
    keys_under,
    wanted_hints,
    working,
)

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


def app_of(function: Any) -> App:
    """An app for type ``t``."""
    app = App()
    app.task("t")(function)
    return app


@pytest.mark.fast
@pytest.mark.parametrize("prefix_len", [2, 4])
async def test_more_than_sixteen_shards_are_watched_swept_and_listed(clock: StoreClock, prefix_len: int) -> None:
    queue = Queue(MemoryStore(clock=clock.now), prefix_len=prefix_len)
    dead, hidden = [await queue.submit("t", n, Options(retry_policy=AT_ONCE)) for n in range(2)]
    await claimed(queue, dead.id, lease_s=10)
    await hints(queue)
    for key in wanted_hints(hidden):
        await queue.store.delete(key)
    clock.advance(60)
    assert (await Monitor(queue).check()).requeued == 1
    assert (await Sweeper(queue).sweep()).restored == 1
    assert {task.id for task in await queue.list(status=P)} == {dead.id, hidden.id}


async def test_the_sweep_goes_on_where_the_last_one_stopped(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n) for n in range(9)])
    for key in wanted_hints(*tasks):
        await queue.store.delete(key)
    for _ in range(3):
        # A new one each time, as after each restart and in each process.
        assert (await Monitor(another(queue), MonitorConfig(sweep_page_size=3)).sweep()).restored == 3
    assert await hints(queue) == wanted_hints(*tasks)


async def test_tasks_nobody_can_run_do_not_starve_those_behind_them(queue: Queue) -> None:
    async def handle(input: int) -> int:
        return input

    # Ahead of everything else, in every shard, and more than fit a page.
    await queue.submit_many([NewTask("unknown", n, Options(priority=9)) for n in range(80)])
    mine = await queue.submit_many([NewTask("t", n) for n in range(5)])
    async with working(queue, app_of(handle), ready_page_size=2, index_mode=IndexMode.INDEX_ONLY):
        for task in mine:
            assert (await ended(queue, task.id)).output == task.input


async def test_a_match_beyond_the_first_keys_is_found(queue: Queue) -> None:
    tasks = await queue.submit_many([NewTask("t", n) for n in range(40)])
    last = max(tasks, key=lambda task: task.id)
    await queue.fail(await claimed(queue, last.id), "no", permanent=True)
    assert [task.id for task in await queue.list(status=F, limit=1)] == [last.id]


def test_an_unknown_status_is_refused_and_not_ignored(tmp_path: Path) -> None:
    answer = Qo(tmp_path)("list", "--status", "faild")
    assert (answer.code, answer.out) == (2, "")
    assert "faild" in answer.err


async def test_knowing_the_time_writes_nothing(queue: Queue) -> None:
    for _ in range(100):
        await queue.store.now()
    await drain(queue, App())
    assert await keys_under(queue.store, "") == [keys.BOARD]


async def test_what_is_polled_does_not_fill_up_with_old_versions(local_store: Any, tmp_path: Path) -> None:
    """On S3 leases are removed by version, and `qo doctor --fix` sets lifecycle rules for the rest."""
    queue = Queue(local_store, ambient=hasty())
    gone: list[str] = []
    for n in range(5):
        task = await queue.submit("t", n)
        gone += wanted_hints(task)
        claim = await claimed(queue, task.id)
        gone += wanted_hints(claim.task)
        await queue.complete(claim)
    await queue.hints.flush()
    histories: Sequence[Sequence[object]] = [await local_store.versions(key) for key in gone]
    assert histories == [[]] * 10


@pytest.mark.fast
async def test_all_workers_are_listed(clocked_queue: Queue, clock: StoreClock) -> None:
    names = {f"worker-{n}" for n in range(1_100)}
    for name in names:
        info = roster.WorkerInfo(worker_id=name, started_at=clock.now(), last_heartbeat=clock.now())
        await roster.report(clocked_queue.store, info)
    assert {info.worker_id for info in await roster.workers(clocked_queue.store)} == names
    clock.advance(3600)
    assert set((await Monitor(clocked_queue).check()).stale_workers) == names
