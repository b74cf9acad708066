"""The client of a dispatcher's internal listener: for workers, running tasks and sources.

Every call may be repeated, because it is identified: a claim by its lease, a completion by its fence, an emission by
its key. A call without a response is repeated until its patience runs out.
"""

from __future__ import annotations

from typing import Any

import httpx

from qo.ambient import SYSTEM, Ambient
from qo.api.async_transport import AiohttpTransport
from qo.api.contract.credential import CredentialsAnswer, CredentialsRequest
from qo.api.contract.sink import SinkReport, SinksAnswer, SinkStep
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
    InputPart,
    KeptAnswer,
    KeptRequest,
    LastSegment,
    NextRequest,
    NotClaimed,
    PiecesAnswer,
    StandingAnswer,
    TaskState,
)
from qo.api.task_exchange import CAPABILITY, TaskExchange, parse
from qo.api.transport import CONNECT_S, TIMEOUT_S, ClientBase, HttpxTransport, Response, RetryingClient
from qo.config.dispatcher import DispatcherSettings

PATIENCE_S = 60.0  # A dispatcher that restarts is back by then.


def internal_url(settings: DispatcherSettings) -> str:
    """Return the address at which workers and sources call the dispatcher."""
    return settings.internal_url or f"http://{settings.internal_listen}"


class DispatcherClient(ClientBase):
    """The calls of workers, running tasks and sources.

    All raise Unavailable when patience runs out; Unauthenticated or Forbidden for a bad token; LeaseLost for a fence
    that is no longer current: the attempt must stop and write nothing.
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
        self._client = RetryingClient(
            url,
            patience_s=patience_s,
            transport=AiohttpTransport(connect_s=CONNECT_S, response_s=TIMEOUT_S)
            if transport is None
            else HttpxTransport(url, transport),
            ambient=ambient,
        )
        # While the token is being replaced, the settings name two; the newest is last.
        self._worker_token = worker_token.rpartition(",")[2].strip()
        self._ambient = ambient
        self._exchange = TaskExchange(self._client, self._worker_token)

    async def close(self) -> None:
        await self._exchange.close()
        await super().close()

    async def claim(self, task_id: str, worker_id: str, lease_id: str | None = None) -> Claimed | NotClaimed:
        """Claim the task. The client chooses the lease id, so that a claim whose response was lost can be repeated."""
        body = ClaimRequest(task_id=task_id, worker_id=worker_id, lease_id=lease_id or self._ambient.task_id())
        return await self._exchange.claim(body)

    async def claim_next(self, queue: str, worker_id: str) -> Claimed | None:
        """Claim the task of a queue that should run next; None if there is none."""
        lease_id = self._ambient.task_id()
        return await self._exchange.next(NextRequest(queue=queue, worker_id=worker_id, lease_id=lease_id))

    async def check_token(self) -> None:
        """Raise Unauthenticated or Forbidden if the token could claim nothing."""
        await self._client.send("POST", "/internal/task-exchange", token=self._worker_token, body={})

    async def fetch(self, task_id: str) -> TaskState:
        params = {"task_id": task_id}
        response = await self._client.send("GET", "/internal/task-fetch", token=self._worker_token, params=params)
        return parse(response, TaskState)

    async def sources(self, after: str | None = None, limit: int = 500) -> SourcesAnswer:
        """Return a page of the live sources, with the database's time."""
        params = {"after": after, "limit": limit}
        response = await self._client.send("GET", "/internal/sources", token=self._worker_token, params=params)
        return parse(response, SourcesAnswer)

    async def remember(self, edition_id: str, memory: Any, error: str | None = None) -> None:
        """Store what a watcher has seen so far, or why it fails; ``sources`` returns it."""
        path, body = f"/internal/sources/{edition_id}/memory", MemoryRequest(memory=memory, error=error)
        await self._client.send("PUT", path, token=self._worker_token, body=body)

    async def sinks(self) -> SinksAnswer:
        return parse(await self._client.send("GET", "/internal/sinks", token=self._worker_token), SinksAnswer)

    async def sink_step(self, name: str, generation_id: str, after: int) -> SinkStep:
        path, params = f"/internal/sinks/{name}/step", {"generation_id": generation_id, "after": after}
        return parse(await self._client.send("GET", path, token=self._worker_token, params=params), SinkStep)

    async def report_sink(self, name: str, report: SinkReport) -> None:
        """Store how far a sink is, for people to see."""
        await self._client.send("PUT", f"/internal/sinks/{name}/state", token=self._worker_token, body=report)

    async def emit(self, dag: str, job: str, request: EmitRequest) -> EmitAnswer:
        path = f"/internal/sources/{dag}/{job}/events"
        return parse(await self._client.send("POST", path, token=self._worker_token, body=request), EmitAnswer)

    async def heartbeat(self, capability: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        return parse(await self._send_as_task("heartbeat", capability, request), HeartbeatAnswer)

    async def events(self, capability: str, request: EventsRequest) -> EventsAnswer:
        return parse(await self._send_as_task("events", capability, request), EventsAnswer)

    async def complete(self, capability: str, request: CompleteRequest) -> CompleteAnswer:
        return await self._exchange.complete(capability, request)

    async def commit(self, capability: str, request: CommitRequest) -> CommitAnswer:
        """Commit segments of an attempt that goes on."""
        return parse(await self._send_as_task("commit", capability, request), CommitAnswer)

    async def last_segment(self, capability: str, output: int) -> LastSegment:
        params, headers = {"output": output}, {CAPABILITY: capability}
        return parse(
            await self._client.send("GET", "/v1/task/segment", headers=headers, params=params), LastSegment
        )

    async def fetch_kept_output(self, capability: str, request: KeptRequest) -> KeptAnswer:
        return parse(await self._send_as_task("kept", capability, request), KeptAnswer)

    async def credentials(self, capability: str, request: CredentialsRequest) -> CredentialsAnswer:
        return parse(await self._send_as_task("credentials", capability, request), CredentialsAnswer)

    async def inputs(
        self, capability: str, position: int, after: str | None = None, part: InputPart | None = None
    ) -> PiecesAnswer:
        """Return a further page of the pieces of one input."""
        params, headers = {"position": position, "after": after, "part": part}, {CAPABILITY: capability}
        return parse(
            await self._client.send("GET", "/v1/task/inputs", headers=headers, params=params), PiecesAnswer
        )

    async def standing(
        self, capability: str, output: int, after: str | None = None, revision: int | None = None
    ) -> StandingAnswer:
        """Return a page of the pieces that are committed to one output."""
        params = {"output": output, "after": after, "revision": revision}
        response = await self._client.send(
            "GET", "/v1/task/standing", headers={CAPABILITY: capability}, params=params
        )
        return parse(response, StandingAnswer)

    async def _send_as_task(self, action: str, capability: str, request: Fence) -> Response:
        return await self._client.send(
            "POST", f"/v1/task/{action}", headers={CAPABILITY: capability}, body=request
        )
