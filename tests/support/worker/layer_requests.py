"""A request for one attempt, as a worker would make it, for tests of layers on their own: it needs no queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from qo.core.task import Task
from qo.worker.api.handler import make_handler
from qo.worker.api.request import Request
from qo.worker.layers.stack import Service
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock
from qo.worker.loop.outcome import Acked, Outcome

AT = datetime(2026, 3, 1, tzinfo=UTC)


async def _nothing(input: Any) -> None:
    pass


HANDLER = make_handler("work", _nothing)


def attempt(name: str = "t1", *, timeout_s: float | None = None, **fields: Any) -> Request:
    """Without the context and the producer that only a handler looks at."""
    task = Task(
        id=name,
        task_type="work",
        shard="0",
        token="-",
        available_at=AT,
        created_at=AT,
        updated_at=AT,
        attempt=1,
        traceparent=fields.pop("traceparent", None),
    )
    return Request(
        task=task,
        handler=fields.pop("handler", HANDLER),
        input=None,
        context=fields.pop("context", None),
        producer=fields.pop("producer", None),
        cancel=CancelToken(),
        clock=Clock(timeout_s),
        worker_id="w1",
        slot=0,
        **fields,
    )


def calling(work: Callable[[Request], Awaitable[Any]]) -> Service:
    """The innermost service: it starts the request, and acknowledges what the work returns."""

    async def call(request: Request) -> Outcome:
        request.start()
        return Acked(await work(request))

    return call
