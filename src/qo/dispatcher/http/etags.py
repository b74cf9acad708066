"""Conditional requests: whoever has a copy that is still right gets 304 and no body."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response


def has_copy(request: Request, etag: str) -> bool:
    """Whether the caller has what the ETag names."""
    copies = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    return bool(copies & {etag, "*"})


def not_modified(headers: dict[str, str]) -> Response:
    """Return the answer to a caller who has a copy, with the headers that a whole answer would have."""
    return Response(
        status_code=304, headers={name: text for name, text in headers.items() if not name.startswith("content-")}
    )
