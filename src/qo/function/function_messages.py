"""The messages of a function: the request that it gets, and the reply that it gives.

The request is the dispatcher's invocation, word for word. Only the fields that the handler needs are checked here; the
dispatcher checks what a reply holds when it is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

from qo.core.pipeline.states import Outcome
from qo.core.struct_preload import preload
from qo.errors import UsageError


class RequestWork(msgspec.Struct, frozen=True, kw_only=True):
    timeout_seconds: float | None = None
    inputs: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler reads of an invocation. A later dispatcher may send more."""

    task_id: str
    attempt: int
    lease_id: str
    heartbeat_s: float
    capability_token: str
    dispatcher_url: str
    bundle_sha256: str
    entrypoint: str
    work: RequestWork
    bundle_url: str | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one JSON object that a function writes to its standard output. ``{}`` is success."""

    outcome: Literal["success", "retryable_error", "fatal_error"] = "success"
    outputs: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    error: str | None = None
    retry_after_s: float | None = None
    result: Any = None


preload(Request, Reply)


class Stop(StrEnum):
    """Why a function is stopped before it ends by itself."""

    CANCELLED = "cancelled"  # On request.
    LOST = "lost"  # The attempt lost its lease: report nothing.
    RELEASED = "released"  # Whoever runs it stops: another may run the task.


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a function; ``stopped`` if we stopped it."""

    outcome: Outcome
    reply: Reply | None = None
    error: str | None = None
    stopped: Stop | None = None


def parse_request(document: bytes) -> Request:
    """Raises UsageError for a document that is no invocation."""
    try:
        return msgspec.json.decode(document, type=Request)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"this is not an invocation of a function: {error}") from None


def parse_reply(document: bytes) -> Reply:
    """Raises UsageError for a document that is not one JSON object of the right form."""
    try:
        return msgspec.json.decode(document, type=Reply)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UsageError(f"the function's output is not one JSON object of the right form: {error}") from None
