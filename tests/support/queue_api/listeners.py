"""The queue's HTTP API on a free port, with a token of every role.

async with served(queue, tmp_path) as api:
    await api.post("/v1/tasks", "producer", json={"type": "echo"})
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from qo.asgi.listener import bind, build_server, url_of
from qo.asgi.protocol import PatientProtocol
from qo.config.settings import Settings
from qo.queue.queue import Queue
from qo.queue_api import token_file
from qo.queue_api.api_rights import Role
from qo.queue_api.api_routes import QueueApi
from qo.queue_api.guard import TokenGuard
from qo.queue_api.queue_server import build_app, queue_api
from support.dispatcher.listeners import NO_TLS


@dataclass
class ServedQueue:
    api: QueueApi
    url: str
    tokens: dict[str, str]
    http: httpx.AsyncClient

    def headers(self, who: str | None) -> dict[str, str]:
        return {} if who is None else {"Authorization": f"Bearer {self.tokens[who]}"}

    async def ask(self, method: str, path: str, who: str | None = None, **how: Any) -> httpx.Response:
        """``who``: a role, or None for no token."""
        headers = {**self.headers(who), **how.pop("headers", {})}
        return await self.http.request(method, self.url + path, headers=headers, timeout=30, **how)

    async def get(self, path: str, who: str | None = "operator", **how: Any) -> httpx.Response:
        return await self.ask("GET", path, who, **how)

    async def post(self, path: str, who: str | None = "operator", **how: Any) -> httpx.Response:
        return await self.ask("POST", path, who, **how)


async def make_api(queue: Queue, directory: Path, **serve: Any) -> tuple[QueueApi, Settings, dict[str, str]]:
    path = directory / "secrets" / "tokens.json"
    settings = Settings()
    settings = replace(settings, serve=replace(settings.serve, tokens=str(path), **serve))
    now = await queue.store.now()
    tokens = {str(role): token_file.create(path, f"a-{role}", role, now=now, expires_at=None)[1] for role in Role}
    return queue_api(queue, settings, TokenGuard(token_file.TokenFile(path), queue.store)), settings, tokens


@asynccontextmanager
async def served(queue: Queue, directory: Path, **serve: Any) -> AsyncIterator[ServedQueue]:
    api, settings, tokens = await make_api(queue, directory, **serve)
    bound = bind("127.0.0.1:0", "serve.listen")
    server = build_server(build_app(api, settings), PatientProtocol)
    await server.startup([bound])
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        try:
            yield ServedQueue(api, url_of(bound), tokens, http)
        finally:
            await api.watcher.stop()
            await asyncio.shield(server.shutdown([bound]))
