"""A dispatcher's two listeners on free ports, and tokens of every kind.

from dispatchers import served, Served

async with served(state, tmp_path) as dispatcher:
    await dispatcher.get("/v1/dags", "reader")
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from qo.api.contract.token import CreateToken, Role
from qo.api.internal_client import DispatcherClient
from qo.api.public_client import UserClient
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import S3Settings, Settings
from qo.dispatcher.auth.local_tokens import LocalTokens
from qo.dispatcher.auth.principals import create_token
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.serving import Addresses, serve
from qo.dispatcher.state.database import State

WORKER = "worker-token-of-the-tests"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # To read all authorities takes longer than most tests.


@dataclass
class Served:
    context: Context
    addresses: Addresses
    tokens: dict[str, str]
    http: httpx.AsyncClient
    nudges: list[None]

    async def ask(
        self, method: str, path: str, who: str | None = None, *, internal: bool = False, **how: Any
    ) -> httpx.Response:
        """``who``: a role, "worker", or None for no token."""
        url = (self.addresses.internal if internal else self.addresses.public) + path
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if who is not None else {}
        return await self.http.request(method, url, headers={**headers, **how.pop("headers", {})}, **how)

    async def get(self, path: str, who: str | None = None, **how: Any) -> httpx.Response:
        return await self.ask("GET", path, who, **how)

    async def post(self, path: str, who: str | None = None, **how: Any) -> httpx.Response:
        return await self.ask("POST", path, who, **how)

    def worker(self, **how: Any) -> DispatcherClient:
        return DispatcherClient(self.addresses.internal, WORKER, **how)

    def user(self, role: str = "admin", **how: Any) -> UserClient:
        return UserClient(self.addresses.public, self.tokens[role], **how)


def context_of(
    state: State,
    directory: Path,
    nudge: Callable[[], None] = lambda: None,
    s3: S3Settings | None = None,
    **settings: Any,
) -> Context:
    chosen = DispatcherSettings(
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(directory / "secrets"),
        data=f"file:{directory / 'data'}",
    )
    return Context(
        state=state,
        settings=Settings(dispatcher=replace(chosen, **settings), s3=s3 or S3Settings()),
        keyring=KeyRing.open(directory / "secrets"),
        tokens=LocalTokens((WORKER,)),
        nudge=nudge,
        fast_path=lambda _: nudge,  # Leaves all to the loops.
    )


@asynccontextmanager
async def served(state: State, directory: Path, **settings: Any) -> AsyncIterator[Served]:
    nudges: list[None] = []
    context = context_of(state, directory, lambda: nudges.append(None), **settings)
    with state.write() as tx:
        tokens = {
            str(role): create_token(tx, CreateToken(name=f"a-{role}", role=role)).token
            for role in (Role.READER, Role.WRITER, Role.ADMIN)
        }
    tokens["worker"] = WORKER
    async with listening(context) as addresses, httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        yield Served(context, addresses, tokens, http, nudges)


@asynccontextmanager
async def listening(context: Context) -> AsyncIterator[Addresses]:
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(context, context.settings.dispatcher, stop, started.set_result))
    await asyncio.wait({serving, started}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if serving.done():
            await serving
        yield started.result()
    finally:
        stop.set()
        await serving
