"""The dispatcher over HTTP: what it answers, to whom, and what it says when it does not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qo.asgi import protocol, request_limits
from qo.asgi.protocol import PatientProtocol
from qo.dispatcher.state.database import State
from qo.pipeline.rendering import to_yaml
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipelines import dag, deployed, job, source
from support.dispatcher.states import clock, state  # noqa: F401

SHOP = dag("shop", source("orders"), job("clean", reads="orders"), publish={"clean_orders": "clean"})


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:  # noqa: F811
    async with served(state, tmp_path) as running:
        yield running


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The body of an error, which always has the same form."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error", "code", "detail"}
    assert body["code"] == code
    assert body["error"]
    return body


async def test_a_pipeline_is_deployed_shown_and_run_over_http(dispatcher: Served) -> None:
    source_text = to_yaml(SHOP)
    yaml = {"content-type": "application/yaml"}
    made = await dispatcher.post("/v1/dags/shop/versions", "writer", content=source_text, headers=yaml)
    assert made.status_code == 200, made.text
    assert (made.json()["version"], made.json()["status"]) == (1, "active")
    again = await dispatcher.post("/v1/dags/shop/versions", "writer", json={"source": source_text})
    assert not again.json()["changed"]
    shown = (await dispatcher.get("/v1/dags/shop", "reader")).json()
    assert [each["name"] for each in shown["jobs"]] == ["clean", "orders"]
    assert shown["source"] == source_text
    event = {"partition_key": "2026-01-01"}
    said = {"idempotency_key": "k", "events": [event]}
    emitted = await dispatcher.post("/v1/sources/shop/orders/events", "writer", json=said)
    assert emitted.status_code == 200, emitted.text
    assert emitted.json()["accepted"] == 1
    listed = (await dispatcher.get("/v1/datasets/shop.orders/events", "reader")).json()
    assert listed["events"][0]["partition_key"] == "2026-01-01"
    assert (await dispatcher.get("/v1/why?target=clean_orders@2026-01-01", "reader")).json()["steps"]
    assert dispatcher.nudges


async def test_a_dry_run_changes_nothing(dispatcher: Served) -> None:
    body = {"source": to_yaml(SHOP)}
    told = await dispatcher.post("/v1/dags/shop/versions?dry_run=true", "writer", json=body)
    assert told.json()["added"] == ["clean", "orders"]
    problem(await dispatcher.get("/v1/dags/shop", "reader"), 404, "not_found")


async def test_a_body_that_is_not_json_is_told_where_it_breaks(dispatcher: Served) -> None:
    headers = {"content-type": "application/json"}
    answer = await dispatcher.post("/v1/tokens", "admin", content=b'{"name": ', headers=headers)
    assert "character" in problem(answer, 400, "usage")["error"]


async def test_a_wrong_file_is_told_everything_that_is_wrong_with_it(dispatcher: Served) -> None:
    answer = await dispatcher.post("/v1/dags/shop/versions", "writer", json={"source": "name: shop\njobs: 3\n"})
    body = problem(answer, 400, "usage")
    assert body["detail"]
    assert body["detail"][0].startswith("shop.yaml:2:")


async def test_a_file_sent_to_another_name_is_refused(dispatcher: Served) -> None:
    answer = await dispatcher.post("/v1/dags/store/versions", "writer", json={"source": to_yaml(SHOP)})
    assert "/v1/dags/shop" in problem(answer, 400, "usage")["error"]


async def test_fields_of_the_wrong_form_are_each_named(dispatcher: Served) -> None:
    answer = await dispatcher.post("/v1/tokens", "admin", json={"name": "", "role": "king", "more": 1})
    detail = problem(answer, 422, "invalid")["detail"]
    assert [each.partition(":")[0] for each in detail] == ["name", "role", "more"]


async def test_who_is_unknown_hears_which_token_to_present(dispatcher: Served) -> None:
    answer = await dispatcher.get("/v1/dags")
    assert "qo token create" in problem(answer, 401, "unauthenticated")["error"]
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_who_may_not_hears_which_role_may(dispatcher: Served) -> None:
    answer = await dispatcher.get("/v1/tokens", "writer")
    assert "admin" in problem(answer, 403, "forbidden")["error"]


async def test_rights_are_asked_before_the_body_is_read(dispatcher: Served) -> None:
    headers = {"content-type": "application/json"}
    broken = await dispatcher.post("/v1/tokens", content=b"{", headers=headers)
    problem(broken, 401, "unauthenticated")


@pytest.mark.parametrize("path", ["/v1/dags/nobody", "/v1/tasks/nobody", "/v1/datasets/nobody", "/v2", "/"])
async def test_what_is_not_there_is_not_found(dispatcher: Served, path: str) -> None:
    problem(await dispatcher.get(path, "reader"), 404, "not_found")


async def test_another_method_is_told_which_one_to_use(dispatcher: Served) -> None:
    answer = await dispatcher.ask("DELETE", "/v1/dags", "admin")
    assert "GET" in problem(answer, 405, "method_not_allowed")["error"]


async def test_a_move_that_the_state_does_not_allow_is_a_conflict(dispatcher: Served) -> None:
    deployed(dispatcher.context.state, SHOP)
    said = {"idempotency_key": "k", "events": [{"partition_key": "a"}]}
    first = await dispatcher.post("/v1/sources/shop/orders/events", "writer", json=said)
    task = first.json()["task_ids"][0]
    problem(await dispatcher.post(f"/v1/tasks/{task}/replay", "writer"), 409, "refused")
    said["events"] = [{"partition_key": "b"}]
    other = await dispatcher.post("/v1/sources/shop/orders/events", "writer", json=said)
    problem(other, 409, "idempotency_conflict")


async def test_a_body_too_large_is_refused_whether_announced_or_not(dispatcher: Served) -> None:
    most = dispatcher.context.settings.dispatcher.body_max_bytes
    announced = await dispatcher.post("/v1/tokens", "admin", content=b"x" * (most + 1))
    assert "body_max_bytes" in problem(announced, 413, "too_large")["error"]

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(most // 65_536 + 2):
            yield b"x" * 65_536

    headers = {"content-type": "application/json"}
    for path in ("/v1/tokens", "/v1/dags/shop/versions"):
        chunked = await dispatcher.post(path, "admin", content=pieces(), headers=headers)
        assert "content-length" not in chunked.request.headers
        problem(chunked, 413, "too_large")


async def test_what_nobody_foresaw_is_told_by_its_number_only(
    dispatcher: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr("qo.dispatcher.tasks.operator_actions.list_tasks", broken)
    answer = await dispatcher.get("/v1/tasks", "reader")
    body = problem(answer, 500, "internal")
    assert "swordfish" not in answer.text
    incident = body["error"].split("incident ")[1].split()[0]
    assert any(incident in record.getMessage() for record in caplog.records)


async def test_without_its_database_it_is_unavailable_and_says_when_to_ask_again(
    dispatcher: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlalchemy as sa

    with dispatcher.context.state.write() as tx:
        tx.execute(sa.text("DROP TABLE topology"))
    answer = await dispatcher.get("/readyz")
    assert "qo db upgrade" in problem(answer, 503, "unavailable")["error"]
    assert answer.headers["retry-after"] == "1"
    assert (await dispatcher.get("/livez")).json() == {"status": "ok"}


async def test_too_many_at_a_time_are_asked_to_come_back(state: State, tmp_path: Path) -> None:  # noqa: F811
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await leave.wait()

    app = request_limits.Limits(slow, body_bytes_max=1000, requests_max=1)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://qo") as http:
        first = asyncio.create_task(http.get("/v1/dags"))
        await entered.wait()
        busy = await http.get("/v1/dags")
        problem(busy, 503, "busy")
        assert busy.headers["retry-after"] == "1"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_the_listeners_share_no_routes_but_health(dispatcher: Served) -> None:
    def paths(document: Any) -> set[str]:
        return {path for path in document["paths"] if path not in ("/livez", "/readyz", "/metrics")}

    outside = (await dispatcher.get("/openapi.json")).json()
    inside = (await dispatcher.get("/openapi.json", internal=True)).json()
    assert not paths(outside) & paths(inside)
    for path in paths(inside):
        assert path.startswith(("/internal/", "/v1/task/"))
        for method in ("GET", "POST", "PUT"):
            problem(await dispatcher.ask(method, path, "admin"), 404, "not_found")
    for path in paths(outside):
        assert not path.startswith(("/internal", "/v1/task/"))
        problem(await dispatcher.get(path, "worker", internal=True), 404, "not_found")


async def test_an_answer_waits_for_no_acknowledgement_of_its_first_half(
    state: State,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once: list[int] = []
    begin = PatientProtocol.connection_made

    def noted(connection: PatientProtocol, transport: asyncio.Transport) -> None:
        begin(connection, transport)
        at_once.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(PatientProtocol, "connection_made", noted)
    async with served(state, tmp_path) as running:
        for internal in (False, True):
            assert (await running.get("/livez", internal=internal)).status_code == 200
    assert at_once == [1, 1]


async def test_a_client_that_does_not_say_what_it_wants_is_given_up(
    state: State,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "HEADERS_S", 0.2)
    async with served(state, tmp_path) as running:
        host, port = running.addresses.public.removeprefix("http://").split(":")
        for said in (b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()


async def test_the_metrics_are_for_readers_and_for_the_inside(dispatcher: Served) -> None:
    await dispatcher.get("/v1/dags")
    text = (await dispatcher.get("/metrics", internal=True)).text
    assert 'qo_dispatcher_requests_total{operation="list_dags",status="401"} 1.0' in text
    assert "qo_dispatcher_events_pending 0.0" in text
    assert (await dispatcher.get("/metrics")).status_code == 401
    assert (await dispatcher.get("/metrics", "reader")).status_code == 200


async def test_the_openapi_files_are_what_is_served() -> None:
    from qo.dispatcher.http.openapi import documents

    directory = Path(__file__).parents[2] / "docs/reference/openapi"
    for name, text in documents().items():
        assert (directory / name).read_text() == text, "run python -m qo.dispatcher.http.openapi"


async def test_every_operation_is_described(dispatcher: Served) -> None:
    from qo.dispatcher.http.rights import INTERNAL, PUBLIC

    for rights, internal in ((PUBLIC, False), (INTERNAL, True)):
        document = json.loads((await dispatcher.get("/openapi.json", internal=internal)).content)
        operations = [each for path in document["paths"].values() for each in path.values()]
        assert {each["operationId"]: each["x-qo-needs"] for each in operations} == {
            name: str(need) for name, need in rights.items()
        }
        for each in operations:
            assert each["summary"]
            assert {"503"} <= set(each["responses"])
