"""Worker processes that are told something, by signals and by operators: they obey in time, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from process_handlers import CULPRIT

from qo.core.task import Status, Task
from qo.queue.options import NewTask, Options
from support.stores.queues import AT_ONCE, until
from support.worker.processes import LEASE_S, Place, WorkerProcess

P, R, C = Status.PENDING, Status.RUNNING, Status.COMPLETED

PATIENT = {"QO_SHUTDOWN_GRACE_S": "600", "QO_CANCEL_GRACE_S": "600", "QO_EXIT_GRACE_S": "600"}
HASTY = {"QO_SHUTDOWN_GRACE_S": "0.2", "QO_CANCEL_GRACE_S": "0.3", "QO_EXIT_GRACE_S": "2"}
ALL_GRACES_S = 2.5
SPARE_S = 5.0  # For a busy machine.


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.long])])
def place(request: pytest.FixtureRequest) -> Place:
    return request.getfixturevalue(f"{request.param}_place")


# Signals


async def test_the_first_signal_drains_and_the_second_gives_back_at_once(place: Place, tmp_path: Path) -> None:
    task = await place.queue.submit("waits", None, Options(max_retries=0))
    async with place.worker(CULPRIT, QO_LEASE_S="60", **PATIENT) as worker:
        await place.held(CULPRIT)
        worker.signal(signal.SIGTERM)
        await place.reported(CULPRIT, "draining")
        late = await place.queue.submit("work", {"s": 0})
        assert (await place.queue.get(task.id)).status is R
        worker.signal(signal.SIGTERM)
        assert await worker.code() == 0
    now = await place.queue.get(task.id)
    assert (now.status, now.attempt, now.retry_count) == (P, 1, 0)
    assert (await place.queue.get(late.id)).attempt == 0
    assert (worker.stats["released"], worker.stats["lost"]) == (1, 0)
    async with place.worker("bob"):
        (done, _) = await place.ended([task, late])
    assert (done.status, done.output, done.retry_count) == (C, "bob", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_third_signal_ends_the_process_whatever_its_handlers_do(
    local_place: Place, number: signal.Signals
) -> None:
    task = await local_place.queue.submit("swallows")
    async with local_place.worker(CULPRIT, **PATIENT) as worker:
        await local_place.held(CULPRIT)
        worker.signal(number)
        await local_place.reported(CULPRIT, "draining")
        worker.signal(number)
        await local_place.reported(CULPRIT, "cancelling")
        assert worker.process.returncode is None
        worker.signal(number)
        assert await worker.code(within_s=SPARE_S) == 128 + number
    assert (await local_place.queue.get(task.id)).status is R


@pytest.mark.parametrize("task_type", ["hangs", "swallows", "blocks", "spins", "leaves_a_thread"])
async def test_one_signal_ends_the_process_in_time_whatever_its_handlers_do(
    local_place: Place, task_type: str
) -> None:
    queue = local_place.queue
    options = Options(retry_policy=AT_ONCE)
    beside = await queue.submit("waits", None, options)
    async with local_place.worker(CULPRIT, **HASTY) as worker:
        await local_place.held(CULPRIT)
        task = await queue.submit(task_type, {}, options)
        await _under_way(local_place, task)
        begun = time.monotonic()
        worker.signal(signal.SIGTERM)
        code = await worker.code()
    assert time.monotonic() - begun < ALL_GRACES_S + SPARE_S
    left, given_back = await local_place.now([task, beside])
    by_deadline = task_type in ("blocks", "leaves_a_thread")
    assert code == (128 + signal.SIGTERM if by_deadline else 0)
    if task_type == "blocks":
        assert (given_back.status, left.status) == (R, R), "nobody was there to give them back"
    else:
        assert (given_back.status, given_back.retry_count) == (P, 0)
        assert left.status is {"leaves_a_thread": C, "spins": P}.get(task_type, R)
    if left.status is P:
        assert left.retry_count == 0
    async with local_place.worker("bob"):
        done, done_beside = await local_place.ended([task, beside])
    assert (done.status, done_beside.status) == (C, C)
    assert done_beside.output == "bob"
    assert done.output == (CULPRIT if task_type == "leaves_a_thread" else "bob")


async def _under_way(place: Place, task: Task) -> None:
    """Running, and for longer than it takes to get from the claim to the handler."""

    async def there() -> bool:
        now = await place.queue.get(task.id)
        return now.ended or (now.status is R and await _renewed(place, now))

    await until(there)


async def _renewed(place: Place, task: Task) -> bool:
    """Whether its lease was renewed: by the thread that does so even if the event loop is blocked."""
    held = [state for state in await place.queue.history(task.id) if state.status is R]
    return len(held) > 1


# Operators


def _gated(tmp_path: Path) -> NewTask:
    where = {"notes": str(tmp_path / "notes"), "gate": str(tmp_path / "gate")}
    return NewTask("gated", where, Options(retry_policy=AT_ONCE))


async def test_a_paused_worker_finishes_what_it_runs_and_claims_nothing_more(place: Place, tmp_path: Path) -> None:
    queue = place.queue
    (running,) = await queue.submit_many([_gated(tmp_path)])
    async with place.worker("ada") as ada:
        (held,) = await place.held("ada")
        assert "paused" in await place.ok("pause", "--reason", "deploy", "--by", "eve", "--wait", "20s")

        async def shown_with_its_task() -> Any:
            (shown,) = await place.json("worker", "list")
            return shown if shown["current_tasks"] == [running.id] else None

        shown = await until(shown_with_its_task)
        assert (shown["worker_id"], shown["state"]) == ("ada", "paused")
        await _assert_paused_is_not_ready(shown["http"])
        waiting = await queue.submit("work", {"s": 0})

        assert held.lease_expires_at is not None
        kept_until = held.lease_expires_at + timedelta(seconds=LEASE_S)

        async def outlived_its_first_lease() -> bool:
            now = await queue.get(running.id)
            assert now.status is R
            return now.lease_expires_at is not None and now.lease_expires_at > kept_until

        await until(outlived_its_first_lease, every_s=0.1)
        (tmp_path / "gate").touch()
        (done,) = await place.ended([running])
        assert (done.status, done.attempt, done.output) == (C, 1, "ada")
        assert (await queue.get(waiting.id)).attempt == 0

        await place.ok("resume", "--wait", "20s")
        assert (await place.roster())["ada"].state == "running"
        assert (await place.ended([waiting]))[0].output == "ada"

        await place.ok("drain", "ada", "--wait", "20s")
        assert await ada.code() == 0
    assert await place.roster() == {}
    assert (ada.stats["completed"], ada.stats["lost"]) == (2, 0)


async def _assert_paused_is_not_ready(http: str) -> None:
    assert await _get(http, "/readyz") == (503, "paused\n")
    assert await _get(http, "/livez") == (200, "ok\n")


async def _get(http: str, path: str) -> tuple[int, str]:
    def fetch() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{http}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    return await asyncio.to_thread(fetch)


async def test_the_address_on_the_roster_tells_how_a_worker_is(local_place: Place) -> None:
    tasks = await local_place.queue.submit_many([NewTask("work", {"s": 0})] * 3)
    async with local_place.worker("ada"):
        await local_place.reported("ada", "running")
        await local_place.ended(tasks)
        (shown,) = await local_place.json("worker", "list")
        http = shown["http"]
        assert http.startswith("127.0.0.1:")
        assert await _get(http, "/livez") == (200, "ok\n")
        assert await _get(http, "/readyz") == (200, "ok\n")

        async def all_counted() -> dict[str, object] | None:
            stats = json.loads((await _get(http, "/stats"))[1])
            return stats if stats["succeeded"] == 3 else None

        stats = await until(all_counted)
        assert (stats["worker_id"], stats["state"], stats["slots"], stats["busy"]) == ("ada", "running", 4, 0)
        code, metrics = await _get(http, "/metrics")
        assert code == 200
        assert "# TYPE" in metrics


async def test_a_drained_worker_finishes_what_it_runs_and_leaves(local_place: Place, tmp_path: Path) -> None:
    (task,) = await local_place.queue.submit_many([_gated(tmp_path)])
    async with local_place.worker("ada") as ada, local_place.worker("bob", QO_CONCURRENCY="1") as bob:
        await local_place.reported("bob", "running")
        holder, other = await _holder_first(local_place, task, ada, bob)
        answer = await local_place.qo("drain", holder.worker_id, "--wait", "1s")
        assert answer.code == 8, "it still runs a task"
        assert f"{holder.worker_id} (draining" in answer.err
        late = await local_place.queue.submit("work", {"s": 0})
        assert (await local_place.ended([late]))[0].output == other.worker_id
        (tmp_path / "gate").touch()
        assert await holder.code() == 0
        assert set(await local_place.roster()) == {other.worker_id}
    now = await local_place.queue.get(task.id)
    assert (now.status, now.attempt, now.output) == (C, 1, holder.worker_id)


async def _holder_first(place: Place, task: Task, *workers: WorkerProcess) -> tuple[WorkerProcess, ...]:
    async def held() -> Task | None:
        now = await place.queue.get(task.id)
        return now if now.status is R else None

    holder = (await until(held)).worker_id
    return tuple(sorted(workers, key=lambda worker: worker.worker_id != holder))


async def test_a_cancelled_task_is_stopped_while_it_runs(place: Place, tmp_path: Path) -> None:
    (task,) = await place.queue.submit_many([_gated(tmp_path)])
    # The lease is renewed too rarely to bring the news: the worker must have looked.
    async with place.worker("ada", QO_LEASE_S="120") as ada:
        await until(lambda: asyncio.to_thread((tmp_path / "notes").exists))
        await place.ok("cancel", task.id, "--reason", "obsolete", "--by", "eve")
        (ended,) = await place.ended([task])
        ada.signal(signal.SIGTERM)
        assert await ada.code() == 0
    assert (ended.status, ended.attempt) == (Status.CANCELLED, 1)
    assert (ended.cancelled_by, ended.cancel_reason) == ("eve", "obsolete")
    assert (tmp_path / "notes").read_text().splitlines() == ["ada begun", "ada cancelled"]
    assert ada.stats["cancelled"] == 1
