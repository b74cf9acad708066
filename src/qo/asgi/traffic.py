"""Counts and durations of requests, by operation and status."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qo.ambient import SYSTEM, Ambient

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
UNKNOWN = "unknown"  # A path without a route. Callers choose those, so they share one label.


@dataclass(slots=True)
class Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class Traffic:
    """The requests of one process. Written by its event loop only; any thread may read."""

    answers: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    durations: dict[str, Durations] = field(default_factory=dict[str, Durations])

    def add(self, operation: str, status: int, seconds: float) -> None:
        key = (operation, status)
        self.answers[key] = self.answers.get(key, 0) + 1
        self.durations.setdefault(operation, Durations()).add(seconds)


class TrafficMiddleware:
    """ASGI middleware that counts requests, the outermost."""

    def __init__(self, app: ASGIApp, *, traffic: Traffic, ambient: Ambient = SYSTEM) -> None:
        self._app = app
        self._traffic = traffic
        self._ambient = ambient

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # What a server sends for an app that ends without a response.
        began = self._ambient.monotonic()

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            operation = getattr(scope.get("route"), "operation_id", None) or UNKNOWN
            self._traffic.add(operation, status, self._ambient.monotonic() - began)
