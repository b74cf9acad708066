# ruff: noqa: F811
"""The runtime ``lambda``: functions are invoked once per attempt, and a hostile one gets nothing and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import sqlalchemy as sa

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import EventBody, InputMode, Outcome, Piece, Work, WorkInput
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher import aws
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.effects import operator_actions
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect, Kind
from qo.dispatcher.runtimes import subprocess_lambda
from qo.dispatcher.runtimes.aws_lambda import PAYLOAD_MAX, AwsFunctions, payload_of
from qo.dispatcher.runtimes.invoker import LocalFunctions
from qo.dispatcher.runtimes.subprocess_lambda import Stop, Verdict
from qo.dispatcher.service import run_dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.upgrade import upgrade
from qo.errors import NotFound, Refused, Unavailable
from support.dispatcher.function_sites import WITHIN_S, Site, eventually
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.dispatcher.zips import MAIN, bundle, sha256
from support.servers.ports import free_ports
from support.servers.s3 import REGION, S3Server

TOKEN = "header.claims.signature-of-this-test"


# One process


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where private directories are made, so that a test sees whether they are gone."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def invocation_of(body: bytes, **changed: Any) -> Invocation:
    work = Work(
        task_id="t1", attempt=1, dag="shop", job="clean", version=1, runtime="lambda", operator="udf",
        update_strategy="replace", timeout_seconds=20,
    )  # fmt: skip
    fields: dict[str, Any] = {
        "task_id": "t1",
        "attempt": 1,
        "lease_id": "lease-1",
        "lease_expires_at": datetime(2030, 1, 1, tzinfo=UTC),
        "heartbeat_s": 20.0,
        "capability_token": TOKEN,
        "dispatcher_url": "http://127.0.0.1:1",
        "bundle_sha256": sha256(body),
        "entrypoint": MAIN,
        "work": work,
    }
    return Invocation(**fields | changed)


def run(
    code: str,
    *,
    offered: dict[str, str] | None = None,
    watch: Callable[[], Stop | None] = lambda: None,
    timeout_s: float | None = None,
    **changed: Any,
) -> Verdict:
    body = bundle({MAIN: code, "lib.py": "WORD = 'vendored'"}, **changed)
    return subprocess_lambda.run(
        invocation_of(body), body, offered=offered or {}, watch=watch, timeout_s=timeout_s
    )


def test_a_function_gets_its_invocation_and_its_answer_counts() -> None:
    verdict = run("""
import json, sys
asked = json.load(sys.stdin)
print(json.dumps({"result": [asked["task_id"], asked["work"]["job"], asked["capability_token"]]}))
""")
    assert verdict.outcome is Outcome.SUCCESS
    assert verdict.reply is not None
    assert verdict.reply.result == ["t1", "clean", TOKEN]


def test_a_bundle_brings_its_own_modules_and_sees_none_of_ours() -> None:
    verdict = run("""
import json, lib
found = []
for name in ("qo", "sqlalchemy", "botocore", "cryptography"):
    try:
        __import__(name)
        found.append(name)
    except ImportError:
        pass
print(json.dumps({"result": [lib.WORD, found]}))
""")
    assert verdict.reply is not None, verdict.error
    assert verdict.reply.result == ["vendored", []]


def test_nothing_of_our_environment_reaches_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "QO_WORKER_TOKEN", "QO_STATE", "HOME", "API_KEY", "LANG", "PYTHONPATH"):
        monkeypatch.setenv(name, "secret-of-the-dispatcher")
    verdict = run(
        "import json, os; print(json.dumps({'result': dict(os.environ)}))",
        env_allowlist=["API_BASE", "API_KEY", "MISSING"],
        offered={"API_BASE": "http://api", "OTHER": "not asked for"},
    )
    assert verdict.reply is not None, verdict.error
    seen = verdict.reply.result
    assert "secret-of-the-dispatcher" not in str(seen)
    # LC_CTYPE is what Python itself sets in the C locale.
    assert set(seen) - {"LC_CTYPE"} == {
        "PATH", "HOME", "TMPDIR", "QO_DISPATCHER_URL", "QO_TASK_TOKEN", "QO_RUN", "API_BASE",
    }  # fmt: skip


def test_a_function_inherits_no_open_files(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w"), (tmp_path / "state.db").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        verdict = run("""
import json, os
print(json.dumps({"result": [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if n not in "012"
    and os.path.exists(f"/proc/self/fd/{n}")]}))
""")
    assert verdict.reply is not None, verdict.error
    assert not any(str(tmp_path / "state.db") in each for each in verdict.reply.result)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "not one JSON object"),
        ("print('hello')", "not one JSON object"),
        ("print('[]')", "not one JSON object"),
        ("print('{}{}')", "not one JSON object"),
        ("print('{}'); print('{}')", "not one JSON object"),
        ('print(\'{"outcome": "cancelled"}\')', "outcome"),
        ("print('{\"surprise\": 1}')", "surprise"),
        ("print('{\"outputs\": [{}]}')", "outputs.0.output"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "not one JSON object"),
        ("print('[' * 100_000)", "not one JSON object"),
        ("raise SystemExit(3)", "status 3"),
        ("1/0", "ZeroDivisionError"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9"),
        ("print('{}'); raise SystemExit(1)", "status 1"),
    ],
)
def test_anything_but_one_sound_object_and_a_clean_end_is_fatal(code: str, why: str) -> None:
    verdict = run(code)
    assert (verdict.outcome, verdict.reply) == (Outcome.FATAL, None)
    assert why in (verdict.error or "")


def test_a_function_can_ask_for_another_attempt() -> None:
    verdict = run("""print('{"outcome": "retryable_error", "error": "try later", "retry_after_s": 5}')""")
    assert (verdict.outcome, verdict.error) == (Outcome.RETRYABLE, "try later")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_of_output_is_cut(stream: str) -> None:
    verdict = run(f"import sys\nwhile True: sys.{stream}.write('x' * 65536)", timeout_s=3)
    assert verdict.outcome is Outcome.FATAL
    assert len(verdict.error or "") < 10_000


def test_a_large_answer_within_the_limit_is_taken_whole() -> None:
    verdict = run("import json; print(json.dumps({'result': 'x' * 1_000_000}))")
    assert verdict.reply is not None, verdict.error
    assert len(verdict.reply.result) == 1_000_000


def test_a_function_that_does_not_end_is_ended() -> None:
    verdict = run("import time; time.sleep(600)", timeout_s=0.5)
    assert verdict.outcome is Outcome.FATAL
    assert "0.5 seconds" in (verdict.error or "")


def test_closing_its_output_does_not_hide_a_function() -> None:
    verdict = run("import os, time; os.close(1); os.close(2); time.sleep(600)", timeout_s=0.5)
    assert "0.5 seconds" in (verdict.error or "")


FORK = """
import os, sys, time, json
asked = json.load(sys.stdin)
ready, told = os.pipe()
if os.fork() == 0:
    %s
    os.write(told, str(os.getpid()).encode())
    time.sleep(600)
    os._exit(0)
child = int(os.read(ready, 20))
print(json.dumps({"result": child}))
sys.stdout.flush()
"""


@pytest.mark.parametrize(
    "escape",
    [
        "pass",
        "os.setsid()",
        "os.setsid()\n    if os.fork(): os._exit(0)",
        "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]",
        "os.close(0); os.close(1); os.close(2)",
    ],
)
def test_what_a_function_leaves_running_is_killed(escape: str) -> None:
    verdict = run(FORK % escape)
    assert verdict.reply is not None, verdict.error
    child = verdict.reply.result
    eventually(lambda: not _is_alive(child))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "code",
    [
        "print('{}')",
        "raise SystemExit(1)",
        "import os; os.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0); print('{}')",
        "import os; os.symlink('/etc', 'etc'); print('{}')",
        "import time; time.sleep(600)",
    ],
)
def test_no_trace_of_a_function_is_left_on_disk(code: str, scratch: Path) -> None:
    run(code, timeout_s=1)
    assert list(scratch.iterdir()) == []
    assert Path("/etc/passwd").exists()


def test_a_token_that_a_function_prints_does_not_reach_the_error() -> None:
    verdict = run("import os, sys; sys.exit(os.environ['QO_TASK_TOKEN'])")
    assert verdict.outcome is Outcome.FATAL
    assert TOKEN not in (verdict.error or "")


@pytest.mark.parametrize("entrypoint", ["other.py", "../main.py", "/etc/passwd", "", "-c"])
def test_only_a_file_of_the_bundle_is_an_entrypoint(entrypoint: str) -> None:
    body = bundle({MAIN: "print('{}')"})
    verdict = subprocess_lambda.run(
        invocation_of(body, entrypoint=entrypoint), body, offered={}, watch=lambda: None
    )
    assert (verdict.outcome, "entrypoint" in (verdict.error or "")) == (Outcome.FATAL, True)


def test_a_tampered_bundle_does_not_run(tmp_path: Path) -> None:
    body, other = bundle({MAIN: "print('{}')"}), bundle({MAIN: f"open({str(tmp_path / 'ran')!r}, 'w')"})
    verdict = subprocess_lambda.run(invocation_of(body), other, offered={}, watch=lambda: None)
    assert (verdict.outcome, "sha256" in (verdict.error or "")) == (Outcome.FATAL, True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [(Stop.CANCELLED, Outcome.CANCELLED), (Stop.RELEASED, Outcome.RELEASED), (Stop.LOST, Outcome.CANCELLED)],
)
def test_a_function_is_stopped_when_its_watcher_says_so(stop: Stop, outcome: Outcome) -> None:
    verdict = run("import time; time.sleep(600)", watch=lambda: stop)
    assert (verdict.outcome, verdict.stopped) == (outcome, stop)


# Wake-ups


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
os.makedirs(prefix)
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


async def test_a_running_dispatcher_starts_functions_by_itself(
    upgraded: State, state_url: str, tmp_path: Path
) -> None:
    here, stop = Site(upgraded, tmp_path, WRITES), asyncio.Event()
    chosen = DispatcherSettings(
        state=state_url,
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(tmp_path / "keys"),
        data=here.data_root,
        tick_ms=20,
        lambda_local=True,
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
            capabilities.still_valid(tx, capability)


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


def test_a_retryable_end_brings_another_attempt(site: Callable[..., Site]) -> None:
    here = site("""print('{"outcome": "retryable_error", "error": "busy"}')""")
    task_id = here.wake()
    here.invoker().tick()
    row = eventually(lambda: row if (row := here.task(task_id))["retry_count"] else None)
    assert (row["status"], row["attempt"], row["last_error"]) == ("pending", 1, "busy")


def test_a_bundle_that_is_gone_is_fatal_and_one_that_cannot_be_read_now_is_not(site: Callable[..., Site]) -> None:
    here = site("print('{}')")

    class Broken(bundle_store.FileShelf):
        def __init__(self, error: Exception) -> None:
            self._error = error

        def read(self, sha256: str) -> bytes:
            raise self._error

    for number, (error, status) in enumerate([(NotFound("gone"), "failed"), (Unavailable("busy"), "pending")], 1):
        task_id = here.wake(number)
        here.invoker(LocalFunctions(Broken(error))).tick()
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
        outbox.add(tx, [Effect("nonsense", Kind.INVOKE, "lambda", "'; DROP TABLE tasks; --")])
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


# A service


class FunctionService(ThreadingHTTPServer):
    """Speaks as much of Lambda as is called: Invoke, and the switch for retries."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: list[tuple[int, str]] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def invocations(self) -> list[Any]:
        return [body for method, path, _, body in self.calls if method == "POST" and path.endswith("/invocations")]


class _Handler(BaseHTTPRequestHandler):
    server: FunctionService

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.calls.append((self.command, self.path, dict(self.headers), json.loads(body or b"null")))
        invoked = self.path.endswith("/invocations")
        status, code = (
            self.server.answers.pop(0) if invoked and self.server.answers else (202 if invoked else 200, "")
        )
        reply = b"" if status == 202 else json.dumps({"message": code} if code else {}).encode()
        self.send_response(status)
        if code:
            self.send_header("x-amzn-errortype", code)
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[FunctionService]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws.client.cache_clear()
    server = FunctionService()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
    aws.client.cache_clear()


def test_a_service_is_invoked_once_with_the_whole_work_and_reports_by_itself(
    site: Callable[..., Site], service: FunctionService
) -> None:
    here = site("print('{}')")
    functions = AwsFunctions("qo-udf", here.shelf, region=REGION, endpoint=service.endpoint)
    task_id = here.wake()
    here.invoker(functions).tick()
    (sent,) = eventually(service.invocations)
    row = here.settled(task_id, "running")
    assert (sent["task_id"], sent["attempt"], sent["lease_id"]) == (task_id, 1, row["lease_id"])
    assert (sent["bundle_sha256"], sent["entrypoint"], sent["work"]["job"]) == (sha256(here.body), MAIN, "clean")
    with here.state.read() as tx:
        assert capabilities.verify(here.ring, sent["capability_token"], tx.now).task_id == task_id
    (switch, invoke) = service.calls
    assert (switch[0], switch[3]["MaximumRetryAttempts"]) == ("PUT", 0)
    assert {key.lower(): value for key, value in invoke[2].items()}["x-amz-invocation-type"] == "Event"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((500, "ServiceException"), "pending"),
        ((429, "TooManyRequestsException"), "pending"),
        ((404, "ResourceNotFoundException"), "failed"),
        ((403, "AccessDeniedException"), "failed"),
        ((200, ""), "failed"),
    ],
)
def test_a_service_that_does_not_take_it_is_asked_once_and_the_attempt_ends(
    site: Callable[..., Site], service: FunctionService, answer: tuple[int, str], status: str
) -> None:
    here = site("print('{}')")
    service.answers = [answer]
    task_id = here.wake()
    here.invoker(AwsFunctions("qo-udf", here.shelf, region=REGION, endpoint=service.endpoint)).tick()
    row = eventually(lambda: row if (row := here.task(task_id))["last_error"] else None)
    assert (row["status"], len(service.invocations())) == (status, 1)


def test_a_service_that_is_not_there_costs_an_attempt_not_the_task(
    site: Callable[..., Site], service: FunctionService
) -> None:
    here = site("print('{}')")
    task_id = here.wake()
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    here.invoker(AwsFunctions("qo-udf", here.shelf, region=REGION, endpoint=nobody)).tick()
    row = eventually(lambda: row if (row := here.task(task_id))["last_error"] else None)
    assert (row["status"], row["retry_count"]) == ("pending", 1)


@pytest.mark.fast
def test_lists_too_long_for_a_call_are_left_to_be_asked_for() -> None:
    pieces = [Piece(partition_key=f"p{number}", revision=number, location="x" * 100) for number in range(5000)]
    given = WorkInput(
        position=0, name="orders", dataset_id="d", generation_id="g", mode=InputMode.WHOLE, pieces=pieces
    )
    whole = invocation_of(b"")
    sent = json.loads(
        payload_of(whole.model_copy(update={"work": whole.work.model_copy(update={"inputs": [given]})}), None)
    )
    assert (sent["work"]["inputs"][0]["pieces"], sent["work"]["inputs"][0]["more"]) == ([], True)
    vast = whole.work.model_copy(update={"config": {"x": "y" * PAYLOAD_MAX}})
    with pytest.raises(Refused, match="shorten"):
        payload_of(whole.model_copy(update={"work": vast}), None)


@pytest.mark.s3
def test_another_implementation_of_lambda_takes_the_invocation(
    moto_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret_key)
    aws.client.cache_clear()
    httpx.post(
        f"{moto_server.endpoint}/moto-api/config", json={"lambda": {"use_docker": False}}
    ).raise_for_status()
    known: dict[str, Any] = {"endpoint_url": moto_server.endpoint, "region_name": REGION}
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = boto3.client("iam", **known).create_role(RoleName="qo-udf", AssumeRolePolicyDocument=trust)["Role"][
        "Arn"
    ]
    boto3.client("lambda", **known).create_function(
        FunctionName="qo-udf",
        Role=role,
        Runtime="python3.11",
        Handler="main.handler",
        Code={"ZipFile": bundle({MAIN: ""})},
    )
    shelf = bundle_store.FileShelf(tmp_path)
    functions = AwsFunctions("qo-udf", shelf, region=REGION, endpoint=moto_server.endpoint)
    assert functions.launch(invocation_of(b""), lambda: None) is None
    missing = AwsFunctions("missing", shelf, region=REGION, endpoint=moto_server.endpoint)
    verdict = missing.launch(invocation_of(b""), lambda: None)
    assert verdict is not None
    assert verdict.outcome is Outcome.FATAL
    aws.client.cache_clear()


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
