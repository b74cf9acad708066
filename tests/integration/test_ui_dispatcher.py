"""The dispatcher and pages: which origins it lets in, and how the dashboard asks for its own page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from qo.cli.run import ui
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.auth.local_tokens import LocalTokens, local_tokens, page_token
from qo.dispatcher.auth.principals import list_tokens, local_principal
from qo.dispatcher.http.apps import public_app
from qo.dispatcher.state.database import State, open_state
from qo.http_server.messages import Request
from qo.store.memory import MemoryStore
from qo.ui.forwarding import Dispatcher, Inside, Upstream
from support.dispatcher.listeners import served
from support.dispatcher.states import create_tables
from support.ui.dashboards import visiting

Page = Callable[[str], Dispatcher]  # By the role that the page has.
PAGE = "https://bucket.example"


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


def wish(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "PUT",
        "access-control-request-headers": "authorization,content-type",
    }


async def test_only_the_origins_that_are_named_are_let_in(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path, cors_origins=(PAGE,)) as dispatcher:
        url = f"{dispatcher.addresses.public}/v1/dags"
        preflight = await dispatcher.http.options(url, headers=wish(PAGE))
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in preflight.headers
        bearer = {"authorization": f"Bearer {dispatcher.tokens['reader']}"}
        answer = await dispatcher.http.get(url, headers={"origin": PAGE, **bearer})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        refused = await dispatcher.http.get(url, headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)
        for origin in ("https://evil.example", "https://bucket.example.evil", "http://bucket.example", "null"):
            assert (await dispatcher.http.options(url, headers=wish(origin))).status_code == 400
            answer = await dispatcher.http.get(url, headers={"origin": origin, **bearer})
            assert "access-control-allow-origin" not in answer.headers
        inside = await dispatcher.http.options(f"{dispatcher.addresses.internal}/livez", headers=wish(PAGE))
        assert "access-control-allow-origin" not in inside.headers


async def test_unless_it_is_told_the_dispatcher_lets_no_page_in(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path) as dispatcher:
        preflight = await dispatcher.http.options(f"{dispatcher.addresses.public}/v1/dags", headers=wish(PAGE))
        assert preflight.status_code == 405
        assert "access-control-allow-origin" not in preflight.headers


async def test_the_page_of_a_dashboard_reads_pipelines_through_it(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path) as dispatcher:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"])
        async with visiting(MemoryStore(), dispatcher=upstream) as visitor:
            token = f"Bearer {visitor.dashboard.credentials.dispatcher_token}"
            answer = await visitor.get("/v1/dags", authorization=token)
            assert (answer.status, json.loads(answer.body)["dags"]) == (200, [])
            missing = await visitor.get("/v1/dags/none", authorization=token)
            assert (missing.status, json.loads(missing.body)["code"]) == (404, "not_found")
            made = await visitor.get(
                "/v1/tokens", method="POST", body=b'{"name":"x","role":"admin"}', authorization=token
            )
            assert made.status == 403


# Ways to write the path of the tokens, of which one program or another might take the same route.
SPELLINGS = (
    "/v1/tokens#",
    "/v1/tokens#x",
    "/v1/tokens%23",
    "/v1/tokens?#",
    "/v1/tokens;x",
    "/v1/tokens/",
    "/v1/tokens%2F",
    "/v1/tokens%3F",
    "/v1/tokens%00",
    "/v1/tokens\\x",
    "/v1/%74okens",
    "/v1/%2574okens",
    "/v1//tokens",
    "/v1/./tokens",
    "/v1/dags/../tokens",
    "/v1/dags/%2e%2e/tokens",
)


@pytest.fixture(params=["inside", "upstream"])
async def page(request: pytest.FixtureRequest, books: State, tmp_path: Path) -> AsyncIterator[Page]:
    async with served(books, tmp_path) as dispatcher:
        context = replace(dispatcher.context, tokens=LocalTokens((), "qo_admin"))

        def asked_by(role: str) -> Dispatcher:
            if request.param == "inside":
                return Inside(public_app(context), page_token("qo_admin", role))
            return Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"], role=role)

        yield asked_by


async def test_no_way_to_write_a_path_lets_the_page_at_tokens(page: Page, books: State) -> None:
    body = b'{"name":"x","role":"admin"}'
    for read_only, role in ((False, "writer"), (True, "reader")):
        async with visiting(MemoryStore(), dispatcher=page(role), read_only=read_only) as visitor:
            token = f"Bearer {visitor.dashboard.credentials.dispatcher_token}"
            for path in SPELLINGS:
                shown = await visitor.get(path, authorization=token)
                made = await visitor.get(
                    path, method="POST", body=body, authorization=token, content_type="application/json"
                )
                assert (shown.status, made.status) in ((403, 403), (400, 400), (400, 403)), path
    with books.read() as tx:
        assert "x" not in {each.name for each in list_tokens(tx).tokens}


async def test_what_goes_on_from_the_page_is_no_admin(page: Page) -> None:
    for role, pauses in (("writer", 404), ("reader", 403)):
        asked = page(role)
        body, told = b'{"name":"x","role":"admin"}', {"content-type": "application/json"}
        assert (await asked.ask(Request("GET", "/v1/dags", "", {}))).status == 200
        assert (await asked.ask(Request("POST", "/v1/tokens", "", told, body))).status == 403
        assert (await asked.ask(Request("GET", "/v1/tokens", "", {}))).status == 403
        paused = await asked.ask(Request("POST", "/v1/dags/none/pause", "", told, b'{"reason":"r"}'))
        assert paused.status == pauses, paused.body


async def test_a_token_that_was_created_for_the_page_ends_with_it(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path) as dispatcher:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["admin"], role="reader")
        for _ in range(3):
            assert (await upstream.ask(Request("GET", "/v1/dags", "", {}))).status == 200
        with books.read() as tx:
            (created,) = [each for each in list_tokens(tx).tokens if each.name == "dashboard"]
        assert (created.role, created.revoked_at) == ("reader", None)
        assert created.expires_at is not None
        await upstream.close()
        with books.read() as tx:
            (revoked,) = [each for each in list_tokens(tx).tokens if each.name == "dashboard"]
        assert revoked.revoked_at is not None


async def test_a_writers_own_token_is_used_as_it_is(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path) as dispatcher:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["writer"], role="writer")
        assert (await upstream.ask(Request("GET", "/v1/dags", "", {}))).status == 200
        unknown = Upstream(dispatcher.addresses.public, "qo_nobodys", role="writer")
        assert (await unknown.ask(Request("GET", "/v1/dags", "", {}))).status == 401
        with books.read() as tx:
            assert {each.name for each in list_tokens(tx).tokens} == {"a-reader", "a-writer", "a-admin"}


@pytest.mark.parametrize("role", ["reader", "writer"])
def test_a_dashboard_asks_the_dispatcher_of_this_machine_as_no_admin(tmp_path: Path, role: str) -> None:
    chosen = DispatcherSettings(url="http://127.0.0.1:8470", secrets_dir=str(tmp_path / "secrets"))
    local = local_tokens(chosen)
    upstream = ui.remote_dispatcher(Settings(dispatcher=chosen), role)
    assert upstream._role is None
    known = local_principal(upstream._original_token or "", local)
    assert known is not None
    assert (known.name, known.role) == ("dashboard", role)


async def test_credentials_hold_a_token_that_ends_with_them_if_an_admin_asks(books: State, tmp_path: Path) -> None:
    async with served(books, tmp_path) as dispatcher:
        url = dispatcher.addresses.public

        async def given(role: str) -> tuple[str | None, str]:
            settings = Settings(dispatcher=DispatcherSettings(url=url, token=dispatcher.tokens[role]))
            return await asyncio.to_thread(ui._dispatcher_token, settings, read_only=True, hours=1.0)

        token, why = await given("admin")
        assert why == ""
        bearer = {"authorization": f"Bearer {token}"}
        assert (await dispatcher.http.get(f"{url}/v1/dags", headers=bearer)).status_code == 200
        assert (await dispatcher.http.put(f"{url}/v1/dags/x/active", headers=bearer, json={})).status_code == 403
        listed = (await dispatcher.get("/v1/tokens", "admin")).json()["tokens"]
        (made,) = [each for each in listed if each["name"] == "dashboard"]
        assert (made["role"], made["expires_at"] is not None) == ("reader", True)
        token, why = await given("writer")
        assert token is None
        assert "queues only" in why
