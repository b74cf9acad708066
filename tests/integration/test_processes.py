"""Real worker processes, killed, stopped and frozen: no task is lost, and none is completed twice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from process_handlers import CULPRIT

from qo.core.task import Status, Task
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.store.s3 import S3Store
from support.process_family import pause, resume
from support.stores.queues import AT_ONCE, until
from support.worker.processes import LEASE_S, Place, stages

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED


def _work(count: int, s: float, **options: Any) -> list[NewTask]:
    return [NewTask("work", {"s": s, "n": n}, Options(retry_policy=AT_ONCE, **options)) for n in range(count)]


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def held_by(queue: Queue, worker_id: str) -> list[Task]:
    return [task for task in await queue.list(status=R) if task.worker_id == worker_id]


async def test_what_a_killed_worker_held_is_finished_by_another(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(40, 0.2))
    async with place.worker("victim") as victim, place.worker("survivor") as survivor:
        await place.counted(C, "victim", 2)
        pause(victim.process.pid)
        while not (held := await held_by(queue, "victim")):
            # It was between two tasks, and the other may have taken the rest since.
            tasks += await queue.submit_many(_work(40, 0.2))
            resume(victim.process.pid)
            await until(lambda: held_by(queue, "victim"))
            pause(victim.process.pid)
        victim.signal(signal.SIGKILL)
        assert await victim.code() == -signal.SIGKILL
        done = await place.ended(tasks)
        survivor.signal(signal.SIGTERM)
        assert await survivor.code() == 0
    assert {task.status for task in done} == {C}
    cut_off = set[str]()
    for task in done:
        history = await queue.history(task.id)
        if task.attempt == 1:
            assert stages(history) == [(P, 0), (R, 1), (C, 1)]
        else:
            cut_off.add(task.id)
            assert stages(history) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]
            _assert_lapsed(history)
            assert history[1].worker_id == "victim", "no other paid for it"
            assert (task.output, task.retry_count) == ("survivor", 1)
    # What was on its way when it was killed may have arrived: a last claim, or a last report.
    assert {task.id for task in held} <= cut_off | {task.id for task in done if task.output == "victim"}
    assert 1 <= len(cut_off) <= 8, "four in slots, and four in their inboxes"


def _assert_lapsed(history: list[Task]) -> None:
    """Taken back for its lease, and not before that had run out. How soon after depends on the machine."""
    (back,) = [state for state in history if (state.status, state.attempt) == (P, 1)]
    (*_, last_held) = [state for state in history if (state.status, state.attempt) == (R, 1)]
    assert back.last_error is not None
    assert back.last_error.startswith("lease expired: worker victim did not")
    assert (back.updated_at - last_held.updated_at).total_seconds() >= LEASE_S


async def test_a_task_that_kills_its_workers_fails_and_takes_no_other_with_it(place: Place) -> None:
    # The shortest lease that each store allows; where that is long, one death has to do.
    lease_s, deliveries = ("5", 1) if isinstance(place.queue.store, S3Store) else ("1", 2)
    options = Options(max_deliveries=deliveries, max_retries=100, retry_policy=AT_ONCE)
    lethal = await place.queue.submit("lethal", None, options)
    others = await place.queue.submit_many(_work(6, 0.01))
    deaths = 0
    settings = {"QO_LEASE_S": lease_s, "QO_MONITOR_CHECK_INTERVAL_S": "0.1"}

    async def end_of(worker: Any) -> bool:
        """Whether the worker outlived the task."""
        died = asyncio.create_task(worker.process.wait())
        ended = asyncio.create_task(place.ended([lethal]))
        await asyncio.wait({died, ended}, return_when=asyncio.FIRST_COMPLETED)
        outlived = not died.done()
        for each in (died, ended):
            each.cancel()
        await asyncio.gather(died, ended, return_exceptions=True)
        return outlived

    for n in range(5):  # As whoever supervises the worker would.
        async with place.worker(f"w{n}", **settings) as worker:
            if await end_of(worker):
                done = await place.ended(others)
                break
            deaths += 1
    now = await place.queue.get(lethal.id)
    assert deaths == deliveries
    assert now.status is Status.FAILED
    assert now.last_error is not None
    assert f"crash loop: {deliveries} workers in a row died or stalled" in now.last_error
    assert {task.status for task in done} == {C}


async def test_a_terminated_worker_finishes_what_it_holds_and_loses_nothing(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(12, 0.5))
    async with place.worker("ada") as worker:
        held = await place.held("ada", 2)
        worker.signal(signal.SIGTERM)
        assert await worker.code() == 0
    now = await place.now(tasks)
    assert {task.status for task in now} <= {P, C}
    assert {task.id for task in held} <= {task.id for task in now if task.status is C}
    assert {task.retry_count for task in now} == {0}
    assert worker.stats["completed"] == sum(task.status is C for task in now)
    assert worker.stats["lost"] == 0
    async with place.worker("bob"):
        assert {(task.status, task.retry_count) for task in await place.ended(tasks)} == {(C, 0)}


async def test_a_worker_without_grace_gives_back_what_it_holds_at_no_cost(place: Place) -> None:
    queue = place.queue
    tasks = await queue.submit_many(_work(4, 60, max_retries=0))
    async with place.worker("ada", QO_SHUTDOWN_GRACE_S="0") as worker:
        await place.held("ada", 4)
        worker.signal(signal.SIGTERM)
        assert await worker.code() == 0
    assert worker.stats["released"] == 4
    for now in await place.now(tasks):
        assert (now.status, now.attempt, now.retry_count) == (P, 1, 0)


@pytest.mark.parametrize("task_type", ["gated", pytest.param("gated_plain", marks=pytest.mark.long)])
async def test_a_frozen_worker_that_wakes_after_its_lease_changes_nothing(
    place: Place, tmp_path: Path, task_type: str
) -> None:
    queue = place.queue
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    task = await queue.submit(task_type, {"notes": str(notes), "gate": str(gate)}, Options(retry_policy=AT_ONCE))
    async with place.worker("zombie", QO_NO_MONITOR="1") as zombie:
        await until(lambda: asyncio.to_thread(notes.exists))
        pause(zombie.process.pid)
        async with place.worker("successor") as successor:
            await until(lambda: _holder_is(queue, task, "successor"))
            resume(zombie.process.pid)
            if task_type == "gated":
                await until(lambda: _told(notes, "zombie cancelled"))
            gate.touch()
            (done,) = await place.ended([task])
            zombie.signal(signal.SIGTERM)
            assert await zombie.code() == 0
            successor.signal(signal.SIGTERM)
            assert await successor.code() == 0
    assert (done.output, done.attempt) == ("successor", 2)
    assert await queue.get(task.id) == done
    assert stages(await queue.history(task.id)) == [(P, 0), (R, 1), (P, 1), (R, 2), (C, 2)]
    assert (zombie.stats["lost"], zombie.stats["completed"]) == (1, 0)
    assert f"task {task.id}: its lease was lost" in zombie.said


async def _holder_is(queue: Any, task: Task, worker_id: str) -> bool:
    now = await queue.get(task.id)
    return now.status is R and now.worker_id == worker_id


async def _told(notes: Path, line: str) -> bool:
    return line in await asyncio.to_thread(notes.read_text)


async def test_a_worker_that_leaves_is_off_the_roster_and_a_killed_one_is_stale(place: Place) -> None:
    async with place.worker("ada") as ada, place.worker("bob") as bob:
        for worker in (ada, bob):
            await place.reported(worker.worker_id, "running")
        shown = await place.json("worker", "list")
        assert {(w["worker_id"], w["state"], w["stale"]) for w in shown} == {
            ("ada", "running", False),
            ("bob", "running", False),
        }
        ada.signal(signal.SIGTERM)
        bob.signal(signal.SIGKILL)
        assert await ada.code() == 0
        await bob.code()
    assert set(await place.roster()) == {"bob"}

    async def all_stale() -> list[Any] | None:
        shown = await place.json("worker", "list", "--worker-health-threshold-s", "2")
        return shown if all(w["stale"] for w in shown) else None

    (shown,) = await until(all_stale)
    assert shown["worker_id"] == "bob"
    assert " stale " in await place.ok("worker", "list", "--worker-health-threshold-s", "2")


async def test_a_killed_worker_takes_its_child_processes_with_it(local_place: Place, tmp_path: Path) -> None:
    notes = tmp_path / "pids"
    tasks = await local_place.queue.submit_many([NewTask("spins", {"notes": str(notes)})] * 2)

    async def both_run() -> list[int] | None:
        pids = [int(line) for line in notes.read_text().split()] if notes.exists() else []
        return pids if len(pids) == 2 else None

    async with local_place.worker(CULPRIT, QO_PROCESSES="2") as worker:
        pids = await until(both_run)
        assert not any(_gone(pid) for pid in pids)
        assert all(os.getpgid(pid) for pid in pids)
        worker.signal(signal.SIGKILL)
        await worker.code()

    async def both_gone() -> bool:
        return all(_gone(pid) for pid in pids)

    await until(both_gone)
    assert {task.status for task in await local_place.now(tasks)} == {R}
