"""From a wake-up to a commit: a worker, a dispatcher with its loops and its HTTP listeners, and operators that behave
well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import runner_operators
import sqlalchemy as sa

from qo.agent import agent
from qo.agent.agent import WAKE, Agent
from qo.agent.heartbeats import HeartbeatThread
from qo.agent.lineage import LineageReporter
from qo.agent.operators import PythonExecutor
from qo.ambient import SYSTEM
from qo.api.contract.task import CompleteAnswer, EventBody
from qo.api.internal_client import DispatcherClient
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.core.task import Status
from qo.dispatcher.attempts import completion
from qo.dispatcher.auth.local_tokens import worker_tokens
from qo.dispatcher.engine.loops import reaper
from qo.dispatcher.http.serving import Addresses
from qo.dispatcher.outbox.queues import open_queue
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import pausing
from qo.errors import Contended, Unavailable
from qo.queue.queue import Queue
from qo.store.blocking_files import BlockingFiles
from qo.worker.api.app import App
from qo.worker.worker import Worker
from support.dispatcher.in_process_dispatcher import dispatching
from support.dispatcher.pipelines import dag, job, source
from support.stores.queues import config, until

LEASE_S = 5  # The shortest that a job may ask for.


@dataclass
class Plant:
    """A dispatcher at work, one worker, and what can be asked of them."""

    state: State
    settings: Settings
    queue: Queue
    worker: Worker

    async def emit(self, *keys: str) -> None:
        def say() -> None:
            with self.state.write() as tx:
                events = [EventBody(partition_key=key) for key in keys]
                emission.emit(tx, "shop", "orders", key=f"{keys[0]}+{len(keys)}", events=events, by="tests")

        await asyncio.to_thread(say)

    def task(self, name: str) -> dict[str, Any] | None:
        with self.state.read() as tx:
            row = tx.one(sa.select(schema.tasks).where(schema.tasks.c.job == name))
        return None if row is None else dict(row)

    async def reached(self, name: str, *statuses: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            row = await asyncio.to_thread(self.task, name)
            return row if row is not None and row["status"] in statuses else None

        return await until(there, within_s=30)

    def commits(self, name: str) -> list[dict[str, Any]]:
        commits, datasets = schema.commits, schema.datasets
        with self.state.read() as tx:
            query = sa.select(commits).join(datasets, datasets.c.id == commits.c.dataset_id)
            return [dict(row) for row in tx.all(query.where(datasets.c.job == name).order_by(commits.c.revision))]

    def make_due(self) -> None:
        """No test waits for the rest after a failed attempt."""
        with self.state.write() as tx:
            waiting = sa.update(schema.tasks).where(schema.tasks.c.status == "pending")
            tx.execute(waiting.values(available_at=tx.now))


@asynccontextmanager
async def plant(directory: Path, wanted: Dag, **worker: Any) -> AsyncIterator[Plant]:
    async with (
        dispatching(directory, wanted) as (state, settings, addresses),
        _working(settings, addresses, **worker) as (queue, running),
    ):
        yield Plant(state, settings, queue, running)


@asynccontextmanager
async def _working(
    settings: Settings, addresses: Addresses, **changes: Any
) -> AsyncIterator[tuple[Queue, Worker]]:
    token = worker_tokens(settings.dispatcher)[-1]

    def connected() -> DispatcherClient:
        return DispatcherClient(addresses.internal, token)

    heart, storage = HeartbeatThread(connected), BlockingFiles(settings, asyncio.get_running_loop())
    heart.start()
    queue = await open_queue(settings, "python")
    client = connected()
    app = App()
    lineage = LineageReporter(settings.dispatcher.data_root, storage)
    app.task(WAKE, timeout_s=None)(Agent(client, heart, PythonExecutor(), storage, lineage=lineage).wake)
    worker = Worker(queue, app, config(**changes))
    running = asyncio.create_task(worker.run())
    try:
        async with lineage:
            yield queue, worker
            worker.stop()
            await running
    finally:
        worker.stop()
        await running
        heart.stop()
        await client.close()
        await storage.close()
        await queue.close()


def lineage_in(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in directory.glob("data/_lineage/*/*.json")]


def one_job(operator: str, **fields: Any) -> Dag:
    made = job("clean", reads="orders", **{"operator": f"runner_operators:{operator}", **fields})
    return dag("shop", source("orders", runtime="dispatcher", operator="noop"), made)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    runner_operators.SEEN.clear()
    runner_operators.GATES.clear()


@pytest.mark.parametrize("operator", ["copy", "copy_async"])
async def test_an_event_becomes_a_committed_partition_and_goes_on_downstream(
    tmp_path: Path, operator: str
) -> None:
    wanted = dag(
        "shop",
        source("orders", runtime="dispatcher", operator="noop"),
        job("clean", reads="orders", operator=f"runner_operators:{operator}"),
        job("after", reads="clean", operator="runner_operators:copy"),
    )
    async with plant(tmp_path, wanted) as shop:
        await shop.emit("2024-01-01")
        done = await shop.reached("after", "completed")
        assert (done["attempt"], done["partition_key"], done["output"]) == (1, "2024-01-01", {"lines": 2})
        (commit,) = shop.commits("after")
        assert (commit["rows"], commit["files"]) == (2, ["lines.txt"])
        written = Path(commit["location"].removeprefix("file:")) / "lines.txt"
        assert written.read_text() == "2024-01-01\n2024-01-01\n"
        assert written.is_relative_to(tmp_path / "data")


async def test_an_operator_that_raises_is_tried_again_and_its_error_is_kept(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("stumble")) as shop:
        await shop.emit("a")
        await until(lambda: asyncio.to_thread(lambda: (shop.task("clean") or {}).get("retry_count") == 1))
        waiting = shop.task("clean")
        assert waiting is not None
        assert waiting["last_error"] == "ValueError: not the first time"
        assert "in stumble" in waiting["traceback"]
        assert shop.commits("clean") == []
        shop.make_due()
        assert (await shop.reached("clean", "completed"))["attempt"] == 2
    assert runner_operators.SEEN["stumble"] == [1, 2]
    told = lineage_in(tmp_path)
    assert sorted((each["run"]["facets"]["qo_task"]["attempt"], each["eventType"]) for each in told) == [
        (1, "FAIL"),
        (1, "START"),
        (2, "COMPLETE"),
        (2, "START"),
    ]
    assert {(each["job"]["name"], each["inputs"][0]["name"]) for each in told} == {("shop.clean", "shop.orders")}


@pytest.mark.parametrize(
    ("operator", "error"),
    [("leave", "raised SystemExit(3)"), ("leave_async", "raised KeyboardInterrupt()")],
)
async def test_an_operator_that_exits_ends_its_own_attempt_and_nothing_else(
    tmp_path: Path, operator: str, error: str
) -> None:
    async with plant(tmp_path, one_job(operator, max_attempts=1)) as shop:
        await shop.emit("a")
        failed = await shop.reached("clean", "failed")
        assert error in failed["last_error"]
        assert shop.worker.state == "running"


@pytest.mark.parametrize(
    ("operator", "error"),
    [
        ("unspeakable", "cannot be sent"),
        ("nonsense", "rows"),
        ("refuse", "this can never work"),
        ("nowhere", "has no function 'nowhere'"),
        ("astray", "write it below"),
    ],
)
async def test_what_no_attempt_could_mend_fails_at_once(tmp_path: Path, operator: str, error: str) -> None:
    async with plant(tmp_path, one_job(operator)) as shop:
        await shop.emit("a")
        failed = await shop.reached("clean", "failed")
        assert (failed["attempt"], failed["retry_count"]) == (1, 0)
        assert error in failed["last_error"]
        assert shop.commits("clean") == []


async def test_a_run_that_takes_too_long_is_stopped_and_counts_as_failed(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("wait_async", timeout_seconds=1, max_attempts=1)) as shop:
        await shop.emit("a")
        failed = await shop.reached("clean", "failed")
        assert failed["last_error"] == "timed out after 1 s: the job's timeout_seconds allow no more"
    assert runner_operators.SEEN["wait_async"] == [1, "timed out"]


@pytest.mark.parametrize("operator", ["wait", "wait_async"])
async def test_a_task_that_is_cancelled_while_it_runs_is_stopped_and_commits_nothing(
    tmp_path: Path, operator: str
) -> None:
    wanted = one_job(operator, heartbeat_timeout_seconds=1)
    async with plant(tmp_path, wanted) as shop:
        await shop.emit("a")
        running = await shop.reached("clean", "running")
        with shop.state.write() as tx:
            operator_actions.cancel(tx, running["id"], "ada", "not needed")
        ended = await shop.reached("clean", "cancelled")
        assert (ended["cancelled_by"], ended["cancel_reason"]) == ("ada", "not needed")
        assert shop.commits("clean") == []


async def test_a_source_that_is_paused_ends_with_its_next_commit_and_goes_on_behind_the_last(
    tmp_path: Path,
) -> None:
    """The commit tells it: no heartbeat comes before the test is over, and no lease runs out."""
    feed = source("feed", "always_on", operator="runner_operators:steady", heartbeat_timeout_seconds=600)

    async def committed(shop: Plant, attempt: int) -> list[tuple[int, int]]:
        """The cursor and attempt of each segment, once this attempt has committed."""

        async def there() -> list[tuple[int, int]] | None:
            found = [(each["cursor"], each["attempt"]) for each in await asyncio.to_thread(shop.commits, "feed")]
            return found if (found or [(0, 0)])[-1][1] == attempt else None

        return await until(there, within_s=30)

    async with plant(tmp_path, dag("shop", feed)) as shop:
        await committed(shop, 1)
        with shop.state.write() as tx:
            pausing.pause(tx, "shop.feed", "enough", "ada")
        ended = await shop.reached("feed", "cancelled")
        assert ended["cancel_reason"] == "paused: enough"
        before = shop.commits("feed")
        with shop.state.write() as tx:
            pausing.resume(tx, "shop.feed", "ada")
        found = await committed(shop, 2)
        assert [cursor for cursor, _ in found] == list(range(len(found)))
        assert [attempt for _, attempt in found[: len(before)]] == [1] * len(before)


async def test_on_a_lost_lease_the_run_stops_and_settles_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("wait", heartbeat_timeout_seconds=1)) as shop:
        await shop.emit("a")
        held = await shop.reached("clean", "running")

        def taken_away() -> None:
            """As if nothing had been heard of it for long."""
            past = sa.update(schema.tasks).where(schema.tasks.c.id == held["id"])
            with shop.state.write() as tx:
                tx.execute(past.values(lease_expires_at=tx.now - timedelta(seconds=1)))
            reaper.tick(shop.state)

        await asyncio.to_thread(taken_away)
        shop.make_due()
        await until(lambda: asyncio.to_thread(lambda: (shop.task("clean") or {}).get("attempt") == 2), within_s=20)
        runner_operators.GATES["wait"].set()
        done = await shop.reached("clean", "completed")
        assert done["attempt"] == 2
        assert [commit["attempt"] for commit in shop.commits("clean")] == [2]
    assert runner_operators.SEEN["wait"] == [1, 2]


async def test_a_worker_that_must_leave_gives_its_run_back_at_no_cost(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("wait"), shutdown_grace_s=0.1) as shop:
        await shop.emit("a")
        await shop.reached("clean", "running")
        shop.worker.stop()
        back = await shop.reached("clean", "pending")
        assert (back["attempt"], back["retry_count"], back["last_error"]) == (1, 0, None)


async def test_progress_is_kept_while_the_run_goes_on(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("wait", heartbeat_timeout_seconds=1)) as shop:
        await shop.emit("a")
        await until(lambda: asyncio.to_thread(lambda: (shop.task("clean") or {}).get("progress") is not None))
        row = shop.task("clean")
        assert row is not None
        assert (row["status"], row["progress"]) == ("running", {"waiting": True})
        runner_operators.GATES["wait"].set()
        await shop.reached("clean", "completed")


async def test_an_operator_may_announce_while_it_runs(tmp_path: Path) -> None:
    wanted = dag(
        "shop",
        source("orders", runtime="dispatcher", operator="noop"),
        job("clean", reads="orders", operator="runner_operators:announce"),
        job("after", reads="clean", operator="runner_operators:count", outputs=0),
    )
    async with plant(tmp_path, wanted) as shop:
        await shop.emit("a")
        await shop.reached("clean", "completed")

        async def both() -> bool:
            with shop.state.read() as tx:
                rows = tx.all(sa.select(schema.tasks).where(schema.tasks.c.job == "after"))
            return sorted(row["partition_key"] for row in rows if row["status"] == "completed") == ["a-x", "a-y"]

        await until(both, within_s=20)
        assert runner_operators.SEEN["announce"] == [True, True]
        assert shop.commits("clean") == []


async def test_a_poisoned_wake_up_ends_in_the_dead_letters_and_touches_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path, one_job("copy")) as shop:
        bad = [
            await shop.queue.submit(WAKE, poison) for poison in (None, "x", {}, {"task_id": 7}, {"task_id": ""})
        ]
        unknown = await shop.queue.submit(WAKE, {"task_id": SYSTEM.task_id()})
        await shop.emit("a")
        await shop.reached("clean", "completed")
        for each in bad:
            ended = await shop.queue.wait(each.id, timeout_s=20)
            assert ended.status is Status.FAILED
            assert "a wake-up is" in (ended.last_error or "")
        answered = await shop.queue.wait(unknown.id, timeout_s=20)
        assert (answered.status, answered.output) == (Status.COMPLETED, "not claimed: not_found")


async def test_an_input_of_more_pieces_than_one_answer_holds_is_read_whole(tmp_path: Path) -> None:
    wanted = dag(
        "shop",
        source("orders", runtime="dispatcher", operator="noop"),
        source("go", runtime="dispatcher", operator="noop"),
        job(
            "clean",
            reads=["go", {"job": "orders", "trigger": False}],
            operator="runner_operators:count_all",
            outputs=0,
        ),
    )
    async with plant(tmp_path, wanted) as shop:
        for start in range(0, 2200, 550):
            await shop.emit(*(f"p{number}" for number in range(start, start + 550)))
        with shop.state.write() as tx:
            emission.emit(tx, "shop", "go", key="k", events=[EventBody(partition_key="now")], by="tests")
        await shop.reached("clean", "completed")
    assert runner_operators.SEEN["count_all"] == [2200]


async def test_settings_of_a_relative_data_root_mean_the_same_to_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert replace(DispatcherSettings(), data="file:data").data_root == f"file:{tmp_path / 'data'}"
    assert replace(DispatcherSettings(), data="s3://lake/data").data_root == "s3://lake/data"


async def test_a_result_is_told_again_until_somebody_has_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no verdict on the attempt, a defect or a crowd, does not undo hours of work."""
    taken, troubles = (
        completion.complete_all,
        [RuntimeError("a defect"), Contended("a crowd"), Unavailable("away")],
    )

    def troubled(*given: Any) -> list[CompleteAnswer]:
        if troubles:
            raise troubles.pop(0)
        return taken(*given)

    monkeypatch.setattr(completion, "complete_all", troubled)
    monkeypatch.setattr(agent, "ASK_AGAIN_S", 0.01)
    async with plant(tmp_path, one_job("copy")) as shop:
        await shop.emit("a")
        done = await shop.reached("clean", "completed")
        assert (done["attempt"], len(shop.commits("clean"))) == (1, 1)
    assert troubles == []


async def test_a_failed_attempt_is_one_line_in_the_log_and_counts_as_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with plant(tmp_path, one_job("stumble", max_attempts=3)) as shop:
        with caplog.at_level("WARNING"):
            await shop.emit("2024-01-01")
            await until(lambda: asyncio.to_thread(lambda: (shop.task("clean") or {}).get("retry_count") == 1))
            await until(lambda: asyncio.to_thread(lambda: shop.worker.stats.held == 0))
        task = shop.task("clean")
        assert task is not None
        (line,) = (each.getMessage() for each in caplog.records if each.name == "qo.agent.agent")
        assert line.startswith(f"shop.clean@2024-01-01, task {task['id']}: attempt 1 failed")
        assert "is tried again" in line
        assert "ValueError: not the first time" in line
        assert (shop.worker.stats.failed, shop.worker.stats.completed) == (1, 0)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def clean(run:\n", "SyntaxError"),
        ("from qo import nothing_of_the_kind\n", "ImportError"),
        ("import nothing_of_the_kind\n", "ModuleNotFoundError"),
    ],
)
async def test_an_operator_whose_module_cannot_be_imported_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, error: str
) -> None:
    name = f"broken_{error.lower()}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    made = job("clean", reads="orders", operator=f"{name}:clean")
    async with plant(tmp_path, dag("shop", source("orders"), made)) as shop:
        await shop.emit("a")
        failed = await shop.reached("clean", "failed")
        assert (failed["attempt"], failed["retry_count"]) == (1, 0)
        assert error in failed["last_error"]
        assert f"{name}.py" in failed["traceback"]
