"""``qo worker --workers``: several worker processes that one command starts, replaces and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from qo.cli.run.worker_processes import list_commands
from qo.config.origins import load
from qo.core.task import Status
from qo.queue.options import NewTask, Options
from support.stores.queues import AT_ONCE, until
from support.worker.processes import Place, WorkerProcess

IDS = ["crew-1", "crew-2"]


@pytest.fixture
def place(local_place: Place) -> Place:
    return local_place


def _children(worker: WorkerProcess) -> set[int]:
    """The processes that this one has started, and that run still."""
    found: set[int] = set()
    for task in Path(f"/proc/{worker.process.pid}/task").glob("*/children"):
        found |= {int(pid) for pid in task.read_text().split()}
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def _until_started(place: Place) -> None:
    for worker_id in IDS:
        await place.reported(worker_id, "running")


async def test_several_workers_share_the_tasks_and_one_signal_ends_them(place: Place) -> None:
    async with place.worker("crew", "--workers", "2") as crew:
        await _until_started(place)
        tasks = await place.queue.submit_many([NewTask("work", {"s": 0.1, "n": n}) for n in range(40)])
        done = await place.ended(tasks)
        crew.signal(signal.SIGTERM)
        assert await crew.code() == 0
    assert {task.output for task in done} == set(IDS)
    assert (crew.stats["completed"], crew.stats["held"], crew.stats["lost"]) == (40, 0, 0)


async def test_several_workers_that_drain_end_when_the_queue_is_empty(place: Place) -> None:
    tasks = await place.queue.submit_many([NewTask("work", {"s": 0.01, "n": n}) for n in range(20)])
    async with place.worker("crew", "--workers", "2", "--drain") as crew:
        assert await crew.code() == 0
    assert {task.status for task in await place.now(tasks)} == {Status.COMPLETED}
    assert crew.stats["completed"] == 20


async def test_a_worker_process_that_is_killed_is_replaced(place: Place) -> None:
    async with place.worker("crew", "--workers", "2") as crew:
        await _until_started(place)
        before = _children(crew)
        os.kill(min(before), signal.SIGKILL)

        async def replaced() -> Any:
            at_work = {each.pid for each in (await place.roster()).values()}
            return len(now := _children(crew)) == 2 and now != before and now <= at_work

        await until(replaced)
        task = await place.queue.submit("work", {"s": 0.01, "n": 0}, Options(retry_policy=AT_ONCE))
        await place.ended([task])
        crew.signal(signal.SIGINT)
        assert await crew.code() == 0
    assert "ended with -9; another is started" in crew.said


async def test_worker_processes_end_with_the_command_however_that_ends(place: Place) -> None:
    async with place.worker("crew", "--workers", "2") as crew:
        await _until_started(place)
        pids = _children(crew)
        crew.signal(signal.SIGKILL)
        await crew.code()

        async def gone() -> Any:
            return not any(_runs(pid) for pid in pids)

        await until(gone, within_s=20)


async def test_what_no_worker_can_run_is_said_and_ends_all(place: Place) -> None:
    async with place.worker("crew", "--workers", "2", "--app", "process_handlers:nothing") as crew:
        assert await crew.code() == 3
    assert "'process_handlers' has no qo.App named 'nothing'" in crew.said
    assert "Traceback" not in crew.said


@pytest.mark.fast
def test_each_worker_has_an_id_and_ports_of_its_own() -> None:
    flags = {
        "worker.workers": "2",
        "worker.id": "ada",
        "worker.http": "127.0.0.1:9000",
        "worker.push_address": "10.0.0.1:9000",
        "worker.load_shed": False,
        "worker.concurrency": None,
    }
    settings = load(flags, environ={}, cwd=Path("/"))
    first, second = (" ".join(each) for each in list_commands(["worker", "run", "--app", "a:b"], flags, settings))
    assert first.startswith("worker run --app a:b --workers 2 --id ada ")
    assert "--no-load-shed" in first
    assert first.endswith("--workers 1 --http 127.0.0.1:9000 --id ada-1 --push-address 10.0.0.1:9000")
    assert second.endswith("--workers 1 --http 127.0.0.1:9001 --id ada-2 --push-address 10.0.0.1:9001")
