"""The client of a dispatcher's public listener, for people and their programs. Loads little: commands start quickly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from qo.api.transport import Asker, Closing, HttpxCarrier

if TYPE_CHECKING:
    from qo.config.dispatcher import DispatcherSettings

PEOPLE_S = 3.0  # People would rather be told.


class UserClient(Closing):
    """What people ask of the public listener. Answers are plain values, as they came: what is done with them is to
    show them."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        patience_s: float = PEOPLE_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._asker = Asker(url, patience_s=patience_s, carrier=HttpxCarrier(url, transport))
        self._token = token

    @classmethod
    def named(cls, settings: DispatcherSettings) -> UserClient:
        """Of the dispatcher at ``settings.url``."""
        return cls(settings.url or "", settings.token or own_token(settings))

    async def get(self, path: str, **params: Any) -> Any:
        return await self._value("GET", path, params=params)

    async def post(
        self, path: str, body: Mapping[str, Any] | bytes | None = None, *, repeatable: bool = True, **params: Any
    ) -> Any:
        return await self._value("POST", path, body=body, params=params, repeatable=repeatable)

    async def put(self, path: str, body: Mapping[str, Any] | bytes | None = None, **params: Any) -> Any:
        return await self._value("PUT", path, body=body, params=params)

    async def delete(self, path: str) -> Any:
        return await self._value("DELETE", path)

    async def _value(self, method: str, path: str, **how: Any) -> Any:
        answer = await self._asker.ask(method, path, token=self._token, **how)
        return msgspec.json.decode(answer.content) if answer.content else None


def own_token(settings: DispatcherSettings) -> str | None:
    """Of a dispatcher on this machine, the admin's token that it keeps here. Others are not shown it."""
    from pathlib import Path
    from urllib.parse import urlsplit

    from qo.store.secret_files import read_secret

    if urlsplit(settings.url or "").hostname not in ("127.0.0.1", "::1", "localhost"):
        return None
    try:
        return read_secret(Path(settings.secrets_dir, "admin.token")).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
