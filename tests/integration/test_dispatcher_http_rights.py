"""Who may call what: every route with every kind of token, from the same table that the routes obey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from qo.api.contract.task import Claimed, EventBody
from qo.api.contract.token import CreateToken, Role
from qo.config.dispatcher import DispatcherSettings
from qo.dispatcher.auth import capability
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.auth.principals import create_token, revoke_token
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import limits
from qo.dispatcher.http.apps import internal_app, public_app
from qo.dispatcher.http.fastapi_routes import GuardedRoute
from qo.dispatcher.http.rights import INTERNAL, PUBLIC, Need
from qo.dispatcher.http.routes import Operation, Routes
from qo.dispatcher.http.starlette_routes import OperationRoute
from qo.dispatcher.sources.emission import emit
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from support.dispatcher.listeners import Served, context_of, served
from support.dispatcher.pipelines import dag, deployed, job, source
from support.dispatcher.states import Clock, clock, state  # noqa: F401
from support.dispatcher.surfaces import Surface, surface

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
USERS = (Need.READER, Need.WRITER, Need.ADMIN)  # Each may do what the ones before it may.
NOBODY = (
    "none",
    "garbage",
    "expired",
    "revoked",
    "expired capability",
    "unsigned",
    "signed with a word",
    "forged",
)
UNBOUND = ("worker", "worker's own")
WORKERS = (*UNBOUND, "bound worker")
FENCED = ("heartbeat", "emit_events", "complete", "credentials")


@pytest.fixture
async def dispatcher(state: State, tmp_path: Path) -> AsyncIterator[Served]:  # noqa: F811
    async with served(state, tmp_path) as running:
        yield running


def routes(document: Any) -> list[tuple[str, str, str]]:
    """Operation, method and a path that leads to it."""
    found: list[tuple[str, str, str]] = []
    for path, methods in document["paths"].items():
        filled = path.replace("{number}", "1").replace("{", "").replace("}", "")
        found += [(each["operationId"], method.upper(), filled) for method, each in methods.items()]
    return found


def expected(need: Need, kind: str) -> set[int]:
    """What a caller with this kind of token may hear: 401 and 403 only where the table says so."""
    if need is Need.NOTHING:
        return set()
    if need is Need.SIGNATURE:
        return {401, 404}  # No source listens there; a token is not looked at.
    if kind in NOBODY or kind == "capability":
        known = need is Need.TASK and kind == "capability"
        return set() if known else {401}
    if need is Need.TASK:
        return {401}
    if need is Need.WORKER:
        return set() if kind in WORKERS else {403}
    if need is Need.SCHEDULER:
        return set() if kind in UNBOUND else {403}
    if kind in WORKERS:
        return {403}
    if need is Need.SCALER:
        return set() if kind in ("scaler", "writer", "admin") else {403}
    if kind == "scaler":
        return {403}
    return set() if USERS.index(Need(kind)) >= USERS.index(need) else {403}


async def ask(dispatcher: Served, method: str, path: str, token: str | None, *, internal: bool) -> httpx.Response:
    """With the wrong kind of body: who may call hears of it, who may not does not."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await dispatcher.ask(method, path, internal=internal, headers=headers, content=b"{")


@pytest.mark.timeout(300)  # A thousand requests.
async def test_every_route_is_open_to_whom_the_table_says_and_to_nobody_else(
    dispatcher: Served,
    clock: Clock,  # noqa: F811
) -> None:
    deployed(dispatcher.context.state, SHOP)
    tokens = await every_kind(dispatcher, clock)
    checked = 0
    for rights, internal in ((PUBLIC, False), (INTERNAL, True)):
        document = (await dispatcher.get("/openapi.json", internal=internal)).json()
        for operation, method, path in routes(document):
            answers = await asyncio.gather(
                *(ask(dispatcher, method, path, token, internal=internal) for token in tokens.values())
            )
            for kind, answer in zip(tokens, answers, strict=True):
                refused, wanted = answer.status_code in (401, 403), expected(rights[operation], kind)
                told = (operation, kind, answer.status_code, answer.text)
                assert answer.status_code in wanted if wanted else not refused, told
                assert answer.status_code < 500, told
                checked += 1
    assert checked == (len(PUBLIC) + len(INTERNAL)) * len(tokens)


async def every_kind(dispatcher: Served, clock: Clock) -> dict[str, str | None]:  # noqa: F811
    context = dispatcher.context
    with context.state.write() as tx:
        short = create_token(tx, CreateToken(name="short", role=Role.ADMIN, ttl_s=60)).token
        gone = create_token(tx, CreateToken(name="gone", role=Role.ADMIN))
        revoke_token(tx, gone.id)
        own = create_token(tx, CreateToken(name="machine", role=Role.WORKER)).token
        scaler = create_token(tx, CreateToken(name="scaler", role=Role.SCALER)).token
        bound = create_token(tx, CreateToken(name="bound", role=Role.WORKER, runtimes=["spark"])).token
        fence: dict[str, Any] = {"task_id": "nobody", "attempt": 1, "lease_id": "l", "token_id": "t"}
        passed = capability.issue(context.keyring, timeout_s=60, now=tx.now - timedelta(hours=2), **fence)
    clock.advance(120)
    with context.state.read() as tx:
        fresh = capability.issue(context.keyring, timeout_s=60, now=tx.now, **fence)
    return {
        "none": None,
        "garbage": "garbage",
        "reader": dispatcher.tokens["reader"],
        "writer": dispatcher.tokens["writer"],
        "admin": dispatcher.tokens["admin"],
        "worker": dispatcher.tokens["worker"],
        "worker's own": own,
        "scaler": scaler,
        "bound worker": bound,
        "expired": short,
        "revoked": gone.token,
        "capability": fresh,
        "expired capability": passed,
        **_unsigned(fresh),
    }


def _unsigned(token: str) -> dict[str, str]:
    """What a capability says, as somebody without its key can have it."""
    header, claims = jwt.get_unverified_header(token), jwt.decode(token, options={"verify_signature": False})
    kept = {"kid": header["kid"]}
    return {
        "unsigned": jwt.encode(claims, None, algorithm="none", headers=kept),
        "signed with a word": jwt.encode(claims, "a word that is long enough to be a key", "HS256", headers=kept),
        "forged": jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", headers=kept),
    }


def test_a_route_that_anybody_may_call_says_what_to_look_at_before_the_body(
    state: State,  # noqa: F811
    tmp_path: Path,
) -> None:
    app = public_app(context_of(state, tmp_path))
    open_to_all = {name for name, need in PUBLIC.items() if need is Need.SIGNATURE}
    operations: dict[str, Operation] = app.state.operations
    assert {name for name, each in operations.items() if each.admit is not None} >= open_to_all

    def hook() -> None:
        """Take something from anybody."""

    with pytest.raises(TypeError, match="admit"):
        Routes({"hook": Need.SIGNATURE}).post("/hook", hook)


def test_a_route_without_a_right_does_not_come_into_being(state: State, tmp_path: Path) -> None:  # noqa: F811
    context = context_of(state, tmp_path)
    apps = ((public_app(context), GuardedRoute, PUBLIC), (internal_app(context), OperationRoute, INTERNAL))
    for app, kind, rights in apps:
        others = [each for each in app.routes if not isinstance(each, kind)]
        assert [getattr(each, "path", None) for each in others] == ["/openapi.json"]
        guarded = [each for each in app.routes if isinstance(each, kind)]
        assert sorted(each.operation_id or "" for each in guarded) == sorted(rights)

        def unheard_of() -> None:
            """Do something."""

        with pytest.raises(KeyError):
            Routes(rights).get("/v1/unheard-of", unheard_of)


def test_while_the_workers_token_changes_both_are_good(state: State, tmp_path: Path) -> None:  # noqa: F811
    old, new = "the-old-token-of-the-workers", "the-new-token-of-the-workers"
    with surface(state, tmp_path) as found:
        tokens = {"old": old, "new": new, "another": "some-other-token-of-nobody"}
        changing = replace(found.context, tokens=LocalTokens((old, new)))
        both = Surface(changing, tokens, found.claimed, found.names)
        for rights, internal, app in ((PUBLIC, False, both.public), (INTERNAL, True, both.internal)):
            for operation, method, path in routes(app.state.openapi()):
                heard = {
                    name: both.ask(method, path, name, internal=internal, content=b"{").status for name in tokens
                }
                assert heard["old"] == heard["new"], operation
                if rights[operation] in (Need.WORKER, Need.SCHEDULER):
                    assert heard["new"] not in (401, 403), operation
                    assert heard["another"] == 401, operation
        both.close()


def two_tasks(state: State) -> list[str]:  # noqa: F811
    """Two tasks that may be claimed."""
    deployed(state, SHOP)
    with state.write() as tx:
        said = [EventBody(partition_key="a"), EventBody(partition_key="b")]
        emit(tx, "shop", "orders", key="k", events=said, by="tests")
    router.tick(state)
    release.tick(state, limits(DispatcherSettings()))
    with state.read() as tx:
        rows = tx.all(schema.tasks.select().where(schema.tasks.c.job == "clean"))
    return [row["id"] for row in rows]


def fence_of(task_id: str, claimed: Claimed) -> dict[str, Any]:
    return {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}


def body_of(operation: str, fence: dict[str, Any]) -> dict[str, Any]:
    more: dict[str, Any] = {
        "emit_events": {"events": [{"partition_key": "a"}]},
        "complete": {"outcome": "fatal_error", "error": "no"},
    }
    return {**fence, **more.get(operation, {})}


async def test_the_capability_of_another_task_opens_nothing(dispatcher: Served) -> None:
    mine, other = two_tasks(dispatcher.context.state)
    paths = {each[0]: each for each in routes((await dispatcher.get("/openapi.json", internal=True)).json())}
    async with dispatcher.worker() as worker:
        claimed, theirs = await worker.claim(mine, "w"), await worker.claim(other, "w")
    assert isinstance(claimed, Claimed)
    assert isinstance(theirs, Claimed)
    for operation in FENCED:
        _, method, path = paths[operation]
        headers = {"X-Qo-Task-Capability": theirs.capability_token}
        body = body_of(operation, fence_of(mine, claimed))
        answer = await dispatcher.ask(method, path, internal=True, headers=headers, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), operation
    with dispatcher.context.state.read() as tx:
        rows = tx.all(schema.tasks.select().where(schema.tasks.c.id.in_([mine, other])))
    assert {row["status"] for row in rows} == {"running"}


async def test_the_capability_of_an_older_attempt_opens_nothing(dispatcher: Served, clock: Clock) -> None:  # noqa: F811
    (mine, _) = two_tasks(dispatcher.context.state)
    paths = {each[0]: each for each in routes((await dispatcher.get("/openapi.json", internal=True)).json())}
    async with dispatcher.worker() as worker:
        old = await worker.claim(mine, "w")
        assert isinstance(old, Claimed)
        body = {**fence_of(mine, old), "outcome": "released"}
        headers = {"X-Qo-Task-Capability": old.capability_token}
        given_back = await dispatcher.post("/v1/task/complete", internal=True, headers=headers, json=body)
        assert given_back.status_code == 200, given_back.text
        clock.advance(3600)
        release.tick(dispatcher.context.state, limits(DispatcherSettings()))
        new = await worker.claim(mine, "w")
        assert isinstance(new, Claimed)
        assert new.attempt > old.attempt
    # Of the current attempt it may not speak, and of its own there is nothing left to say.
    with dispatcher.context.state.read() as tx:
        fresh = capability.issue(
            dispatcher.context.keyring,
            **fence_of(mine, old),
            timeout_s=60,
            token_id="t",
            now=tx.now,
        )
    headers = {"X-Qo-Task-Capability": fresh}
    for operation in FENCED:
        _, method, path = paths[operation]
        body = body_of(operation, fence_of(mine, new))
        answer = await dispatcher.ask(method, path, internal=True, headers=headers, json=body)
        assert answer.status_code == 403, operation
        body = body_of(operation, fence_of(mine, old))
        answer = await dispatcher.ask(method, path, internal=True, headers=headers, json=body)
        assert answer.status_code == 409, (operation, answer.text)
    answer = await dispatcher.get("/v1/task/inputs?position=0", internal=True, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")


async def test_the_capability_of_an_attempt_that_ended_opens_nothing(dispatcher: Served) -> None:
    (mine, _) = two_tasks(dispatcher.context.state)
    paths = {each[0]: each for each in routes((await dispatcher.get("/openapi.json", internal=True)).json())}
    async with dispatcher.worker() as worker:
        claimed = await worker.claim(mine, "w")
    assert isinstance(claimed, Claimed)
    headers = {"X-Qo-Task-Capability": claimed.capability_token}
    fence = fence_of(mine, claimed)
    ended = await dispatcher.post(
        "/v1/task/complete", internal=True, headers=headers, json=body_of("complete", fence)
    )
    assert ended.json()["status"] == "failed"
    for operation in FENCED:
        _, method, path = paths[operation]
        answer = await dispatcher.ask(method, path, internal=True, headers=headers, json=body_of(operation, fence))
        if operation == "complete":  # Whose answer was lost asks again, and hears the same.
            assert answer.json() == {**ended.json(), "repeated": True}
        else:
            assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost"), operation
    other = await dispatcher.post(
        "/v1/task/complete", internal=True, headers=headers, json={**fence, "outcome": "success"}
    )
    assert other.json().get("status") != "completed"
    answer = await dispatcher.get("/v1/task/inputs?position=0", internal=True, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")


async def test_a_token_is_never_logged(dispatcher: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    secret = "qo_swordfish_swordfish"
    for path in ("/v1/dags", "/v1/tokens"):
        await dispatcher.get(path, headers={"Authorization": f"Bearer {secret}"})
    refused = [record.getMessage() for record in caplog.records if record.name.startswith("qo.")]
    assert any("refused" in each for each in refused)
    assert not any(secret in each for each in refused)
