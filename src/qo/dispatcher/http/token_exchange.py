"""The exchange of tokens that clients of the catalogue ask for if they know OAuth alone.

Tokens of qo need no exchange, so what is sent is checked, and sent back.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request

from qo.api.contract.catalog import AccessToken, AccessTokenError
from qo.api.contract.token import Role
from qo.dispatcher.auth import principals
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.catalog_errors import TOKENS
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.errors import Unauthenticated, UsageError

_FORM = "application/x-www-form-urlencoded"
_GRANTS = ("client_credentials", "urn:ietf:params:oauth:grant-type:token-exchange")
_TOKEN_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            _FORM: {
                "schema": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string"}
                        for name in ("grant_type", "client_id", "client_secret", "subject_token", "scope")
                    },
                }
            }
        },
    }
}


async def _read_body(request: Request) -> bytes:
    return await request.body()


def _admit_form(context: Context, request: Request) -> None:
    """Check the type of a form before it is read: it holds a token, so it comes without one."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Unauthenticated(
            f"no credentials: present a token as 'Authorization: Bearer TOKEN', or here as client_secret of a {_FORM}"
        )


def exchange_token(
    context: ContextParam, request: Request, body: Annotated[bytes, Depends(_read_body)]
) -> AccessToken:
    """Exchange a token of qo for itself, for clients that know OAuth alone.

    The token is the client_secret of client_credentials, with any client_id, or the subject_token of a token-exchange.
    """
    form = {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
    grant = form.get("grant_type", "client_credentials")
    if grant not in _GRANTS:
        raise UsageError(f"the grant {grant[:80]!r} is not supported: use client_credentials")
    token = form.get("client_secret") or form.get("subject_token") or _basic_secret(request)
    if token is None:
        raise Unauthenticated("no credentials: send a token of qo as client_secret; see qo token create")
    principal = principals.local_principal(token, context.tokens)
    if principal is None:
        with context.state.read() as tx:
            principal = principals.identify(tx, token, context.tokens)
    principal.require(Role.READER)
    return AccessToken(access_token=token)


def _basic_secret(request: Request) -> str | None:
    scheme, _, coded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(coded, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text.partition(":")[2] or None


def install(routes: Routes) -> None:
    routes.post(TOKENS, exchange_token, admit=_admit_form, error_body=AccessTokenError, extra=_TOKEN_FORM)
