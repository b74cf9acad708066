# ruff: noqa: F811
"""Functions that the dispatcher starts: wake-ups, leases and limits."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import EventBody, Outcome
from qo.config.dispatcher import DispatcherSettings, LocalBundles
from qo.config.settings import Settings
from qo.core.pipeline.states import EffectKind
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.runtimes.local_functions import LocalFunctions
from qo.dispatcher.service import run_dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.upgrade import upgrade
from qo.dispatcher.tasks import operator_actions
from qo.errors import NotFound, Refused, Unavailable
from qo.function.function_messages import Stop, Verdict
from qo.function.sandbox import PlainProcess, find_sandbox
from support.dispatcher.function_sites import WITHIN_S, Site, eventually
from support.dispatcher.states import Clock, clock, state  # noqa: F401


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private directories are made, so that a test sees whether they are gone."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def upgraded(state_url: str) -> Iterator[State]:
    """A state database as a dispatcher would make it."""
    state = open_state(state_url)
    upgrade(state)
    yield state
    state.close()


@pytest.fixture
def site(state: State, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(code: str, **fields: Any) -> Site:
        made.append(Site(state, tmp_path, code, **fields))
        return made[-1]

    yield make
    for each in made:
        for running in each.invokers:
            running.close()


WRITES = """
import json, os, sys
asked = json.load(sys.stdin)
prefix = asked["work"]["outputs"][0]["prefix"].removeprefix("file:")
os.makedirs(prefix, exist_ok=True)
with open(prefix + "part-0.json", "w") as file:
    file.write("{}")
print(json.dumps({"outputs": [{"output": 0, "location": asked["work"]["outputs"][0]["prefix"], "files": ["part-0.json"],
    "rows": 1, "bytes": 2}], "result": "made it"}))
"""


def test_a_woken_function_runs_and_its_output_is_committed(site: Callable[..., Site]) -> None:
    here = site(WRITES)
    task_id = here.wake()
    assert here.invoker().tick() == 1
    row = here.settled(task_id, "completed", "failed")
    assert (row["status"], row["last_error"]) == ("completed", None)
    assert (row["attempt"], row["worker_id"] or "lambda") == (1, "lambda")
    assert here.ended.wait(30)
    with here.state.read() as tx:
        made = tx.one(sa.select(schema.partitions))
        sent = tx.one(sa.select(schema.outbox.c.state).where(schema.outbox.c.id == "wake-1"))
    assert made is not None
    assert (made["partition_key"], made["rows"], made["task_id"]) == ("p1", 1, task_id)
    assert sent is not None
    assert sent["state"] == "done"


@pytest.mark.parametrize("local", [LocalBundles.SANDBOX, LocalBundles.UNSAFE])
async def test_a_running_dispatcher_starts_functions_by_itself(
    upgraded: State, state_url: str, tmp_path: Path, local: LocalBundles
) -> None:
    if local is LocalBundles.SANDBOX:
        try:
            find_sandbox()
        except Refused as error:
            pytest.skip(str(error))
    here, stop = Site(upgraded, tmp_path, WRITES), asyncio.Event()
    chosen = DispatcherSettings(
        state=state_url,
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(tmp_path / "keys"),
        data=here.data_root,
        tick_ms=20,
        lambda_local=local,
    )
    settings = Settings(store=f"local:{tmp_path / 'store'}", dispatcher=chosen)
    running = asyncio.create_task(run_dispatcher(settings, stop=stop))
    try:
        with upgraded.write() as tx:
            emission.emit(tx, "shop", "orders", key="k", events=[EventBody(partition_key="p1")], by="tests")
        made = sa.select(schema.tasks).where(schema.tasks.c.job == "clean", schema.tasks.c.status == "completed")

        def ran() -> sa.RowMapping | None:
            with upgraded.read() as tx:
                return tx.one(made)

        row = await asyncio.to_thread(eventually, ran)
        assert (row["partition_key"], row["attempt"]) == ("p1", 1)
    finally:
        stop.set()
        await running


def test_the_token_of_a_function_ends_with_its_attempt(site: Callable[..., Site]) -> None:
    here = site("import json, os; print(json.dumps({'result': os.environ['QO_TASK_TOKEN']}))", outputs=0)
    task_id = here.wake()
    here.invoker().tick()
    here.settled(task_id, "completed")
    with here.state.read() as tx:
        token = tx.value(sa.select(schema.tasks.c.output).where(schema.tasks.c.id == task_id))
        capability = capabilities.verify(here.ring, token if isinstance(token, str) else token["result"], tx.now)
        assert (capability.task_id, capability.attempt) == (task_id, 1)
        with pytest.raises(Refused, match="over"):
            capabilities.require_running(tx, capability)


def test_a_function_that_breaks_a_rule_fails_its_task(site: Callable[..., Site]) -> None:
    here = site("print('nonsense')")
    task_id = here.wake()
    here.invoker().tick()
    row = here.settled(task_id, "completed", "failed")
    assert row["status"] == "failed"
    assert "JSON" in row["last_error"]


def test_a_report_that_the_dispatcher_does_not_take_fails_the_task(site: Callable[..., Site]) -> None:
    here = site("""print('{"outputs": [{"output": 0, "location": "file:/etc", "files": ["passwd"]}]}')""")
    task_id = here.wake()
    here.invoker().tick()
    row = here.settled(task_id, "completed", "failed")
    assert row["status"] == "failed"
    assert "report is not valid" in row["last_error"]


def test_a_report_of_another_form_fails_the_task_and_names_the_field(site: Callable[..., Site]) -> None:
    here = site("""print('{"outputs": [{}]}')""")
    task_id = here.wake()
    here.invoker().tick()
    row = here.settled(task_id, "completed", "failed")
    assert (row["status"], "outputs.0.output" in row["last_error"]) == ("failed", True)


def test_a_retryable_end_brings_another_attempt(site: Callable[..., Site]) -> None:
    here = site("""print('{"outcome": "retryable_error", "error": "busy"}')""")
    task_id = here.wake()
    here.invoker().tick()
    row = eventually(lambda: row if (row := here.task(task_id))["retry_count"] else None)
    assert (row["status"], row["attempt"], row["last_error"]) == ("pending", 1, "busy")


def test_a_bundle_that_is_gone_is_fatal_and_one_that_cannot_be_read_now_is_not(site: Callable[..., Site]) -> None:
    here = site("print('{}')")

    class Broken(bundle_store.BundleStore):
        def __init__(self, error: Exception) -> None:
            self._error = error

        def read(self, sha256: str) -> bytes:
            raise self._error

    for number, (error, status) in enumerate([(NotFound("gone"), "failed"), (Unavailable("busy"), "pending")], 1):
        task_id = here.wake(number)
        here.invoker(LocalFunctions(Broken(error), PlainProcess())).tick()
        row = eventually(lambda task_id=task_id: row if (row := here.task(task_id))["last_error"] else None)
        assert (row["status"], row["last_error"]) == (status, str(error))


def test_a_job_whose_bundle_was_never_finalized_fails_in_words(site: Callable[..., Site]) -> None:
    here = site("print('{}')")
    with here.state.write() as tx:
        tx.execute(sa.update(schema.bundles).values(state="uploading"))
    task_id = here.wake()
    here.invoker().tick()
    assert "finalize" in here.settled(task_id, "failed")["last_error"]


def test_a_wake_up_of_a_task_that_needs_none_is_dropped(site: Callable[..., Site]) -> None:
    here = site("print('{}')", outputs=0)
    task_id = here.wake()
    with here.state.write() as tx:
        tx.execute(sa.update(schema.tasks).values(status="completed"))
        outbox.add(tx, [Effect("nonsense", EffectKind.INVOKE, "lambda", "'; DROP TABLE tasks; --")])
    assert here.invoker().tick() == 2
    eventually(lambda: not _pending(here.state))
    assert here.task(task_id)["attempt"] == 0


def _pending(state: State) -> int:
    with state.read() as tx:
        return tx.value(
            sa.select(sa.func.count()).select_from(schema.outbox).where(schema.outbox.c.state == "pending")
        )


class Gate:
    """Functions that wait until they are let go, and count how many wait at once."""

    def __init__(self) -> None:
        self.open, self.lock = threading.Event(), threading.Lock()
        self.waiting = self.most = 0

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        with self.lock:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
        self.open.wait(WITHIN_S)
        with self.lock:
            self.waiting -= 1
        return Verdict(Outcome.SUCCESS)


def test_no_more_functions_run_at_once_than_there_is_room_for(site: Callable[..., Site]) -> None:
    here, gate = site("print('{}')", outputs=0), Gate()
    tasks = [here.wake(number) for number in range(5)]
    running = here.invoker(gate, parallel=2)
    assert running.tick() == 2
    eventually(lambda: gate.waiting == 2)
    assert running.tick() == 0
    gate.open.set()
    eventually(lambda: running.tick() or all(here.task(each)["status"] == "completed" for each in tasks))
    for each in tasks:
        eventually(lambda each=each: running.tick() or here.task(each)["status"] == "completed")
        here.settled(each, "completed")
    assert gate.most == 2


def test_two_dispatchers_invoke_a_task_once(site: Callable[..., Site]) -> None:
    here, gate = site("print('{}')", outputs=0), Gate()
    gate.open.set()
    tasks = [here.wake(number) for number in range(8)]
    both = [here.invoker(gate), here.invoker(gate)]
    threads = [threading.Thread(target=each.tick) for each in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    for each in tasks:
        eventually(lambda each=each: any(one.tick() for one in both) or here.task(each)["status"] == "completed")
    assert {here.settled(each, "completed")["attempt"] for each in tasks} == {1}


def test_a_crash_after_the_lease_leaves_a_lease_that_runs_out(site: Callable[..., Site], clock: Clock) -> None:
    here = site("print('{}')", outputs=0)

    class Crash:
        def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
            raise SystemExit  # As if the process ended here: nothing after it happens.

    task_id = here.wake()
    here.invoker(Crash()).tick()
    row = eventually(lambda: row if (row := here.task(task_id))["status"] == "running" else None)
    assert _pending(here.state) == 0
    with here.state.read() as tx:
        assert tx.now < row["lease_expires_at"] <= tx.now + timedelta(seconds=60)


def test_a_running_function_keeps_its_lease_and_hears_of_its_cancellation(site: Callable[..., Site]) -> None:
    here = site("import time; time.sleep(600)", heartbeat_timeout_seconds=1, outputs=0)
    task_id = here.wake()
    here.invoker().tick()
    first = here.settled(task_id, "running")["lease_expires_at"]
    eventually(lambda: here.task(task_id)["lease_expires_at"] > first)
    with here.state.write() as tx:
        operator_actions.cancel(tx, task_id, "ada", "changed my mind")
    assert here.settled(task_id, "cancelled")["attempt"] == 1


def test_a_function_whose_lease_was_lost_is_stopped_and_says_nothing(site: Callable[..., Site]) -> None:
    here = site("import time; time.sleep(600)", heartbeat_timeout_seconds=1, outputs=0)
    task_id = here.wake()
    running = here.invoker(parallel=1)
    running.tick()
    here.settled(task_id, "running")
    with here.state.write() as tx:
        tx.execute(sa.update(schema.tasks).values(lease_id="another", attempt=2))
    other = here.wake(2)
    eventually(lambda: running.tick())  # The only place is free again.
    here.settled(other, "running")
    assert (here.task(task_id)["status"], here.task(task_id)["attempt"]) == ("running", 2)


def test_shutting_down_gives_running_tasks_back(site: Callable[..., Site], scratch: Path) -> None:
    here = site("import time; time.sleep(600)", outputs=0)
    task_id = here.wake()
    running = here.invoker()
    running.tick()
    here.settled(task_id, "running")
    running.close()
    row = here.task(task_id)
    assert (row["status"], row["retry_count"]) == ("pending", 0)
    assert list(scratch.iterdir()) == []
    assert running.tick() == 0


TELLS = """
import json, os
print(json.dumps({"outcome": "fatal_error", "error": "I was given " + str(dict(os.environ))}))
"""


def test_a_function_that_tells_its_environment_tells_no_token(site: Callable[..., Site]) -> None:
    here = site(TELLS)
    task_id = here.wake()
    here.invoker().tick()
    row = here.settled(task_id, "failed")
    assert "I was given" in row["last_error"]
    assert "eyJ" not in row["last_error"]
    with here.state.read() as tx:
        assert not [each for each in tx.all(sa.select(schema.attempts)) if "eyJ" in str(dict(each))]
