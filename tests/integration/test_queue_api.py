"""The HTTP API of the queue does what the queue does, on every store."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from qo.ambient import SYSTEM
from qo.asgi import protocol
from qo.core.task import Status, Task
from qo.errors import Unavailable
from qo.queue import list_page
from qo.queue.options import NewTask, Options
from qo.queue.queue import Queue
from qo.queue_api import queue_server, token_file
from qo.queue_api.api_rights import RIGHTS, Role
from qo.queue_api.api_routes import OPERATIONS, describe
from qo.queue_api.guard import RefusalLog
from qo.queue_api.task_answer import HIDDEN
from qo.store.memory import MemoryStore
from support.queue_api.listeners import ServedQueue, served
from support.stores.queues import claimed, until

MISSING = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def api(queue: Queue, tmp_path: Path) -> AsyncIterator[ServedQueue]:
    async with served(queue, tmp_path, rate_per_s=0) as running:
        yield running


def body_of(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


async def complete(queue: Queue, task_id: str, output: Any = None) -> Task:
    return await queue.complete(await claimed(queue, task_id), output)


async def test_a_task_is_submitted_and_shown_as_the_queue_has_it(api: ServedQueue, queue: Queue) -> None:
    answer = await api.post(
        "/v1/tasks", "producer", json={"type": "echo", "input": {"a": [1]}, "retries": 7, "timeout": "1m"}
    )
    shown = body_of(answer, 201)
    task = await queue.get(shown["id"])
    assert (task.task_type, task.input, task.max_retries, task.timeout_seconds) == ("echo", {"a": [1]}, 7, 60.0)
    assert answer.headers["location"] == f"/v1/tasks/{task.id}"
    answer = await api.get(answer.headers["location"], "viewer")
    assert body_of(answer) == shown
    assert not HIDDEN & set(shown)
    assert set(shown) | HIDDEN == {field.name for field in msgspec.structs.fields(Task)}


async def test_an_unchanged_task_is_not_sent_again(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    first = await api.get(f"/v1/tasks/{task.id}")
    again = await api.get(f"/v1/tasks/{task.id}", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    await queue.cancel(task.id)
    later = await api.get(f"/v1/tasks/{task.id}", headers={"If-None-Match": first.headers["etag"]})
    assert body_of(later)["status"] == "cancelled"


async def test_a_key_in_the_header_or_in_the_body_names_one_task(api: ServedQueue) -> None:
    body = {"type": "echo", "input": 1}
    first = body_of(await api.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"}), 201)
    again = body_of(await api.post("/v1/tasks", json=body, headers={"Idempotency-Key": "k"}), 200)
    beside = body_of(await api.post("/v1/tasks", json={**body, "key": "k"}), 200)
    assert first["id"] == again["id"] == beside["id"]
    other = await api.post("/v1/tasks", json={**body, "input": 2, "key": "k"})
    assert body_of(other, 409)["code"] == "idempotency_conflict"
    both = await api.post("/v1/tasks", json={**body, "key": "k"}, headers={"Idempotency-Key": "l"})
    assert body_of(both, 400)["code"] == "usage"


async def test_of_many_tasks_none_is_written_if_one_is_wrong(api: ServedQueue, queue: Queue) -> None:
    good, bad = {"type": "echo"}, {"type": "echo", "retrys": 1}
    answer = body_of(await api.post("/v1/tasks/batch", json={"tasks": [good, bad, {"type": ""}]}), 400)
    assert len(answer["detail"]) == 2 or len(answer["detail"]) == 1
    assert "tasks[1]" in answer["detail"][0]
    assert "'retries'" in answer["detail"][0]
    late = {"type": "echo", "delay": "1h", "expires_in": "1m"}
    answer = body_of(await api.post("/v1/tasks/batch", json={"tasks": [good, late]}), 400)
    assert "tasks[1]" in answer["detail"][0]
    assert await queue.list() == []


async def test_each_of_many_tasks_has_its_own_result(api: ServedQueue) -> None:
    body_of(await api.post("/v1/tasks", json={"type": "echo", "input": "other", "key": "taken"}), 201)
    tasks = [
        {"type": "echo", "input": 1},
        {"type": "echo", "input": 2, "key": "taken"},
        {"type": "echo", "key": "n"},
    ]
    results = body_of(await api.post("/v1/tasks/batch", "producer", json={"tasks": tasks}))["results"]
    assert [each.get("created") for each in results] == [True, None, True]
    assert (results[1]["error"]["status"], results[1]["error"]["code"]) == (409, "idempotency_conflict")
    assert results[0]["task"]["input"] == 1


async def test_a_repeated_request_for_many_tasks_creates_none_again(api: ServedQueue, queue: Queue) -> None:
    body, key = {"tasks": [{"type": "echo", "input": n} for n in range(5)]}, {"Idempotency-Key": "batch"}
    first = body_of(await api.post("/v1/tasks/batch", json=body, headers=key))["results"]
    again = body_of(await api.post("/v1/tasks/batch", json=body, headers=key))["results"]
    assert [each["task"]["id"] for each in first] == [each["task"]["id"] for each in again]
    assert [each["created"] for each in again] == [False] * 5
    assert len(await queue.list()) == 5


async def test_pages_of_a_list_together_have_every_task_once(api: ServedQueue, queue: Queue) -> None:
    made = {(await queue.submit("echo" if n % 3 else "other", n)).id for n in range(11)}
    listed: list[str] = []
    after: str | None = None
    while True:
        query = {"limit": 4} | ({} if after is None else {"after": after})
        page = body_of(await api.get("/v1/tasks", "viewer", params=query))
        listed += [task["id"] for task in page["tasks"]]
        if (after := page["next"]) is None:
            break
        assert len(page["tasks"]) == 4
    assert sorted(listed) == sorted(made)
    typed = body_of(await api.get("/v1/tasks", params={"type": "other", "status": "pending"}))
    assert len(typed["tasks"]) == 4
    assert body_of(await api.get("/v1/tasks", params={"after": "!"}), 400)["code"] == "usage"


async def test_what_is_read_for_a_page_is_bounded_and_pages_go_on(
    api: ServedQueue, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(12):
        await queue.submit("rare" if n == 0 else "common", n)
    monkeypatch.setattr(list_page, "READS_MAX", 5)
    listed: list[int] = []
    pages, after = 0, None
    while pages == 0 or after is not None:
        query = {"type": "rare"} | ({} if after is None else {"after": after})
        page = body_of(await api.get("/v1/tasks", params=query))
        listed += [task["input"] for task in page["tasks"]]
        pages, after = pages + 1, page["next"]
        assert page["complete"]
    assert (listed, pages) == ([0], 3)


async def test_operators_cancel_replay_archive_and_see_the_history(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    path = f"/v1/tasks/{task.id}"
    cancelled = body_of(await api.post(f"{path}/cancel", json={"reason": "wrong"}))
    assert (cancelled["status"], cancelled["cancelled_by"], cancelled["cancel_reason"]) == (
        "cancelled",
        "a-operator",
        "wrong",
    )
    assert body_of(await api.post(f"{path}/replay"))["status"] == "pending"
    assert body_of(await api.post(f"{path}/archive"), 409)["code"] == "refused"
    await complete(queue, task.id, {"n": 1})
    assert body_of(await api.post(f"{path}/archive"))["status"] == "archived"
    assert body_of(await api.post(f"{path}/unarchive"))["status"] == "completed"
    states = body_of(await api.get(f"{path}/history", "viewer"))["states"]
    assert [state["status"] for state in states] == [
        "pending",
        "cancelled",
        "pending",
        "running",
        "completed",
        "archived",
        "completed",
    ]


async def test_large_values_are_shown_whole_where_one_task_is_shown(api: ServedQueue, queue: Queue) -> None:
    large = "x" * 300_000
    task = await queue.submit("echo", large)
    await complete(queue, task.id, large)
    shown = body_of(await api.get(f"/v1/tasks/{task.id}"))
    assert shown["input"] == shown["output"] == large
    listed = body_of(await api.get("/v1/tasks"))["tasks"][0]
    assert "input" not in listed
    assert "output" not in listed


async def test_a_wait_ends_with_the_task_or_with_its_timeout(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    early = await api.get(f"/v1/tasks/{task.id}/wait", params={"timeout": "0.05"})
    assert body_of(early, 202)["status"] == "pending"
    waiting = [asyncio.create_task(api.get(f"/v1/tasks/{task.id}/wait", "producer")) for _ in range(20)]
    await until(lambda: _is(api.api.watcher.waiting == 20))
    await complete(queue, task.id, 42)
    answers = [body_of(each) for each in await asyncio.gather(*waiting)]
    assert {(each["status"], each["output"]) for each in answers} == {("completed", 42)}
    assert api.api.watcher.waiting == 0


async def _is(value: bool) -> bool:
    return value


async def test_many_who_wait_for_one_task_cost_one_read_each_time(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    watcher = api.api.watcher
    waits = [watcher.next_state(task.id, after=task.token, timeout_s=0.5) for _ in range(50)]
    assert await asyncio.gather(*waits) == [None] * 50
    assert 0 < watcher.reads <= 5


async def test_the_reads_of_all_who_wait_are_bounded(queue: Queue, tmp_path: Path) -> None:
    async with served(queue, tmp_path, wait_reads_per_s=20.0) as api:
        tasks = [await queue.submit("echo") for _ in range(40)]
        watcher = api.api.watcher
        began = asyncio.get_running_loop().time()
        waits = [watcher.next_state(task.id, after=task.token, timeout_s=1.0) for task in tasks]
        await asyncio.gather(*waits)
        elapsed = asyncio.get_running_loop().time() - began
        assert watcher.reads <= 20 * elapsed + 16


async def test_what_this_process_changes_is_told_at_once(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    waiting = asyncio.create_task(api.get(f"/v1/tasks/{task.id}/wait"))
    await until(lambda: _is(api.api.watcher.waiting == 1))
    await api.post(f"/v1/tasks/{task.id}/cancel")
    assert body_of(await waiting)["status"] == "cancelled"


async def events(api: ServedQueue, path: str, **headers: str) -> AsyncIterator[tuple[str, Any]]:
    """The id and the task of each event."""
    sent = {**api.headers("viewer"), **headers}
    async with api.http.stream("GET", api.url + path, headers=sent, timeout=30) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        event_id = ""
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                event_id = line.removeprefix("id: ")
            elif line.startswith("data: "):
                yield event_id, json.loads(line.removeprefix("data: "))


async def test_events_show_each_new_state_until_the_task_has_ended(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    seen: list[str] = []
    async for _, state in events(api, f"/v1/tasks/{task.id}/events"):
        seen.append(state["status"])
        if seen == ["pending"]:
            claim = await claimed(queue, task.id)
        elif seen[-1] == "running" and len(seen) == 2:
            await queue.complete(claim, "done")
    assert seen == ["pending", "running", "completed"]
    assert state["output"] == "done"


async def test_a_stream_that_broke_goes_on_where_it_was(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    path = f"/v1/tasks/{task.id}/events"
    stream = events(api, path)
    last, state = await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert state["status"] == "pending"
    await complete(queue, task.id)
    again = [(event_id, state["status"]) async for event_id, state in events(api, path, **{"Last-Event-ID": last})]
    assert [status for _, status in again] == ["completed"]
    over = await api.get(path, headers={"Last-Event-ID": again[-1][0]})
    assert (over.status_code, over.content) == (204, b"")


async def test_a_server_that_stops_ends_all_waits(api: ServedQueue, queue: Queue) -> None:
    task = await queue.submit("echo")
    waiting = asyncio.create_task(api.get(f"/v1/tasks/{task.id}/wait", params={"timeout": "60"}))
    await until(lambda: _is(api.api.watcher.waiting == 1))
    await api.api.watcher.stop()
    assert body_of(await waiting, 202)["status"] == "pending"


async def test_a_missing_task_is_not_found_by_any_call(api: ServedQueue) -> None:
    for operation in OPERATIONS.values():
        if "{task_id}" in operation.path:
            path = "/v1" + operation.path.replace("{task_id}", MISSING)
            answer = await api.ask(operation.method, path, "operator")
            assert body_of(answer, 404)["code"] == "not_found", operation.name


@pytest.mark.parametrize("operation", RIGHTS)
async def test_each_call_is_open_to_exactly_the_roles_of_the_table(api: ServedQueue, operation: str) -> None:
    declared = OPERATIONS.get(operation)
    method, path = ("GET", "/metrics") if declared is None else (declared.method, f"/v1{declared.path}")
    path = path.replace("{task_id}", MISSING)
    assert (await api.ask(method, path)).status_code == 401
    unknown = await api.ask(method, path, headers={"Authorization": "Bearer qos_guess"})
    assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
    for role in Role:
        answer = await api.ask(method, path, str(role))
        assert (answer.status_code == 403) == (role not in RIGHTS[operation]), (role, answer.text)


async def test_a_revoked_or_expired_token_is_refused_at_once(queue: Queue, tmp_path: Path) -> None:
    async with served(queue, tmp_path) as api:
        path = tmp_path / "secrets" / "tokens.json"
        now = await queue.store.now()
        past = now - timedelta(seconds=1)
        _, old = token_file.create(path, "old", Role.VIEWER, now=past, expires_at=past)
        entry, fresh = token_file.create(path, "fresh", Role.VIEWER, now=now, expires_at=now + timedelta(hours=1))
        api.tokens |= {"old": old, "fresh": fresh}
        assert "expired" in body_of(await api.get("/v1/tasks", "old"), 401)["error"]
        body_of(await api.get("/v1/tasks", "fresh"))
        token_file.revoke(path, entry.id)
        body_of(await api.get("/v1/tasks", "fresh"), 401)
        assert fresh not in path.read_text()


async def test_who_asks_too_often_is_told_when_to_come_back(queue: Queue, tmp_path: Path) -> None:
    async with served(queue, tmp_path, rate_per_s=1.0) as api:
        answers = [await api.get("/v1/tasks", "viewer") for _ in range(10)]
        refused = [each for each in answers if each.status_code == 429]
        assert refused
        assert body_of(refused[0], 429)["code"] == "rate_limited"
        assert int(refused[0].headers["retry-after"]) >= 1
        body_of(await api.get("/v1/tasks", "operator"))  # A rate is for each token.
        many = await api.post("/v1/tasks/batch", "producer", json={"tasks": [{"type": "echo"}] * 20})
        body_of(many)
        body_of(await api.post("/v1/tasks", "producer", json={"type": "echo"}), 429)
    async with served(queue, tmp_path / "second", rate_per_s=1.0) as api:
        await queue.submit_many([NewTask("echo", n) for n in range(80)])
        body_of(await api.get("/v1/tasks", "viewer"))
        body_of(await api.get("/v1/tasks", "viewer"), 429)  # The first one has read a hundred tasks.


async def test_more_who_wait_than_allowed_are_sent_away_and_the_others_served(
    queue: Queue, tmp_path: Path
) -> None:
    async with served(queue, tmp_path, waits_max=4) as api:
        task = await queue.submit("echo")
        path = f"/v1/tasks/{task.id}/wait"
        waits = [asyncio.create_task(api.get(path, "operator")) for _ in range(2)]
        await until(lambda: _is(api.api.watcher.waiting == 2))
        assert body_of(await api.get(path, "operator"), 429)["code"] == "rate_limited", "half are for others"
        waits += [asyncio.create_task(api.get(path, "viewer")) for _ in range(2)]
        await until(lambda: _is(api.api.watcher.waiting == 4))
        assert body_of(await api.get(path, "producer"), 503)["code"] == "busy"
        body_of(await api.get(f"/v1/tasks/{task.id}"))
        await complete(queue, task.id)
        await asyncio.gather(*waits)
        body_of(await api.get(path, "operator"))


async def test_the_events_of_a_task_that_is_removed_end_without_an_error_of_the_server(
    api: ServedQueue, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    task = await queue.submit("echo")
    path, headers = f"{api.url}/v1/tasks/{task.id}/events", api.headers("viewer")
    async with api.http.stream("GET", path, headers=headers, timeout=30) as stream:
        lines = stream.aiter_lines()
        async for line in lines:
            if line.startswith("data:"):
                break
        await queue.store.delete(queue.tasks.key(task.id))
        assert not [line async for line in lines if line.startswith("data:")]
    assert (await api.get(f"/v1/tasks/{task.id}/events")).status_code == 404
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.fast
async def test_a_client_that_does_not_take_its_answer_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, lose = asyncio.Event(), protocol.PatientProtocol.connection_lost

    def note(self: protocol.PatientProtocol, error: Exception | None) -> None:
        lose(self, error)
        lost.set()

    monkeypatch.setattr(protocol.PatientProtocol, "connection_lost", note)
    monkeypatch.setattr(protocol, "TAKING_S", 0.05)
    monkeypatch.setattr(protocol, "TAKEN_BYTES_PER_S_MIN", 10**9)
    queue = Queue(MemoryStore())
    task = await queue.submit("echo", "x" * 12_000_000)
    async with served(queue, tmp_path) as api:
        await _ask_without_reading(api, f"/v1/tasks/{task.id}", lost)


async def _ask_without_reading(api: ServedQueue, path: str, lost: asyncio.Event) -> None:
    host, _, port = api.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    token = api.headers("viewer")["Authorization"]
    writer.write(f"GET {path} HTTP/1.1\r\nHost: qo\r\nAuthorization: {token}\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.wait_for(lost.wait(), 20)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(12_000_000)
    writer.transport.abort()


async def test_anybody_may_ask_whether_the_server_is_ready_and_learns_no_more(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def fail(key: str, **how: Any) -> None:
        asked.append(key)
        await asyncio.sleep(0)
        raise Unavailable("no answer from https://private.example/bucket")

    async with served(queue, tmp_path) as api:
        monkeypatch.setattr(queue.store, "get", fail)
        monkeypatch.setattr(queue_server, "UNREADY_FOR_S", 3600.0)
        answers = await asyncio.gather(*(api.get("/readyz", None) for _ in range(10)))
        assert {each.status_code for each in answers} == {503}
        assert not any("private" in each.text for each in answers)
        assert len(asked) == 1


@pytest.mark.fast
def test_whoever_is_refused_again_and_again_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = RefusalLog(replace(SYSTEM, monotonic=lambda: now))
    for _ in range(1000):
        refusals.note("show_task was refused to 10.0.0.1")
    assert 1 <= len(caplog.messages) <= 20
    now = 60.0
    refusals.note("show_task was refused to 10.0.0.2")
    assert caplog.messages[-1].startswith("show_task was refused to 10.0.0.2 (9")


@pytest.mark.fast
def test_tokens_that_are_created_and_revoked_at_once_are_all_right(tmp_path: Path) -> None:
    path, now = tmp_path / "secrets" / "tokens.json", datetime.now(UTC)

    def create_two_and_revoke_one(n: int) -> tuple[str, str]:
        kept, _ = token_file.create(path, f"kept-{n}", Role.VIEWER, now=now, expires_at=None)
        revoked, _ = token_file.create(path, f"revoked-{n}", Role.VIEWER, now=now, expires_at=None)
        token_file.revoke(path, revoked.id)
        return kept.id, revoked.id

    with ThreadPoolExecutor(8) as threads:
        kept = {ids[0] for ids in threads.map(create_two_and_revoke_one, range(16))}
    assert {each.id for each in token_file.load(path)} == kept


async def test_a_body_that_is_too_large_is_not_read(queue: Queue, tmp_path: Path) -> None:
    async with served(queue, tmp_path, body_max_bytes=2_000) as api:
        answer = await api.post("/v1/tasks", json={"type": "echo", "input": "x" * 3_000})
        assert "serve.body_max_bytes" in body_of(answer, 413)["error"]


@pytest.mark.fast
async def test_no_path_redirects_to_the_host_that_the_caller_names_and_a_wrong_method_names_the_right_ones(
    tmp_path: Path,
) -> None:
    async with served(Queue(MemoryStore()), tmp_path) as api:
        for path in ("/v1/tasks/", f"/v1/tasks/{MISSING}/", f"/v1/tasks/{MISSING}/wait/", "/v1//tasks"):
            answer = await api.get(path, headers={"Host": "evil.example"})
            assert (answer.status_code, "location" in answer.headers) == (404, False), path
        answer = await api.ask("DELETE", "/v1/tasks", "operator")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")


async def test_health_needs_no_token_and_metrics_count(api: ServedQueue) -> None:
    assert body_of(await api.get("/livez", None)) == body_of(await api.get("/readyz", None)) == {"status": "ok"}
    await api.get("/v1/tasks")
    text = (await api.get("/metrics", "viewer")).text
    assert 'qo_serve_requests_total{operation="queue_list_tasks",status="200"}' in text
    assert body_of(await api.get("/openapi.json", None)) == describe()
    assert body_of(await api.get("/v1/nothing"), 404)["code"] == "not_found"


async def test_a_task_that_workers_end_is_seen_with_its_output(api: ServedQueue, queue: Queue) -> None:
    made = body_of(await api.post("/v1/tasks", json={"type": "echo", "input": "hi"}), 201)
    task = await complete(queue, made["id"], "hi")
    assert task.status is Status.COMPLETED
    assert body_of(await api.get(f"/v1/tasks/{task.id}/wait"))["output"] == "hi"


async def test_a_trace_of_the_caller_is_kept_with_the_task(api: ServedQueue, queue: Queue) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    made = body_of(await api.post("/v1/tasks", json={"type": "echo"}, headers={"traceparent": trace}), 201)
    assert (await queue.get(made["id"])).traceparent == trace
    assert Options().traceparent is None
