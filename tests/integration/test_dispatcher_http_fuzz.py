"""Whatever is sent to the dispatcher, it answers as its OpenAPI files say, and never that it is at fault itself.

``PROVE=1`` tries many more requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from starlette.applications import Starlette

from qo.api.contract.body import Problem
from qo.api.contract.catalog import AccessTokenError, CatalogError
from qo.api.contract.storable import DEPTH_MAX
from qo.dispatcher.http.rights import INTERNAL, PUBLIC, Need
from qo.dispatcher.state.database import State
from support.dispatcher.states import clock, fresh_url, state  # noqa: F401
from support.dispatcher.surfaces import Reply, Surface, surface

MORE = 40 if os.environ.get("PROVE") else 1
WHO = {need: str(need) for need in Need} | {Need.NOTHING: None, Need.SIGNATURE: None, Need.SCHEDULER: "worker"}
PROMISES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)
LAST = ("complete", "replay_task", "cancel_task", "revoke_token")  # After these there is less to ask for.

# What databases, encoders, parsers and shells trip over.
_LETTERS = ["\0", "a\0b", "\ud800", "a\udfff", "\n", "\r\nX: y", "\x1b[2J", "\u2028", "\ufeff", "\U0010ffff", "²"]
_SYNTAX = ["'", '"', "';--", "%", "%s", "{}", "..", "../../etc/passwd", "/", "\\", " ", "", "null", "nan", "1e400"]
_LENGTHS = ["-1", "9" * 10, "9" * 19, "9" * 30, "x" * 201, "x" * 600]
_NAMES = ["shop", "shop.clean", "clean_orders", "shop.clean[99999]", f"clean_orders@cursor:{'9' * 19}"]
_PLACES = [
    "0001-01-01T00:00:00+14:00/x",
    "9999-12-31T23:59:59-14:00/x",
    "2026-01-01/x",
    "p/1/a",
    f"c/{'9' * 30}/1",
]
TEXTS = st.sampled_from([*_LETTERS, *_SYNTAX, *_LENGTHS, *_NAMES, *_PLACES])
NUMBERS = st.sampled_from(
    [
        0,
        -1,
        1,
        2**31,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        -(2**63) - 1,
        10**40,
        0.5,
        1e300,
        float("nan"),
        float("-inf"),
    ]
)
DEEP = st.sampled_from([DEPTH_MAX, DEPTH_MAX + 1, 500, 5000]).map(lambda levels: "[" * levels + "]" * levels)


T = TypeVar("T")

pytestmark = pytest.mark.timeout(240 * MORE)


@pytest.fixture(params=["sqlite", "postgres"])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As everywhere, but not fast on SQLite either."""
    return fresh_url(request, tmp_path)


@pytest.fixture
def found(state: State, tmp_path: Path) -> Iterator[Surface]:  # noqa: F811
    with surface(state, tmp_path) as made:
        yield made


def tried(found: Surface, count: int, drawn: st.SearchStrategy[T], act: Callable[[T], None]) -> None:
    """So many of what may be drawn, the same in every run. On the slower database some of them."""
    slow = found.context.state.engine.dialect.name == "postgresql"
    chosen = settings(
        max_examples=max(1, count // 8 if slow else count) * MORE,
        phases=[Phase.explicit, Phase.generate, Phase.shrink] if MORE > 1 else [Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    def one(value: T) -> None:
        act(value)

    chosen(given(drawn)(one))()


def operations(found: Surface) -> list[tuple[bool, Starlette, Any]]:
    """All of both listeners, as the files describe them; the ones that end something come last."""
    listed: list[tuple[bool, Starlette, Any]] = []
    for internal, app in ((False, found.public), (True, found.internal)):
        document = schemathesis.openapi.from_dict(app.state.openapi())
        listed += [(internal, app, each.ok()) for each in document.get_all_operations()]
    return sorted(listed, key=lambda each: _id(each[2]) in LAST)


def _id(operation: Any) -> str:
    return operation.definition.raw["operationId"]


def promised(reply: Reply) -> None:
    """An error has the form that all errors have, or that the clients of the catalogue know, and is never one of
    ours."""
    if reply.status >= 400:
        body = json.loads(reply.body)
        if isinstance(body["error"], dict):
            assert CatalogError.model_validate(body).error.code == reply.status
        elif "error_description" in body:
            assert AccessTokenError.model_validate(body).error_description
        else:
            problem = Problem.model_validate(body)
            assert problem.error
            assert problem.code
    assert reply.status < 500, reply.text


@pytest.mark.parametrize("listener", ["public", "internal"])
def test_every_answer_is_one_that_is_described(found: Surface, listener: str) -> None:
    asked: set[str] = set()
    for internal, _, operation in operations(found):
        if internal is not (listener == "internal"):
            continue
        name = _id(operation)
        need = (INTERNAL if internal else PUBLIC)[name]
        modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

        def described(
            drawn: tuple[Any, bool], who: str | None = WHO[need], internal: bool = internal, name: str = name
        ) -> None:
            case, known = drawn
            if known:
                _aim(case, found)
            reply, sent = _send(case, found, who, internal)
            promised(reply)
            case.validate_response(_answer(reply, sent), checks=[CHECKS.get_one(name) for name in PROMISES])
            asked.add(name)

        tried(found, 4, st.tuples(cases, st.booleans()), described)
    assert asked == set(INTERNAL if listener == "internal" else PUBLIC)
    still_answers(found)


def _aim(case: Any, found: Surface) -> None:
    """Something that is there, in place of what was drawn."""
    for name in case.path_parameters or {}:
        case.path_parameters[name] = found.names[name]
    for name in case.query or {}:
        if name in found.names:
            case.query[name] = found.names[name]
    if isinstance(case.body, dict):
        known = {"dataset": "clean_orders", **found.names, **found.fence}
        for name in case.body:
            if name in known and isinstance(case.body[name], str | int):
                case.body[name] = known[name]


@schemathesis.serializer("application/zip")
def _zip(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def _send(case: Any, found: Surface, who: str | None, internal: bool) -> tuple[Reply, requests.PreparedRequest]:
    sent = requests.Request(**case.as_transport_kwargs(base_url="http://qo")).prepare()
    told = {
        name: value if isinstance(value, str) else value.decode("latin-1")
        for name, value in sent.headers.items()
        if name.lower() not in ("content-type", "authorization", "x-qo-task-capability")
    }
    body = sent.body or b""
    content = body.encode() if isinstance(body, str) else bytes(body)
    kind: Any = sent.headers.get("content-type")
    method, target = sent.method or "GET", quote(sent.path_url, safe="/?&=%[]@:+,;!$'()*~")
    kind = kind.decode("latin-1") if isinstance(kind, bytes) else kind
    return found.ask(method, target, who, internal=internal, content=content, kind=kind, headers=told), sent


def _answer(reply: Reply, sent: requests.PreparedRequest) -> Response:
    headers = {name.lower(): [value] for name, value in reply.headers.items()}
    return Response(int(reply.status), headers, reply.body, sent, elapsed=0.0, verify=False)


def still_answers(found: Surface) -> None:
    """Nothing that was taken keeps anybody from looking at what is there."""
    for internal, rights, app in ((False, PUBLIC, found.public), (True, INTERNAL, found.internal)):
        for path, methods in app.state.openapi()["paths"].items():
            if "get" not in methods:
                continue
            told = methods["get"]
            for name, value in found.names.items():
                path = path.replace(f"{{{name}}}", value)
            asked = [
                each["name"] for each in told.get("parameters", []) if each["in"] == "query" and each["required"]
            ]
            query = "&".join(f"{name}={quote(found.names[name])}" for name in asked)
            reply = found.ask("GET", f"{path}?{query}", WHO[rights[told["operationId"]]], internal=internal)
            assert reply.status in (200, 404, 409), (path, reply.text)
            promised(reply)


def test_any_text_in_any_parameter_is_answered(found: Surface) -> None:
    for internal, app, operation in operations(found):
        need = (INTERNAL if internal else PUBLIC)[_id(operation)]
        method, path = operation.method.upper(), operation.path
        names = [
            each["name"] for each in app.state.openapi()["paths"][path][operation.method].get("parameters", [])
        ]
        if not names:
            continue

        def any_text(
            drawn: dict[str, str],
            names: list[str] = names,
            who: str | None = WHO[need],
            internal: bool = internal,
            method: str = method,
            path: str = path,
        ) -> None:
            drawn = {name: text.encode("utf-8", "replace").decode() for name, text in drawn.items()}
            query: list[str] = []
            for name in names:
                value = quote(drawn.get(name, found.names.get(name, "1")), safe="")
                if f"{{{name}}}" in path:
                    path = path.replace(f"{{{name}}}", value)
                elif name in drawn:
                    query.append(f"{name}={value}")
            promised(found.ask(method, f"{path}?{'&'.join(query)}", who, internal=internal))

        tried(found, 10, st.fixed_dictionaries({}, optional={name: TEXTS for name in names}), any_text)
    still_answers(found)


@dataclass(frozen=True)
class Taken:
    """A route that takes JSON, and a body that it takes."""

    path: str
    who: str
    body: dict[str, Any]
    method: str = "POST"

    def sent(self, found: Surface, content: bytes, kind: str | None = "application/json") -> Reply:
        internal = self.who in ("worker", "task")
        return found.ask(self.method, self.path, self.who, internal=internal, content=content, kind=kind)


def _bodies(found: Surface) -> list[Taken]:
    event = {"partition_key": "2026-01-01", "attributes": {"location": "file:/x", "files": ["a"], "size": 1}}
    emission = {"idempotency_key": "fuzz", "events": [event], "edition_id": None}
    output = {"output": 0, "partition_key": "a", "start": 0, "end": 1, "rows": 1, "bytes": 1, "schema_hash": "s"}
    end = {"outcome": "retryable_error", "outputs": [output], "error": "e", "traceback": "t", "retry_after_s": 1}
    where = {"dataset": "clean_orders", "generation_id": None, "partition_key": None, "start": 0, "end": 1}
    names, fence = found.names, found.fence
    return [
        Taken("/v1/sources/shop/orders/events", "writer", emission),
        Taken("/v1/invalidations", "writer", {**where, "row_filter": {"a": 1}, "reason": "manual", "key": "k"}),
        Taken("/v1/dags/shop/pause", "writer", {"reason": "r"}),
        Taken("/v1/dags/shop/active", "writer", {"version": 1, "force": True}, "PUT"),
        Taken("/v1/dags/shop/versions", "writer", {"source": "name: shop"}),
        Taken("/v1/tokens", "admin", {"name": "n", "role": "reader", "ttl_s": 60}),
        Taken("/v1/bundles", "writer", {"sha256": "0" * 64, "bytes": 1}),
        Taken(f"/v1/tasks/{names['task_id']}/cancel", "writer", {"reason": "r"}),
        Taken("/internal/task-claim", "worker", {"task_id": "t", "worker_id": "w", "lease_id": "l"}),
        Taken(f"/internal/sources/{names['edition_id']}/memory", "worker", {"memory": {"a": 1}}, "PUT"),
        Taken("/internal/sources/shop/tick/events", "worker", {**emission, "events": [{"cursor": 1}]}),
        Taken("/v1/task/heartbeat", "task", {**fence, "progress": {"a": 1}}),
        Taken("/v1/task/events", "task", {**fence, "events": [event]}),
        Taken("/v1/task/credentials", "task", fence),
        Taken("/v1/task/complete", "task", {**fence, **end}),
    ]


def _places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where there is something that could be something else."""
    members: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        members = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    return [before, *(place for name, each in members for place in _places(each, (*before, name)))]


def _put(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[place[0]] = _put(value[place[0]], place[1:], new)
    return copied


def test_anything_in_any_field_is_answered(found: Surface) -> None:
    plain = TEXTS | NUMBERS | st.none() | st.booleans() | st.just([]) | st.just({}) | DEEP.map(_Raw)
    anything = plain | st.tuples(TEXTS, plain).map(lambda pair: {pair[0]: pair[1]})
    for each in _bodies(found):

        def anything_there(drawn: tuple[tuple[Any, ...], Any], each: Taken = each) -> None:
            promised(each.sent(found, _json(_put(each.body, *drawn))))

        tried(found, 20, st.tuples(st.sampled_from(_places(each.body)), anything), anything_there)
    still_answers(found)


class _Raw(str):
    """JSON that stands as it is, for what no encoder would write."""


def _json(value: Any) -> bytes:
    raws: list[str] = []

    def kept(each: Any) -> Any:
        if isinstance(each, _Raw):
            raws.append(str(each))
            return f"raw{len(raws) - 1}raw"
        if isinstance(each, dict):
            return {name: kept(member) for name, member in each.items()}
        return [kept(member) for member in each] if isinstance(each, list) else each

    text = json.dumps(kept(value))
    for at, raw in enumerate(raws):
        text = text.replace(f'"raw{at}raw"', raw)
    return text.encode()


KINDS = [
    None,
    "",
    "application/json",
    "text/plain",
    "application/json; charset=utf-16",
    "multipart/form-data",
    "\xff/é",
]
KINDS += [
    "application/x-www-form-urlencoded",
    "application/yaml",
    "application/zip",
    "x" * 5000,
    "application/cloudevents+json",
]


def test_any_bytes_of_any_kind_are_answered(found: Surface) -> None:
    broken = [
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{",
        b'{"a":1,"a":2}',
        b"\0",
        b"[" * 100_000,
        b"9" * 5000,
        b'"\\ud800"',
    ]
    for each in _bodies(found):

        def any_bytes(drawn: tuple[bytes, str | None], each: Taken = each) -> None:
            promised(each.sent(found, *drawn))

        contents = st.sampled_from([*broken, _json(each.body)]) | st.binary(max_size=60)
        tried(found, 10, st.tuples(contents, st.sampled_from(KINDS)), any_bytes)
    still_answers(found)


def test_any_method_on_any_path_is_answered(found: Surface) -> None:
    for internal, app in ((False, found.public), (True, found.internal)):
        for path in app.state.openapi()["paths"]:
            for method in (
                "GET",
                "HEAD",
                "POST",
                "PUT",
                "PATCH",
                "DELETE",
                "OPTIONS",
                "TRACE",
                "CONNECT",
                "\x1b[2J",
            ):
                reply = found.ask(method, path, internal=internal)
                assert reply.status in (200, 401, 404, 405, 406), (method, path, reply.text)
                promised(reply)


@pytest.mark.parametrize("length", [b"9" * 5000, b"-1", b"1e9", "٣".encode(), b""])
def test_a_length_that_cannot_be_is_answered(found: Surface, length: bytes) -> None:
    reply = found.ask("POST", "/v1/tokens", "admin", headers={"Content-Length": length.decode("latin-1")})
    assert reply.status in (413, 422)
    promised(reply)


def test_what_a_task_says_to_people_is_kept_as_well_as_can_be(found: Surface) -> None:
    said = {"error": "a\0b\ud800", "traceback": "\0", "result": {"\ud800": float("nan")}, "progress": 10**40}
    body = {**found.fence, "outcome": "fatal_error", **said}
    reply = found.ask("POST", "/v1/task/complete", "task", internal=True, send=body)
    assert reply.json()["status"] == "failed", reply.text
    shown = found.ask("GET", f"/v1/tasks/{found.claimed.work.task_id}", "reader").json()
    assert shown["last_error"] == "a\ufffdb\ufffd"


def test_numbers_at_the_limit_are_kept_and_add_up(found: Surface) -> None:
    most = 2**63 - 1
    for key in ("a", "b"):
        event = {
            "partition_key": key,
            "start": 0,
            "end": most,
            "attributes": {"location": "file:/x", "size": most},
        }
        body = {"idempotency_key": key, "events": [event]}
        assert found.ask("POST", "/v1/sources/shop/orders/events", "writer", send=body).status == 200
    for key in ("c", "d"):
        body = {"idempotency_key": key, "events": [{"cursor": most}]}
        assert found.ask("POST", "/v1/sources/shop/tick/events", "writer", send=body).status == 200
    still_answers(found)
