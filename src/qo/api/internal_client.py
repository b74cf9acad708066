"""The client of a dispatcher's internal listener: for workers, running tasks and sources.

Every call may be repeated, because what it asks for is named: a claim by its lease, a completion by its
fence, an emission by its key. So they are, for as long as their patience lasts, and never after an answer.
"""

from __future__ import annotations

from typing import Any, TypeVar

import httpx
import msgspec
from pydantic import BaseModel, ValidationError

from qo.ambient import SYSTEM, Ambient
from qo.api.async_transport import AioCarrier
from qo.api.contract.credential import CredentialsAnswer, CredentialsRequest
from qo.api.contract.source import EmitAnswer, EmitRequest, MemoryRequest, SourcesAnswer
from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CommitAnswer,
    CommitRequest,
    CompleteAnswer,
    CompleteRequest,
    EventsAnswer,
    EventsRequest,
    Fence,
    HeartbeatAnswer,
    HeartbeatRequest,
    KeptAnswer,
    KeptRequest,
    LastSegment,
    NotClaimed,
    PiecesAnswer,
    StandingAnswer,
    TaskState,
)
from qo.api.transport import CONNECT_S, TIMEOUT_S, Asker, Closing, HttpxCarrier, Reply
from qo.config.dispatcher import DispatcherSettings
from qo.core.struct_preload import preload
from qo.errors import QoError

A = TypeVar("A", bound=BaseModel)

PATIENCE_S = 60.0  # A dispatcher that restarts is back by then.
CAPABILITY = "X-Qo-Task-Capability"


class _StatusOnly(msgspec.Struct):
    """All that is looked at of an answer before it is known which one it is."""

    status: Any = None


preload(_StatusOnly)


def _read(reply: Reply, kind: type[A]) -> A:
    """The body as what was promised. Raises QoError if it is something else."""
    try:
        return kind.model_validate_json(reply.content)
    except ValidationError as error:
        raise QoError(
            f"{reply.url} answered what this version of qo does not understand "
            f"({error.error_count()} fields differ): use the same version on both sides"
        ) from error


def internal_url(settings: DispatcherSettings) -> str:
    """Where workers and sources find their dispatcher."""
    return settings.internal_url or f"http://{settings.internal_listen}"


class DispatcherClient(Closing):
    """What workers, running tasks and sources ask of the internal listener.

    All raise Unavailable when patience runs out; Unauthenticated and Forbidden for tokens; LeaseLost for a fence that
    is no longer the current one: stop, write nothing.
    """

    def __init__(
        self,
        url: str,
        worker_token: str,
        *,
        patience_s: float = PATIENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
        ambient: Ambient = SYSTEM,
    ) -> None:
        aio = AioCarrier(connect_s=CONNECT_S, answer_s=TIMEOUT_S)
        carrier = aio if transport is None else HttpxCarrier(url, transport)
        self._asker = Asker(url, patience_s=patience_s, carrier=carrier, ambient=ambient)
        # While the token changes, the settings name two; the newest stands last.
        self._worker_token = worker_token.rpartition(",")[2].strip()
        self._ambient = ambient

    # With the worker's token

    async def claim(self, task_id: str, worker_id: str, lease_id: str | None = None) -> Claimed | NotClaimed:
        """Take the task. The lease is drawn here, so that a claim whose answer was lost can be repeated."""
        asked = ClaimRequest(task_id=task_id, worker_id=worker_id, lease_id=lease_id or self._ambient.task_id())
        answer = await self._asker.ask("POST", "/internal/task-claim", token=self._worker_token, body=asked)
        said = msgspec.json.decode(answer.content, type=_StatusOnly)
        return _read(answer, Claimed if said.status == "claimed" else NotClaimed)

    async def fetch(self, task_id: str) -> TaskState:
        params = {"task_id": task_id}
        answer = await self._asker.ask("GET", "/internal/task-fetch", token=self._worker_token, params=params)
        return _read(answer, TaskState)

    async def sources(self, after: str | None = None, limit: int = 500) -> SourcesAnswer:
        """A page of the live sources, with the database's time."""
        params = {"after": after, "limit": limit}
        answer = await self._asker.ask("GET", "/internal/sources", token=self._worker_token, params=params)
        return _read(answer, SourcesAnswer)

    async def remember(self, edition_id: str, memory: Any, error: str | None = None) -> None:
        """Keep what a watcher has seen so far, or why it sees nothing; ``sources`` tells it again."""
        path, body = f"/internal/sources/{edition_id}/memory", MemoryRequest(memory=memory, error=error)
        await self._asker.ask("PUT", path, token=self._worker_token, body=body)

    async def emit(self, dag: str, job: str, request: EmitRequest) -> EmitAnswer:
        path = f"/internal/sources/{dag}/{job}/events"
        return _read(await self._asker.ask("POST", path, token=self._worker_token, body=request), EmitAnswer)

    # With the capability of the attempt

    async def heartbeat(self, capability: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        return _read(await self._as_task("heartbeat", capability, request), HeartbeatAnswer)

    async def events(self, capability: str, request: EventsRequest) -> EventsAnswer:
        return _read(await self._as_task("events", capability, request), EventsAnswer)

    async def complete(self, capability: str, request: CompleteRequest) -> CompleteAnswer:
        return _read(await self._as_task("complete", capability, request), CompleteAnswer)

    async def commit(self, capability: str, request: CommitRequest) -> CommitAnswer:
        """Commit segments of an attempt that goes on."""
        return _read(await self._as_task("commit", capability, request), CommitAnswer)

    async def last_segment(self, capability: str, output: int) -> LastSegment:
        params, headers = {"output": output}, {CAPABILITY: capability}
        return _read(await self._asker.ask("GET", "/v1/task/segment", headers=headers, params=params), LastSegment)

    async def kept(self, capability: str, request: KeptRequest) -> KeptAnswer:
        return _read(await self._as_task("kept", capability, request), KeptAnswer)

    async def credentials(self, capability: str, request: CredentialsRequest) -> CredentialsAnswer:
        return _read(await self._as_task("credentials", capability, request), CredentialsAnswer)

    async def inputs(self, capability: str, position: int, after: str | None = None) -> PiecesAnswer:
        """A further page of the pieces of one input."""
        params, headers = {"position": position, "after": after}, {CAPABILITY: capability}
        return _read(await self._asker.ask("GET", "/v1/task/inputs", headers=headers, params=params), PiecesAnswer)

    async def standing(
        self, capability: str, output: int, after: str | None = None, revision: int | None = None
    ) -> StandingAnswer:
        """A page of what is committed of one output already."""
        params = {"output": output, "after": after, "revision": revision}
        answer = await self._asker.ask("GET", "/v1/task/standing", headers={CAPABILITY: capability}, params=params)
        return _read(answer, StandingAnswer)

    async def _as_task(self, what: str, capability: str, request: Fence) -> Reply:
        return await self._asker.ask("POST", f"/v1/task/{what}", headers={CAPABILITY: capability}, body=request)
