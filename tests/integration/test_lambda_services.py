# ruff: noqa: F811
"""Functions behind a service: invoked once, and their report."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest

from qo.api.contract.task import InputMode, Outcome, Piece, WorkInput
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher import aws
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.runtimes.aws_lambda import PAYLOAD_MAX, AwsFunctions, payload_of
from qo.dispatcher.state.database import State
from qo.errors import Refused
from support.dispatcher.function_sites import Site, eventually
from support.dispatcher.invocations import invocation_of, scratch  # noqa: F401
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.dispatcher.zips import MAIN, bundle, sha256
from support.servers.ports import free_ports
from support.servers.s3 import REGION, S3Server


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
    shelf = bundle_store.BundleStore(Settings(dispatcher=DispatcherSettings(data=f"file:{tmp_path}")))
    functions = AwsFunctions("qo-udf", shelf, region=REGION, endpoint=moto_server.endpoint)
    assert functions.launch(invocation_of(b""), lambda: None) is None
    missing = AwsFunctions("missing", shelf, region=REGION, endpoint=moto_server.endpoint)
    verdict = missing.launch(invocation_of(b""), lambda: None)
    assert verdict is not None
    assert verdict.outcome is Outcome.FATAL
    aws.client.cache_clear()
