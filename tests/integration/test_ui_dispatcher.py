"""The dispatcher and pages: which origins it lets in, and how the dashboard asks for its own page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboards import visiting
from dispatchers import served
from qo.cli import ui
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.state.database import State, open_state
from qo.store.memory import MemoryStore
from qo.ui.forwarding import Upstream
from states import create_tables

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
