"""Whatever is sent to the queue's API, it answers as its OpenAPI file says, and never that it is at fault itself.

``PROVE=1`` tries many more requests.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.transport import Response

from qo.api.contract.body import Problem
from qo.queue.queue import Queue
from qo.queue.task_document import OPTION_NAMES
from qo.queue_api import task_reading
from qo.queue_api.api_routes import describe
from qo.queue_api.queue_server import build_app
from qo.store.memory import MemoryStore
from support.dispatcher.surfaces import Reply, call_app
from support.queue_api.listeners import make_api

MORE = 40 if os.environ.get("PROVE") else 1
PROMISES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
LETTERS = [
    "\0",
    "a\0b",
    "\ud800",
    "\n",
    "\r\nX: y",
    "\x1b[2J",
    "\u2028",
    "\U0010ffff",
    "²",
    "",
    "'",
    "%",
    "..",
    "/",
]
TEXTS = st.sampled_from([*LETTERS, "null", "nan", "1e400", "-1", "9" * 30, "x" * 600, "0001-01-01T00:00:00+14:00"])
NUMBERS = st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**40, 0.5, 1e300, float("nan"), float("-inf")])
DEEP = st.sampled_from([200, 201, 5000]).map(lambda levels: "[" * levels + "]" * levels)
BODY = {
    "type": "echo",
    "input": {"a": 1},
    "at": "2026-01-01T00:00:00Z",
    "key": "k",
    "key_scope": "s",
    "retries": 1,
    "timeout": "1m",
    "priority": 1,
    "retry_multiplier": 2.0,
}
T = TypeVar("T")

pytestmark = pytest.mark.timeout(240 * MORE)


class Surface:
    """The app in this process, with one task in each state that counts."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        self.queue = Queue(MemoryStore())
        self.runner.run(self._fill(directory))

    async def _fill(self, directory: Path) -> None:
        api, chosen, tokens = await make_api(self.queue, directory, rate_per_s=0)
        self.app = build_app(api, chosen)
        self.token = tokens["operator"]
        ended = await self.queue.submit("echo")
        await self.queue.cancel(ended.id)
        self.task_ids = [ended.id, (await self.queue.submit("echo")).id]

    def ask(self, method: str, target: str, content: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        sent = {"Host": "qo", "Authorization": f"Bearer {self.token}", **(headers or {})}
        return self.runner.run(call_app(self.app, method, target, sent, content))


@pytest.fixture
def surface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Surface]:
    for name in ("WAIT_S", "STREAM_S"):
        monkeypatch.setattr(task_reading, name, 0.01)
    found = Surface(tmp_path)
    yield found
    found.runner.close()


def tried(count: int, drawn: st.SearchStrategy[T], act: Callable[[T], None]) -> None:
    chosen = settings(
        max_examples=count * MORE,
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    def one(value: T) -> None:
        act(value)

    chosen(given(drawn)(one))()


def promised(reply: Reply) -> None:
    if reply.status >= 400:
        problem = Problem.model_validate_json(reply.body)
        assert problem.error
        assert problem.code
    assert reply.status < 500, reply.text


def test_every_answer_of_the_queue_is_one_that_is_described(surface: Surface) -> None:
    asked: set[str] = set()
    document = schemathesis.openapi.from_dict(describe())
    for result in document.get_all_operations():
        operation = result.ok()
        name = operation.definition.raw["operationId"]
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

        def described(drawn: tuple[Any, str | None], name: str = name) -> None:
            case, known = drawn
            if known is not None and "task_id" in (case.path_parameters or {}):
                case.path_parameters["task_id"] = known
            if "timeout" in (case.query or {}):
                case.query["timeout"] = "0.01"
            sent = requests.Request(**case.as_transport_kwargs(base_url="http://qo")).prepare()
            body = sent.body or b""
            content = body.encode() if isinstance(body, str) else bytes(body)
            target = quote(sent.path_url, safe="/?&=%[]@:+,;!$'()*~")
            reply = surface.ask(sent.method or "GET", target, content)
            promised(reply)
            headers = {key.lower(): [value] for key, value in reply.headers.items()}
            answer = Response(int(reply.status), headers, reply.body, sent, elapsed=0.0, verify=False)
            case.validate_response(answer, checks=[CHECKS.get_one(each) for each in PROMISES])
            asked.add(name)

        tried(12, st.tuples(cases, st.sampled_from([None, *surface.task_ids])), described)
    assert len(asked) == len(
        {each["operationId"] for path in describe()["paths"].values() for each in path.values()}
    )


def test_any_text_in_any_parameter_of_the_queue_is_answered(surface: Surface) -> None:
    for path, methods in describe()["paths"].items():
        for method, operation in methods.items():
            names = [each["name"] for each in operation["parameters"] if each["in"] != "header"]

            def any_text(
                drawn: dict[str, str], names: list[str] = names, method: str = method, path: str = path
            ) -> None:
                query: list[str] = []
                for name in names:
                    text = drawn.get(name, surface.task_ids[0] if name == "task_id" else "0.01")
                    value = quote(text.encode("utf-8", "replace").decode(), safe="")
                    if f"{{{name}}}" in path:
                        path = path.replace(f"{{{name}}}", value)
                    elif name in drawn or name == "timeout":  # Without one, the wait is half a minute.
                        query.append(f"{name}={value}")
                promised(surface.ask(method.upper(), f"{path}?{'&'.join(query)}"))

            tried(12, st.fixed_dictionaries({}, optional={name: TEXTS for name in names}), any_text)


class Raw(str):
    """JSON that stands as it is, for what no encoder would write."""


def test_anything_in_any_field_of_a_new_task_is_answered(surface: Surface) -> None:
    plain = TEXTS | NUMBERS | st.none() | st.booleans() | st.just([]) | st.just({}) | DEEP.map(Raw)

    def anything(drawn: tuple[str, Any]) -> None:
        name, value = drawn
        text = json.dumps({**BODY, name: "raw0raw" if isinstance(value, Raw) else value})
        content = text.replace('"raw0raw"', str(value)).encode()
        for path in ("/v1/tasks", "/v1/tasks/batch"):
            promised(
                surface.ask("POST", path, content if path == "/v1/tasks" else b'{"tasks":[' + content + b"]}")
            )

    tried(150, st.tuples(st.sampled_from(list(BODY)), plain), anything)


@pytest.mark.timeout(60)
def test_no_value_of_any_option_keeps_the_server_busy_or_comes_back_whole(surface: Surface) -> None:
    hostile: list[Any] = [10**400, "1" * 200_000 + "x", ["x" * 200_000], {"x" * 200_000: 1}, "x" * 200_000]
    for name in (*OPTION_NAMES, "ab" * 200_000):
        for value in hostile:
            unique = {"unique": "u"} if name.startswith("unique") else {"key": "k"}
            reply = surface.ask("POST", "/v1/tasks", json.dumps({"type": "echo", **unique, name: value}).encode())
            promised(reply)
            if reply.status != 409 and not isinstance(value, str):
                assert reply.status == 400, (name, reply.text[:200])
            assert reply.status < 300 or len(reply.body) < 1_000, name


def test_any_bytes_as_a_body_are_answered(surface: Surface) -> None:
    broken = [
        b"\xff\xfe",
        b"{",
        b'{"a":1,"a":2}',
        b"\0",
        b"[" * 100_000,
        b"9" * 5000,
        b'"\\ud800"',
        b"null",
        b"[]",
    ]
    paths = ["/v1/tasks", "/v1/tasks/batch", f"/v1/tasks/{surface.task_ids[0]}/cancel"]

    def any_bytes(drawn: tuple[str, bytes, str]) -> None:
        path, content, key = drawn
        header = {"Idempotency-Key": key.encode("latin-1", "replace").decode("latin-1")} if key else {}
        promised(surface.ask("POST", path, content, header))

    contents = st.sampled_from([*broken, json.dumps(BODY).encode()]) | st.binary(max_size=60)
    tried(80, st.tuples(st.sampled_from(paths), contents, TEXTS), any_bytes)
