"""Claims and completions of one worker, sent together.

A call that finds nothing under way is sent at once, on a route of its own. Calls that come while others are under way
wait for one of them to return, and then go together in one request: a busy worker makes few requests, and its next
tasks come with the answer to the last ones.

Every call may be repeated: a claim, or a question for the next task, is known by its lease, a completion by its fence.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError

from qo.api.contract.exchange import TOGETHER_MAX, CompletionResult, ExchangeAnswer
from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CompleteAnswer,
    CompleteRequest,
    NextRequest,
    NotClaimed,
)
from qo.api.transport import Response, RetryingClient, error_from_response
from qo.core.struct_preload import preload
from qo.errors import Contended, QoError, Unavailable

CAPABILITY = "X-Qo-Task-Capability"
LANES = 1  # Requests under way: one, so that what waits meanwhile goes together.
BYTES_MAX = 200_000  # Of one request. Dispatchers accept more, and what is larger than that goes alone.
ALONE_S = 60.0  # For so long calls go one by one after a dispatcher has refused them together.

A = TypeVar("A", bound=BaseModel)


class _StatusOnly(msgspec.Struct):
    """The field of an answer that says which kind it is."""

    status: Any = None


preload(_StatusOnly)


def parse(response: Response, kind: type[A]) -> A:
    """Return the body as ``kind``. Raises QoError if it has another form."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise QoError(
            f"{response.url} answered what this version of qo does not understand "
            f"({error.error_count()} fields differ): use the same version on both sides"
        ) from error


class _Kind(Enum):
    COMPLETION = auto()
    CLAIM = auto()
    NEXT = auto()


@dataclass(frozen=True, slots=True)
class _Call:
    kind: _Kind
    body: bytes  # As its own route takes it.
    answer: asyncio.Future[Any]
    capability: str = ""  # Of a completion.

    @property
    def part(self) -> Any:
        """Its part of a request for many."""
        body = msgspec.Raw(self.body)
        return {"capability_token": self.capability, "completion": body} if self.capability else body


class TaskExchange:
    """Sends claims and completions. Use it from one event loop."""

    def __init__(self, client: RetryingClient, worker_token: str) -> None:
        self._client = client
        self._worker_token = worker_token
        self._waiting: list[_Call] = []
        self._under_way = set[asyncio.Task[None]]()
        self._alone_until = float("-inf")  # By the event loop's clock.

    async def claim(self, request: ClaimRequest) -> Claimed | NotClaimed:
        return await self._send(_Kind.CLAIM, request)

    async def complete(self, capability: str, request: CompleteRequest) -> CompleteAnswer:
        return await self._send(_Kind.COMPLETION, request, capability)

    async def next(self, request: NextRequest) -> Claimed | None:
        """Return None if the queue has no more tasks, or the dispatcher does not know this question."""
        return await self._send(_Kind.NEXT, request)

    async def _send(self, kind: _Kind, request: BaseModel, capability: str = "") -> Any:
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(kind, request.model_dump_json().encode(), answer, capability))
        if len(self._under_way) < LANES:
            self._under_way.add(asyncio.create_task(self._send_all()))
        return await answer

    async def close(self) -> None:
        """Give up what is under way."""
        for lane in list(self._under_way):
            lane.cancel()
        for each in self._waiting:
            each.answer.cancel()
        self._waiting = []

    async def _send_all(self) -> None:
        lane = asyncio.current_task()
        assert lane is not None
        try:
            while calls := self._take():
                try:
                    is_alone = len(calls) == 1 and calls[0].kind is not _Kind.NEXT
                    if is_alone or not await self._send_together(calls):
                        await asyncio.gather(*map(self._send_alone, calls))
                finally:
                    for each in calls:
                        each.answer.cancel()  # Unless it was answered.
        finally:
            # At once, and not in a callback: a call that came before that would wait for nobody.
            self._under_way.discard(lane)

    def _take(self) -> list[_Call]:
        """Take the calls that have waited longest, as many as go together."""
        waiting = [each for each in self._waiting if not each.answer.done()]  # Without those whose caller is gone.
        calls, size = list[_Call](), 0
        for each in waiting[:TOGETHER_MAX]:
            size += len(each.body)
            if calls and size > BYTES_MAX:
                break
            calls.append(each)
        self._waiting = waiting[len(calls) :]
        return calls

    async def _send_together(self, calls: list[_Call]) -> bool:
        """Return whether the calls were answered: one that nobody could understand would spoil it for all."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._alone_until:
            return False
        completions, claims, nexts = ([each for each in calls if each.kind is kind] for kind in _Kind)
        body: dict[str, Any] = {
            "completions": [each.part for each in completions],
            "claims": [each.part for each in claims],
        }
        repeat_body = None
        if nexts:
            body["next"] = [each.part for each in nexts]
            repeat_body = body | {"next": [_repeated(each) for each in nexts]}
        try:
            answer = parse(
                await self._client.send(
                    "POST",
                    "/internal/task-exchange",
                    token=self._worker_token,
                    body=body,
                    repeat_body=repeat_body,
                ),
                ExchangeAnswer,
            )
            results = [*map(_completion_result, answer.completions), *answer.claims, *answer.next]
        except (Unavailable, Contended) as error:
            results = [error] * len(calls)
        except QoError:
            # An older dispatcher, a token that is replaced, or one of them is malformed: the others must not suffer.
            self._alone_until = loop.time() + ALONE_S
            return False
        for each, result in zip([*completions, *claims, *nexts], results, strict=True):
            _deliver(each, result)
        return True

    async def _send_alone(self, call: _Call) -> None:
        headers = {"Content-Type": "application/json"}
        try:
            if call.kind is _Kind.NEXT:
                _deliver(call, None)  # There is no other route: the wake-ups of its tasks lead to them.
            elif call.kind is _Kind.CLAIM:
                path, token = "/internal/task-claim", self._worker_token
                response = await self._client.send("POST", path, token=token, body=call.body, headers=headers)
                status = msgspec.json.decode(response.content, type=_StatusOnly).status
                _deliver(call, parse(response, Claimed if status == "claimed" else NotClaimed))
            else:
                headers[CAPABILITY] = call.capability
                response = await self._client.send("POST", "/v1/task/complete", body=call.body, headers=headers)
                _deliver(call, parse(response, CompleteAnswer))
        except Exception as error:
            _deliver(call, error)


def _completion_result(result: CompletionResult) -> CompleteAnswer | QoError:
    if result.answer is not None:
        return result.answer
    content = b"{}" if result.problem is None else result.problem.model_dump_json().encode()
    return error_from_response(Response("/v1/task/complete", result.status, content))


def _repeated(call: _Call) -> Any:
    return msgspec.json.decode(call.body) | {"repeated": True}


def _deliver(call: _Call, result: Any) -> None:
    if call.answer.done():
        return  # Its caller is gone.
    if isinstance(result, Exception):
        call.answer.set_exception(result)
    else:
        call.answer.set_result(result)
