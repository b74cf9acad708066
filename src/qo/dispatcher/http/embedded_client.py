"""A client that needs no dispatcher process: it calls the public routes in this process."""

from __future__ import annotations

import httpx

from qo.api.public_client import UserClient
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.apps import public_app


def open_embedded_client(context: Context) -> UserClient:
    """Return a client with the rights of an admin. The caller closes the state of the context."""
    transport = httpx.ASGITransport(public_app(context), raise_app_exceptions=False)
    return UserClient("http://qo", context.tokens.admin, transport=transport)
