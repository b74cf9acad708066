"""The client of a dispatcher's public listener, for people and their programs. Imports little, so that commands start
quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from qo.api.transport import ClientBase, HttpxTransport, RetryingClient

if TYPE_CHECKING:
    from qo.config.dispatcher import DispatcherSettings

PATIENCE_S = 3.0  # A person would rather see an error soon.


class UserClient(ClientBase):
    """Calls of the public listener. Answers are plain JSON values, because they are only shown."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = RetryingClient(url, patience_s=patience_s, transport=HttpxTransport(url, transport))
        self._token = token

    @classmethod
    def from_settings(cls, settings: DispatcherSettings, *, patience_s: float = PATIENCE_S) -> UserClient:
        """Return the client of the dispatcher at ``settings.url``."""
        return cls(settings.url or "", settings.token or local_admin_token(settings), patience_s=patience_s)

    async def get(self, path: str, **params: Any) -> Any:
        return await self._fetch("GET", path, params=params)

    async def post(
        self, path: str, body: Mapping[str, Any] | bytes | None = None, *, repeatable: bool = True, **params: Any
    ) -> Any:
        return await self._fetch("POST", path, body=body, params=params, repeatable=repeatable)

    async def put(self, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Any:
        return await self._fetch("PUT", path, body=body, params=params)

    async def delete(self, path: str) -> Any:
        return await self._fetch("DELETE", path)

    async def _fetch(self, method: str, path: str, **options: Any) -> Any:
        response = await self._client.send(method, path, token=self._token, **options)
        return msgspec.json.decode(response.content) if response.content else None


def local_admin_token(settings: DispatcherSettings) -> str | None:
    """Return the admin token that a dispatcher on this machine keeps in a file; None for a dispatcher elsewhere, which
    must not see it."""
    from pathlib import Path
    from urllib.parse import urlsplit

    from qo.store.secret_files import read_secret

    if urlsplit(settings.url or "").hostname not in ("127.0.0.1", "::1", "localhost"):
        return None
    try:
        return read_secret(Path(settings.secrets_dir, "admin.token")).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
