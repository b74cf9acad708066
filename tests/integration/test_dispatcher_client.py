"""The clients of a dispatcher: a whole attempt, patience while it is away, and its errors as our own."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from qo import errors
from qo.api import transport
from qo.api.contract.credential import CredentialsRequest
from qo.api.contract.source import EmitRequest
from qo.api.contract.task import (
    Claimed,
    CompleteRequest,
    EventBody,
    EventsRequest,
    HeartbeatRequest,
    KeptRequest,
    NotClaimed,
    Outcome,
    OutputBody,
)
from qo.api.internal_client import DispatcherClient
from qo.api.transport import HttpxTransport, Response, RetryingClient, error_from_response
from qo.asgi.error_responses import KINDS
from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.engine.loops import invalidation, release, router
from qo.dispatcher.engine.release_limits import limits
from qo.dispatcher.http.embedded_client import open_embedded_client
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.pipeline.rendering import to_yaml
from support.dispatcher.listeners import Served, context_of, listening, served
from support.dispatcher.pipelines import dag, deployed, job, source
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.servers.ports import free_ports

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
SEEN = EmitRequest(idempotency_key="k", events=[EventBody(partition_key="a")])


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:  # noqa: F811
    deployed(state, SHOP)
    async with served(state, tmp_path) as running:
        yield running


async def task_of(dispatcher: Served, worker: DispatcherClient) -> str:
    await worker.emit("shop", "orders", SEEN)
    await asyncio.to_thread(router.tick, dispatcher.context.state)
    await asyncio.to_thread(release.tick, dispatcher.context.state, limits(DispatcherSettings()))
    with dispatcher.context.state.read() as tx:
        row = tx.one(schema.tasks.select().where(schema.tasks.c.job == "clean"))
    assert row is not None
    return row["id"]


async def test_an_attempt_from_its_claim_to_its_commit(dispatcher: Served) -> None:
    async with dispatcher.worker() as worker:
        task_id = await task_of(dispatcher, worker)
        claimed = await worker.claim(task_id, "w1")
        assert isinstance(claimed, Claimed)
        assert claimed.work.inputs[0].pieces[0].partition_key == "a"
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        token = claimed.capability_token
        beat = await worker.heartbeat(token, HeartbeatRequest(**fence, progress={"rows": 1}))
        assert beat.lease_expires_at >= claimed.lease_expires_at
        assert beat.capability_token is None
        assert (await worker.fetch(task_id)).status == "running"
        page = await worker.inputs(token, 0)
        assert [each.partition_key for each in page.pieces] == ["a"]
        place = claimed.work.outputs[0].prefix
        done = CompleteRequest(
            **fence,
            outcome=Outcome.SUCCESS,
            outputs=[OutputBody(output=0, location=place, files=["part-0.parquet"], rows=3, bytes=10)],
        )
        assert (await worker.complete(token, done)).status == "completed"
        assert (await worker.complete(token, done)).repeated
        again = await worker.claim(task_id, "w2")
        assert again == NotClaimed(reason="completed")
    async with dispatcher.user("reader") as user:
        found = await user.get("/v1/datasets/shop.clean/partitions")
    assert [(each["partition_key"], each["rows"]) for each in found["partitions"]] == [("a", 3)]


async def test_an_attempt_asks_for_what_was_committed_before_and_a_person_removes_it(dispatcher: Served) -> None:
    async with dispatcher.worker() as worker:
        task_id = await task_of(dispatcher, worker)
        first = await worker.claim(task_id, "w1")
        assert isinstance(first, Claimed)
        fence = {"task_id": task_id, "attempt": first.attempt, "lease_id": first.lease_id}
        with pytest.raises(errors.NotFound, match="never committed before"):
            await worker.fetch_kept_output(first.capability_token, KeptRequest(**fence))
        made = OutputBody(output=0, location=first.work.outputs[0].prefix, files=["part-0.parquet"], rows=3)
        done = CompleteRequest(**fence, outcome=Outcome.SUCCESS, outputs=[made])
        await worker.complete(first.capability_token, done)
        await worker.emit("shop", "orders", SEEN.model_copy(update={"idempotency_key": "again"}))
        state_ = dispatcher.context.state
        await asyncio.to_thread(invalidation.tick, state_)
        await asyncio.to_thread(release.tick, state_, limits(DispatcherSettings()))
        with state_.read() as tx:
            waiting = tx.one(schema.tasks.select().where(schema.tasks.c.status == "pending"))
        assert waiting is not None
        second = await worker.claim(waiting["id"], "w1")
        assert isinstance(second, Claimed)
        fence = {"task_id": waiting["id"], "attempt": second.attempt, "lease_id": second.lease_id}
        kept = await worker.fetch_kept_output(second.capability_token, KeptRequest(**fence))
        assert (kept.task_id, [each.rows for each in kept.pieces]) == (task_id, [3])
        async with dispatcher.user("writer") as user:
            with pytest.raises(errors.Refused, match="would bring it back"):
                await user.post("/v1/datasets/shop.clean/removals", {"partitions": ["a"]})
            await worker.complete(
                second.capability_token, CompleteRequest(**fence, outcome=Outcome.FATAL, error="no")
            )
            answer = await user.post(
                "/v1/datasets/shop.clean/removals", {"partitions": ["a"], "reason": "a trial"}
            )
            assert (answer["removed"], answer["already"]) == (["a"], [])
            assert (await user.get("/v1/datasets/shop.clean/partitions"))["partitions"] == []


async def test_a_claim_whose_answer_was_lost_can_be_repeated(dispatcher: Served) -> None:
    async with dispatcher.worker() as worker:
        task_id = await task_of(dispatcher, worker)
        first = await worker.claim(task_id, "w", lease_id="l-1")
        second = await worker.claim(task_id, "w", lease_id="l-1")
        other = await worker.claim(task_id, "w", lease_id="l-2")
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert first.attempt == second.attempt
    assert other == NotClaimed(reason="running")


async def test_a_heartbeat_brings_a_fresh_capability_before_the_old_one_ends(
    dispatcher: Served,
    clock: Clock,  # noqa: F811
) -> None:
    async with dispatcher.worker() as worker:
        task_id = await task_of(dispatcher, worker)
        claimed = await worker.claim(task_id, "w")
        assert isinstance(claimed, Claimed)
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        token, fresh = claimed.capability_token, None
        while fresh is None:
            clock.advance(45)  # Of a lease of 60 seconds.
            fresh = (await worker.heartbeat(token, HeartbeatRequest(**fence))).capability_token
        clock.advance(45)
        assert (await worker.heartbeat(fresh, HeartbeatRequest(**fence))).lease_expires_at


async def test_sources_are_listed_and_their_memory_kept(dispatcher: Served) -> None:
    async with dispatcher.worker() as worker:
        (found,) = (await worker.sources()).sources
        await worker.remember(found.edition_id, {"seen": 3})
        (again,) = (await worker.sources()).sources
        assert again.memory == {"seen": 3}
        assert (await worker.emit("shop", "orders", SEEN)).accepted == 1
        assert (await worker.emit("shop", "orders", SEEN)).repeated


async def test_errors_come_back_as_the_classes_they_were(dispatcher: Served) -> None:
    async with dispatcher.worker() as worker:
        task_id = await task_of(dispatcher, worker)
        claimed = await worker.claim(task_id, "w")
        assert isinstance(claimed, Claimed)
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        token = claimed.capability_token
        with pytest.raises(errors.Unauthenticated):
            await worker.heartbeat("garbage", HeartbeatRequest(**fence))
        with pytest.raises(errors.Forbidden):
            await worker.heartbeat(token, HeartbeatRequest(**{**fence, "attempt": 7}))
        with pytest.raises(errors.NotFound):
            await worker.fetch("nobody")
        with pytest.raises(errors.Refused, match="QO_CREDENTIALS_ROLE_ARN"):
            await worker.credentials(token, CredentialsRequest(**fence))
        with pytest.raises(errors.UsageError, match="output"):
            await worker.events(token, EventsRequest(**fence, events=[EventBody(output=9, partition_key="a")]))
        other = EmitRequest(idempotency_key="k", events=[EventBody(partition_key="b")])
        with pytest.raises(errors.IdempotencyConflict):
            await worker.emit("shop", "orders", other)
        released = CompleteRequest(**fence, outcome=Outcome.RELEASED)
        await worker.complete(token, released)
        with pytest.raises(errors.LeaseLost):
            await worker.heartbeat(token, HeartbeatRequest(**fence))
    async with DispatcherClient(dispatcher.addresses.internal, "not-the-token") as stranger:
        with pytest.raises(errors.Unauthenticated):
            await stranger.fetch(task_id)


@pytest.mark.fast
@pytest.mark.parametrize(("code", "status", "kind"), KINDS)
def test_every_code_is_turned_back_into_its_class(code: str, status: int, kind: type[errors.QoError]) -> None:
    said = {"error": "so it is", "code": code, "detail": ["a"]}
    found = error_from_response(Response("http://qo/", status, json.dumps(said).encode()))
    assert type(found) is kind
    assert str(found) == "so it is\n  a"


async def test_a_worker_waits_until_the_dispatcher_is_back(state: State, tmp_path: Path) -> None:  # noqa: F811
    deployed(state, SHOP)
    outside, inside = free_ports(2)
    context = context_of(state, tmp_path, listen=f"127.0.0.1:{outside}", internal_listen=f"127.0.0.1:{inside}")
    token = context.tokens.workers[0]
    async with DispatcherClient(f"http://127.0.0.1:{inside}", token) as worker:
        for _ in range(2):
            asked = asyncio.create_task(worker.sources())
            await asyncio.sleep(0)  # It asks first; there is nobody.
            async with listening(context):
                assert len((await asked).sources) == 1


async def test_patience_ends_and_says_where_nobody_answers() -> None:
    (port,) = free_ports(1)
    async with DispatcherClient(f"http://127.0.0.1:{port}", "t", patience_s=0.3) as worker:
        with pytest.raises(errors.Unavailable, match=str(port)):
            await worker.fetch("x")


async def test_what_was_cut_off_is_asked_for_again() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if len(asked) == 2:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")  # Most of it never comes.
        if len(asked) == 3:
            writer.write(b'HTTP/1.1 404 Not Found\r\nContent-Length: 33\r\n\r\n{"error":"no","code":"not_found"}')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, DispatcherClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "t") as worker:
        with pytest.raises(errors.NotFound, match="no"):
            await worker.fetch("x")
    assert len(asked) == 3
    assert {each.split(b"\r\n", 1)[0] for each in asked} == {b"GET /internal/task-fetch?task_id=x HTTP/1.1"}


class _Scripted(httpx.AsyncBaseTransport):
    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
async def test_an_answer_is_never_asked_for_again(status: int) -> None:
    transport = _Scripted(httpx.Response(status, json={"error": "no", "code": "", "detail": []}))
    async with RetryingClient(
        "http://qo", patience_s=60, transport=HttpxTransport("http://qo", transport)
    ) as client:
        with pytest.raises(errors.QoError, match="no"):
            await client.send("GET", "/")
    assert transport.asked == 1


async def test_what_may_have_happened_is_repeated_only_if_it_may_happen_twice() -> None:
    lost = httpx.ReadTimeout("no answer")
    transport = _Scripted(lost, httpx.Response(200, json={}))
    async with RetryingClient(
        "http://qo", patience_s=60, transport=HttpxTransport("http://qo", transport)
    ) as client:
        await client.send("POST", "/")
    assert transport.asked == 2
    transport = _Scripted(lost, httpx.Response(200, json={}))
    async with RetryingClient(
        "http://qo", patience_s=60, transport=HttpxTransport("http://qo", transport)
    ) as client:
        with pytest.raises(errors.Unavailable):
            await client.send("POST", "/", repeatable=False)
    assert transport.asked == 1


async def test_a_stranger_that_answers_is_not_taken_for_a_dispatcher() -> None:
    transport = _Scripted(httpx.Response(404, html="<h1>nginx</h1>"), httpx.Response(200, json={"a": 1}))
    async with DispatcherClient("http://qo", "t", transport=transport) as worker:
        with pytest.raises(errors.NotFound, match="address of a dispatcher"):
            await worker.fetch("x")
        with pytest.raises(errors.QoError, match="same version"):
            await worker.fetch("x")


async def test_without_a_dispatcher_the_same_routes_answer_in_this_process(
    state: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    context = context_of(state, tmp_path)
    context = type(context)(
        state=state, settings=context.settings, keyring=context.keyring, tokens=LocalTokens((), "qo_admin")
    )
    async with open_embedded_client(context) as user:
        made = await user.post("/v1/dags/shop/versions", {"source": to_yaml(SHOP)})
        assert made["status"] == "active"
        assert [each["name"] for each in (await user.get("/v1/dags"))["dags"]] == ["shop"]
        with pytest.raises(errors.NotFound):
            await user.get("/v1/dags/nobody")


def test_servers_are_checked_against_the_known_authorities_and_without_tls_none_is_known() -> None:
    checked, unknown = transport._ssl_context(True), transport._ssl_context(False)  # pyright: ignore[reportPrivateUsage]
    assert checked.verify_mode is unknown.verify_mode is ssl.CERT_REQUIRED
    assert checked.check_hostname
    assert checked.cert_store_stats()["x509_ca"] > 0
    assert unknown.cert_store_stats()["x509_ca"] == 0
