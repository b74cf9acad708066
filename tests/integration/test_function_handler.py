"""The function-side handler: packaged, started far from the dispatcher, and reporting to it over HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import EventBody, InputMode, Outcome, WorkInput
from qo.config import origins
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher import aws
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.service import run_dispatcher
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.upgrade import upgrade
from qo.dispatcher.tasks import operator_actions
from qo.errors import QoError, Unavailable
from qo.function import invocation_handler as handlers
from qo.function import task_client
from qo.function.aws import handler as aws_handler
from qo.function.execution import Conditions
from qo.function.function_messages import Stop, Verdict
from qo.function.invocation_handler import handle
from qo.function.packing import build_lambda
from support.dispatcher.function_sites import Site, eventually
from support.dispatcher.invocations import TOKEN, invocation_of, scratch  # noqa: F401
from support.dispatcher.zips import MAIN, bundle, sha256

RUNTIME = """
import json, sys
sys.path.insert(0, sys.argv[1])
from qo.function.aws import handler
class Context:
    def get_remaining_time_in_millis(self):
        return 60_000
handler(json.load(sys.stdin), Context())
"""


class LambdaService(ThreadingHTTPServer):
    """Invoke, as AWS Lambda has it: each event is handled by a process that has the package and nothing else of qo."""

    def __init__(self, package: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Invoke)
        self.package, self.processes = package, list[subprocess.Popen[bytes]]()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Invoke(BaseHTTPRequestHandler):
    server: LambdaService

    def do_POST(self) -> None:
        event = self.rfile.read(int(self.headers["content-length"]))
        command = [sys.executable, "-I", "-S", "-c", RUNTIME, str(self.server.package)]
        environment = {"QO_FUNCTION_ENV": "API_BASE", "API_BASE": "http://api", "AWS_SESSION_TOKEN": "of-the-role"}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        self.server.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(event)
        process.stdin.close()
        self._answer(202)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0" if status == 202 else "2")
        self.end_headers()
        self.wfile.write(b"" if status == 202 else b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(server: ThreadingHTTPServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LambdaService]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    aws.client.cache_clear()
    with zipfile.ZipFile(io.BytesIO(build_lambda().body)) as archive:
        archive.extractall(tmp_path / "package")
    server = LambdaService(tmp_path / "package")
    running = serve(server)
    next(running)
    yield server
    for each in server.processes:
        each.kill()
        each.wait()
    next(running, None)
    aws.client.cache_clear()


@pytest.fixture
def upgraded(state_url: str) -> Iterator[State]:
    state = open_state(state_url)
    upgrade(state)
    yield state
    state.close()


WRITES = """
import json, os, sys
asked = json.load(sys.stdin)
prefix = asked["work"]["outputs"][0]["prefix"].removeprefix("file:")
os.makedirs(prefix)
with open(prefix + "part-0.json", "w") as file:
    file.write("{}")
print(json.dumps({"outputs": [{"output": 0, "location": asked["work"]["outputs"][0]["prefix"], "files": ["part-0.json"],
    "rows": 1, "bytes": 2}], "result": sorted(os.environ)}))
"""


async def run_with(settings: Settings, act: Callable[[], Any]) -> Any:
    stop = asyncio.Event()
    running = asyncio.create_task(run_dispatcher(settings, stop=stop))
    try:
        return await asyncio.to_thread(act)
    finally:
        stop.set()
        await running


def settings_of(here: Site, service: LambdaService, state_url: str, tmp_path: Path) -> Settings:
    chosen = DispatcherSettings(
        state=state_url,
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(tmp_path / "keys"),
        data=here.data_root,
        tick_ms=20,
        lambda_function="qo-udf",
        lambda_endpoint=service.endpoint,
    )
    return Settings(store=f"local:{tmp_path / 'store'}", dispatcher=chosen)


def emit(state: State) -> None:
    with state.write() as tx:
        emission.emit(tx, "shop", "orders", key="k", events=[EventBody(partition_key="p1")], by="tests")


def task_of(state: State, status: str) -> Callable[[], sa.RowMapping | None]:
    made = sa.select(schema.tasks).where(schema.tasks.c.job == "clean", schema.tasks.c.status == status)

    def find() -> sa.RowMapping | None:
        with state.read() as tx:
            return tx.one(made)

    return find


async def test_the_packaged_function_takes_an_event_to_a_commit(
    upgraded: State, state_url: str, tmp_path: Path, service: LambdaService
) -> None:
    here = Site(upgraded, tmp_path, WRITES)

    def act() -> sa.RowMapping:
        emit(upgraded)
        return eventually(task_of(upgraded, "completed"))

    row = await run_with(settings_of(here, service, state_url, tmp_path), act)
    assert (row["partition_key"], row["attempt"]) == ("p1", 1)
    with upgraded.read() as tx:
        made = tx.one(sa.select(schema.partitions).where(schema.partitions.c.task_id == row["id"]))
    assert made is not None
    assert made["rows"] == 1
    assert "AWS_SESSION_TOKEN" not in str(row["output"])


@pytest.mark.long
async def test_a_cancelled_task_stops_its_function_far_away(
    upgraded: State, state_url: str, tmp_path: Path, service: LambdaService
) -> None:
    here = Site(upgraded, tmp_path, "import time; time.sleep(600)", heartbeat_timeout_seconds=1, outputs=0)

    def act() -> sa.RowMapping:
        emit(upgraded)
        task_id = eventually(task_of(upgraded, "running"))["id"]
        with upgraded.write() as tx:
            operator_actions.cancel(tx, task_id, "ada", "changed my mind")
        return eventually(task_of(upgraded, "cancelled"))

    assert (await run_with(settings_of(here, service, state_url, tmp_path), act))["attempt"] == 1
    assert [each.wait(30) for each in service.processes] == [0]


class TaskApi(ThreadingHTTPServer):
    """The task API, scripted: what it answers to each call, and what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.calls: list[tuple[str, str | None, Any]] = []
        self.answers: dict[str, list[tuple[int, Any]]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reports(self) -> list[Any]:
        return [body for path, _, body in self.calls if path == "/v1/task/complete"]


class _Call(BaseHTTPRequestHandler):
    server: TaskApi

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _answer(self, body: Any) -> None:
        path = self.path.partition("?")[0]
        self.server.calls.append((path, self.headers.get("X-Qo-Task-Capability"), body))
        waiting = self.server.answers.get(path, [])
        status, content = (waiting.pop(0) if len(waiting) > 1 else waiting[0]) if waiting else (200, {})
        encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[TaskApi]:
    monkeypatch.setattr(task_client, "PATIENCE_S", 0.3)
    server = TaskApi()
    running = serve(server)
    next(running)
    yield server
    next(running, None)


def handled(api: TaskApi, code: str, **changed: Any) -> Verdict:
    body = bundle({MAIN: code})
    api.answers.setdefault("/v1/task/bundle", [(200, body)])
    invocation = invocation_of(body, dispatcher_url=api.url, **changed)
    return handle(invocation.model_dump_json().encode(), Conditions())


def problem(code: str, text: str) -> dict[str, str]:
    return {"code": code, "error": text}


LEASE_LOST = (409, problem("lease_lost", "the attempt is over"))


def test_a_handler_fetches_runs_and_reports_under_the_fence(api: TaskApi) -> None:
    verdict = handled(api, "print('{\"result\": 7}')")
    assert verdict.outcome is Outcome.SUCCESS
    (report,) = api.reports()
    assert {name: report[name] for name in ("task_id", "attempt", "lease_id", "outcome", "result")} == {
        "task_id": "t1", "attempt": 1, "lease_id": "lease-1", "outcome": "success", "result": 7,
    }  # fmt: skip
    assert {token for _, token, _ in api.calls} == {TOKEN}


def test_a_bundle_with_another_hash_does_not_run(api: TaskApi, tmp_path: Path) -> None:
    other = bundle({MAIN: f"open({str(tmp_path / 'ran')!r}, 'w')"})
    api.answers["/v1/task/bundle"] = [(200, other)]
    assert "sha256" in (handled(api, "print('{}')").error or "")
    assert [each["outcome"] for each in api.reports()] == ["fatal_error"]
    assert not (tmp_path / "ran").exists()


def test_a_link_to_the_bundle_is_used_without_the_capability_and_is_in_no_error(api: TaskApi) -> None:
    link = f"{api.url}/bucket/bundle.zip?X-Amz-Signature=abcdef0123456789"
    api.answers["/bucket/bundle.zip"] = [(200, bundle({MAIN: "print('{}')"}))]
    assert handled(api, "print('{}')", bundle_url=link).outcome is Outcome.SUCCESS
    assert ("/bucket/bundle.zip", None, None) in api.calls
    api.answers["/bucket/bundle.zip"] = [(403, b"<Error>Request has expired</Error>")]
    verdict = handled(api, "print('{}')", bundle_url=link)
    assert verdict.outcome is Outcome.FATAL
    assert "abcdef0123456789" not in str(api.reports())


@pytest.mark.s3
def test_a_presigned_link_to_a_real_bucket_gives_the_bundle(
    s3_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_env.items():
        monkeypatch.setenv(name, value)
    aws.client.cache_clear()
    body = bundle({MAIN: "print('{}')"})
    loaded = origins.load(environ=s3_env, cwd=Path("/nonexistent"))
    root = f"s3://{s3_env['S3_BUCKET']}/data"
    shelf = BundleStore(replace(loaded, dispatcher=DispatcherSettings(data=root)))
    shelf.write(sha256(body), body)
    link = shelf.get_url(sha256(body))
    assert link is not None
    assert task_client.fetch(link) == body
    with pytest.raises(QoError) as refused:
        task_client.fetch(link.replace("Signature=", "Signature=0"))
    assert "Signature=0" not in str(refused.value)
    aws.client.cache_clear()


def test_heartbeats_renew_the_capability_while_the_function_runs(api: TaskApi) -> None:
    api.answers["/v1/task/heartbeat"] = [(200, {"capability_token": "a-new-token"}), (200, {})]
    waits = "import time\ntime.sleep(0.4)\nprint('{}')"
    assert handled(api, waits, heartbeat_s=0.05).outcome is Outcome.SUCCESS
    assert [token for path, token, _ in api.calls if path == "/v1/task/complete"] == ["a-new-token"]


def test_a_handler_obeys_a_cancellation(api: TaskApi) -> None:
    api.answers["/v1/task/heartbeat"] = [(200, {"cancel_requested": True})]
    verdict = handled(api, "import time; time.sleep(600)", heartbeat_s=0.05)
    assert verdict.stopped is Stop.CANCELLED
    assert [each["outcome"] for each in api.reports()] == ["cancelled"]


def test_a_handler_that_lost_its_lease_stops_and_reports_nothing(api: TaskApi) -> None:
    api.answers["/v1/task/heartbeat"] = [LEASE_LOST]
    verdict = handled(api, "import time; time.sleep(600)", heartbeat_s=0.05)
    assert verdict.stopped is Stop.LOST
    assert api.reports() == []


def test_a_handler_that_cannot_renew_its_lease_stops(api: TaskApi) -> None:
    api.answers["/v1/task/heartbeat"] = [(503, problem("unavailable", "the database is away"))]
    assert handled(api, "import time; time.sleep(600)", heartbeat_s=0.1).stopped is Stop.LOST


def test_a_report_is_repeated_while_the_dispatcher_is_away(api: TaskApi) -> None:
    api.answers["/v1/task/complete"] = [(503, problem("busy", "busy")), (502, b"bad gateway"), (200, {})]
    assert handled(api, "print('{}')").outcome is Outcome.SUCCESS
    assert len(api.reports()) == 3
    api.answers["/v1/task/complete"] = [(503, problem("busy", "busy"))]
    with pytest.raises(Unavailable):
        handled(api, "print('{}')", heartbeat_s=0.05)


def test_a_report_that_the_dispatcher_refuses_fails_the_task_with_its_words(api: TaskApi) -> None:
    refusal = {"code": "invalid", "error": "the body is not valid", "detail": ["outputs.0.output: Field required"]}
    api.answers["/v1/task/complete"] = [(422, refusal), (200, {})]
    handled(api, "print('{\"outputs\": [{}]}')")
    first, second = api.reports()
    assert (first["outcome"], second["outcome"]) == ("success", "fatal_error")
    assert "outputs.0.output" in second["error"]


@pytest.mark.parametrize(
    "answer", [(503, problem("unavailable", "away")), (401, problem("unauthenticated", "expired"))]
)
def test_a_bundle_that_cannot_be_fetched_now_costs_an_attempt_not_the_task(
    api: TaskApi, answer: tuple[int, Any]
) -> None:
    api.answers["/v1/task/bundle"] = [answer]
    assert handled(api, "print('{}')").outcome is Outcome.RETRYABLE


def test_inputs_that_did_not_fit_the_invocation_are_asked_for(api: TaskApi) -> None:
    page = {"pieces": [{"revision": 1, "location": "s3://b/x"}], "after": None}
    api.answers["/v1/task/inputs"] = [(200, page)]
    cut = WorkInput(position=0, name="o", dataset_id="d", generation_id="g", mode=InputMode.WHOLE, more=True)
    work = invocation_of(b"").work.model_copy(update={"inputs": [cut]})
    code = "import json, sys; print(json.dumps({'result': json.load(sys.stdin)['work']['inputs'][0]['pieces']}))"
    assert handled(api, code, work=work).outcome is Outcome.SUCCESS
    assert api.reports()[0]["result"] == page["pieces"]


def test_the_time_that_lambda_leaves_is_the_functions_limit(api: TaskApi, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def get_remaining_time_in_millis(self) -> int:
            return 3000

    limits: list[float | None] = []

    def note(document: bytes, conditions: Conditions) -> Verdict:
        limits.append(conditions.timeout_s)
        return Verdict(Outcome.SUCCESS)

    monkeypatch.setattr("qo.function.aws.handle", note)
    monkeypatch.setattr("qo.function.aws._hide_environment", lambda: None)
    assert aws_handler({}, Short()) == {"outcome": "success"}
    assert limits == [1.0]


@pytest.mark.fast
def test_the_handler_starts_with_few_modules() -> None:
    command = (
        "import sys, qo.function.aws; print([m for m in sys.modules if m.partition('.')[0] in "
        + repr(("pydantic", "httpx", "aiohttp", "sqlalchemy", "boto3", "botocore", "fastapi", "pyspark", "typer"))
        + "])"
    )
    listed = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert listed.stdout.strip() == "[]"


def test_both_sides_agree_on_the_lease() -> None:
    from qo.dispatcher.attempts.claiming import BEATS

    assert handlers.BEATS == BEATS
