"""How an attempt ends its task: timeouts, cancellation, refused completions and lost replies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.config.retention import RetentionSettings
from qo.config.settings import MonitorSettings, Settings
from qo.config.worker import CredentialUse, PackageDrift, ShardLeasingSettings, WorkerSettings
from qo.core import keys, wire
from qo.core.discovery import IndexMode, UnknownTypes
from qo.core.pricing import Operation
from qo.core.task import Status, Task
from qo.queue.monitor import Monitor, MonitorConfig
from qo.queue.options import Options
from qo.queue.queue import Queue
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.testing import virtual
from qo.worker.api.app import App
from qo.worker.api.context import Context
from qo.worker.api.signals import Reschedule
from qo.worker.service import monitor_config, worker_config
from qo.worker.worker import WorkerConfig
from support.cli.command import Qo
from support.stores.queues import (
    AT_ONCE,
    another,
    claimed,
    ended,
    hints,
    keys_under,
    path_of,
    until,
    wanted_hints,
    working,
)

P, R, C, F = Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED


def app_of(function: Any) -> App:
    """An app for type ``t``."""
    app = App()
    app.task("t")(function)
    return app


async def run_one(queue: Queue, function: Any, input: Any = None, **options: Any) -> Task:
    """The task of one handler, once it has ended."""
    task = await queue.submit("t", input, Options(**{"retry_policy": AT_ONCE, **options}))
    async with working(queue, app_of(function)):
        return await ended(queue, task.id)


@pytest.mark.fast
def test_a_slow_first_submitter_does_not_make_a_key_two_tasks() -> None:
    async def main() -> None:
        ambient = Ambient.seeded(1, virtual.monotonic)
        truth = MemoryStore(clock=virtual.wall_clock)
        slow = Queue(Faulty(truth, FaultPlan(latency_s=(60, 60)), ambient), ambient=ambient)
        quick = Queue(truth, ambient=ambient)
        first = asyncio.create_task(slow.submit("t", 1, Options(key="k")))
        await asyncio.sleep(5)
        second = await quick.submit("t", 1, Options(key="k"))
        assert (await first).id == second.id
        assert len(await keys_under(truth, keys.TASKS)) == 1
        assert len(await quick.history(second.id)) == 1

    virtual.run(main())


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_timeout_is_enforced(queue: Queue, kind: str) -> None:
    over = threading.Event()

    async def waits(input: Any) -> None:
        await asyncio.sleep(60)

    def blocks(input: Any) -> None:
        over.wait(60)

    try:
        task = await run_one(queue, waits if kind == "async" else blocks, timeout_s=0.2, max_retries=0)
    finally:
        over.set()
    assert task.status is F
    assert (task.last_error or "").startswith("timed out after 0.2 s: ")


@pytest.mark.fast
def test_a_timeout_follows_the_time_that_the_handler_asked_for() -> None:
    async def main() -> None:
        queue = Queue(MemoryStore(clock=virtual.wall_clock), ambient=Ambient.seeded(1, virtual.monotonic))

        async def asks(input: Any, ctx: Context) -> str:
            await ctx.renew(100)
            await asyncio.sleep(90)
            return "done"

        task = await queue.submit("t", options=Options(timeout_s=10, max_retries=0))
        async with working(queue, app_of(asks)):
            assert (await queue.wait(task.id)).output == "done"

    virtual.run(main())


@pytest.mark.parametrize("error", [ValueError, OSError, TimeoutError, ConnectionError])
async def test_how_a_task_goes_on_depends_on_no_text_and_no_list_of_classes(
    queue: Queue, error: type[Exception]
) -> None:
    async def fails(input: Any) -> None:
        raise error("Reject PermanentError RescheduleError")

    task = await run_one(queue, fails, max_retries=2)
    assert (task.status, task.attempt, task.reschedule_count) == (F, 3, 0)


async def test_a_type_error_does_not_make_a_handler_run_twice(queue: Queue) -> None:
    calls: list[Any] = []

    async def raises(input: Any, ctx: Context) -> None:
        calls.append(input)
        raise TypeError("raises() takes 1 positional argument but 2 were given; got 2")

    task = await run_one(queue, raises, "once", max_retries=0)
    assert (task.status, calls) == (F, ["once"])


async def test_a_handler_is_given_the_large_input_itself(queue: Queue) -> None:
    def measures(input: dict[str, str]) -> int:
        return len(input["text"])

    task = await run_one(queue, measures, {"text": "x" * 500_000})
    assert task.input_ref is not None
    assert task.output == 500_000


async def test_a_task_that_was_cancelled_while_it_ran_ends_cancelled(queue: Queue) -> None:
    begun, asked = asyncio.Event(), asyncio.Event()

    async def unaware(input: Any) -> str:
        begun.set()
        await asked.wait()
        return "finished all the same"

    task = await queue.submit("t")
    async with working(queue, app_of(unaware)):
        await begun.wait()
        await another(queue).cancel(task.id)
        asked.set()
        assert (await ended(queue, task.id)).status is Status.CANCELLED


async def test_a_task_can_be_put_off_after_its_lease_was_extended(queue: Queue) -> None:
    async def extends(input: Any, ctx: Context) -> str:
        await ctx.renew(120)
        if ctx.attempt == 1:
            raise Reschedule(0)
        return "second time"

    task = await run_one(queue, extends)
    assert (task.output, task.reschedule_count, task.attempt) == ("second time", 1, 2)


async def test_asking_to_cancel_does_not_cost_the_worker_its_lease(queue: Queue) -> None:
    task = await queue.submit("t")
    claim = await claimed(queue, task.id)
    await another(queue).cancel(task.id)
    assert (await queue.renew(claim, 300)).cancel_requested
    assert (await queue.reschedule(claim, 1)).status is Status.CANCELLED


@pytest.mark.fast
def test_every_setting_of_worker_and_monitor_reaches_them(memory_store: MemoryStore) -> None:
    queue = Queue(memory_store)
    worker = WorkerSettings(
        id="ada", workers=2, shards=("3",), concurrency=3, index_mode=IndexMode.LOG_SCAN, ready_page_size=7,
        log_scan_page_size=8, unknown_types=UnknownTypes.FAIL, no_monitor=True, poll_min_ms=11, poll_max_ms=12,
        dequeue_backoff_ms=7, heartbeat_s=13, shutdown_grace_s=14, cancel_grace_s=3, exit_grace_s=2, inbox_capacity=2,
        threads=4, processes=5, process_tasks_max=6, process_memory_max_mb=7, spark_slots=8, timeout_s=9, lease_s=10,
        control_s=11, limits=(("t", "2"),), packages=PackageDrift.REFUSE, http="off",
        credentials=CredentialUse.REQUIRED,
        shard_leasing=ShardLeasingSettings(enabled=True),
        queue=("high=1",), load_shed=False, buffer=9, concurrency_limit=10, rate_limit="1/2", producer_buffer=11,
        result_buffer=12, push_address="worker.example:8090", idle_timeout="5m", run_log_bytes=13,
    )  # fmt: skip
    monitor = MonitorSettings(
        check_interval_s=1, worker_health_threshold_s=2, sweep_interval_s=3, sweep_page_size=4, http="127.0.0.1:0"
    )
    retention = RetentionSettings(keep_completed=3600.0, requests_per_minute=7)
    for given, default in ((worker, WorkerSettings()), (monitor, MonitorSettings())):
        assert all(getattr(given, f.name) != getattr(default, f.name) for f in fields(given)), "all are tried"

    told = worker_config(queue, Settings(worker=worker, monitor=monitor), stop_when_empty=True)
    plain = worker_config(queue, Settings(), stop_when_empty=False)
    same = [f.name for f in fields(WorkerConfig) if getattr(told, f.name) == getattr(plain, f.name)]
    others = ["clock_doubt_s", "dispatch", "push_tokens", "push_place", "wake_paths"]
    assert same == others, "as the store is, as the settings of queue and push are, and as other queues are"
    watch = monitor_config(Settings(monitor=monitor, retention=retention))
    assert [
        f.name for f in fields(MonitorConfig) if getattr(watch, f.name) == getattr(MonitorConfig(), f.name)
    ] == []


def test_the_worker_command_runs_the_handlers_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "import qo\napp = qo.App()\n\n@app.task('double')\ndef double(n):\n    return 2 * n\n"
    )
    qo = Qo(tmp_path)
    task = qo.json("submit", "--type", "double", "--input", "21")
    assert qo("worker", "--app", "jobs:app", "--drain").code == 0
    assert qo.json("status", task["id"])["output"] == 42


@pytest.mark.fast
@pytest.mark.parametrize("prefix_len", [1, 2, 3, 4])
async def test_a_task_names_the_shard_it_lies_in(memory_store: MemoryStore, prefix_len: int) -> None:
    """A bucket of another length is refused (test_shard_lengths.py); none is ever converted in place."""
    queue = Queue(memory_store, prefix_len=prefix_len)
    task = await queue.submit("t")
    await queue.complete(await claimed(queue, task.id))
    (key,) = await keys_under(memory_store, keys.TASKS)
    assert key == f"tasks/{(await queue.get(task.id)).shard}/{task.id}.json"


WORK_AND_END = """
import asyncio, qo
from qo.worker.worker import Worker, WorkerConfig

app = qo.App()
app.task("async")(lambda input: input)

@app.task("hangs")
def hangs(input):
    import time
    time.sleep(0.3)

async def main():
    async with qo.connect("memory:") as queue:
        for n in range(20):
            await queue.submit("async", n)
        await queue.submit("hangs", 1, qo.Options(timeout_s=0.05, max_retries=0))
        tally = await Worker(queue, app, WorkerConfig(worker_id="w", stop_when_empty=True)).run()
        assert tally.completed == 20, tally

asyncio.run(main())
"""


def test_a_process_that_ran_a_worker_ends_cleanly() -> None:
    runs = [
        subprocess.Popen([sys.executable, "-c", WORK_AND_END], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    answers = [(*run.communicate(timeout=60), run.returncode) for run in runs]
    assert [(out, code) for out, _, code in answers] == [(b"", 0)] * len(runs)
    for _, err, _ in answers:
        said = (b"cannot be stopped", b"has failed for good")
        assert all(any(each in line for each in said) for line in err.splitlines()), (
            "a warning of its stuck thread at most"
        )


async def test_a_completion_that_was_refused_is_not_counted(queue: Queue) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def stalls(input: Any) -> str:
        begun.set()
        await go.wait()
        return "too late"

    task = await queue.submit("t")
    async with working(queue, app_of(stalls)) as worker:
        await begun.wait()
        # As after a lapse and a second claim.
        robbed = replace(await queue.get(task.id), attempt=2, lease_id="another")
        await queue.store.put(queue.tasks.key(task.id), wire.encode(robbed))
        go.set()
    assert (worker.stats.claimed, worker.stats.completed, worker.stats.lost) == (1, 0, 1)
    assert await queue.get(task.id) == robbed


async def test_a_task_failed_by_the_monitor_names_no_worker(queue: Queue) -> None:
    task = await queue.submit("t", options=Options(max_retries=0))
    await claimed(queue, task.id, worker_id="dead", lease_s=0.05)
    monitor = Monitor(another(queue))

    async def failed() -> bool:
        return (await monitor.check()).failed == 1

    await until(failed)
    task = await queue.get(task.id)
    assert (task.status, task.worker_id, task.lease_id) == (F, None, None)


def test_of_several_cancellations_each_failure_is_told(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    there = qo.json("submit", "--type", "t")["id"]
    missing = "00000000-0000-4000-8000-000000000042"
    answer = qo("cancel", there, missing, "--json")
    assert answer.code == 3
    assert [(told["id"], told["ok"]) for told in answer.document] == [(there, True), (missing, False)]


@pytest.mark.fast
async def test_who_won_and_was_told_otherwise_knows_it_all_the_same() -> None:
    store = Faulty(MemoryStore(), FaultPlan(own_412=1), Ambient.seeded(1))
    meter = Metered(store)
    queue = Queue(meter, ambient=Ambient.seeded(2))
    task = await queue.submit("t")
    assert await hints(queue) == wanted_hints(task)
    await queue.board.flush()
    of_the_board = store.injected[Fault.OWN_412] - 1
    claim = await claimed(queue, task.id)
    await queue.complete(claim, "done")
    assert await path_of(queue, task.id) == [(P, 0), (R, 1), (C, 1)]
    assert store.injected[Fault.OWN_412] == 3 + of_the_board
    assert meter.counts[Operation.PUT] == 5 + of_the_board, "nothing was written twice: three states and two hints"
