"""Routes for the tokens of people and workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from qo.api.contract.token import CreateToken, TokenAnswer, TokenCreated, TokenPage
from qo.dispatcher.auth import principals
from qo.dispatcher.http.routes import After, ContextParam, Limit, Routes

TokenId = Annotated[str, Path(max_length=36, description="The token's id, not the token.")]


def create_token(context: ContextParam, body: CreateToken) -> TokenCreated:
    """Create a token.

    Only this answer ever shows it: the dispatcher stores its hash.
    """
    with context.state.write() as tx:
        return principals.create_token(tx, body)


def list_tokens(context: ContextParam, after: After = None, limit: Limit = 100) -> TokenPage:
    """List the tokens, without their secret text."""
    with context.state.read() as tx:
        return principals.list_tokens(tx, after, limit)


def revoke_token(context: ContextParam, token_id: TokenId) -> TokenAnswer:
    """Revoke a token; from now on it is refused."""
    with context.state.write() as tx:
        return principals.revoke_token(tx, token_id)


def install(routes: Routes) -> None:
    routes.post("/v1/tokens", create_token, status_code=201)
    routes.get("/v1/tokens", list_tokens)
    routes.delete("/v1/tokens/{token_id}", revoke_token, 404)
