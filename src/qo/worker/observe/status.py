"""A worker's status over HTTP: ``/stats``, ``/metrics``, ``/livez`` and ``/readyz``, which are read-only; and wake-ups.

The server has threads of its own, so that it answers while the worker's event loop is blocked: then it is needed most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from qo.http_server.listening import listen
from qo.http_server.messages import Reply
from qo.http_server.pages import CLIENT_TIMEOUT_S, PageServer, Post, page_reply
from qo.worker.config import WorkerConfig
from qo.worker.loop.state import State
from qo.worker.observe.metrics import CONTENT_TYPE, Metrics
from qo.worker.observe.stats import Stats, StatsSnapshot, is_balanced
from qo.worker.observe.wake_page import build_posts, push_address

LOOP_BLOCKED_S_MAX = 10.0
KEEPER_BLOCKED_S_MAX = 30.0

_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class Health:
    state: State
    loop_beat_s: float  # Seconds since the event loop last turned.
    keeper_beat_s: float  # Seconds since the lease thread last turned.
    all_stuck: bool = False  # Every slot is taken by a handler that was given up, but still runs.


def find_problems(health: Health) -> list[str]:
    """Return the reasons why the worker should be replaced; none while it is healthy."""
    reasons: list[str] = []
    if health.state is State.FAILED:
        reasons.append("the worker has failed: its mailbox died")
    if health.loop_beat_s > LOOP_BLOCKED_S_MAX:
        reasons.append(f"the event loop has been blocked for {health.loop_beat_s:.0f} s")
    if health.keeper_beat_s > KEEPER_BLOCKED_S_MAX:
        reasons.append(f"the lease thread has been blocked for {health.keeper_beat_s:.0f} s")
    if health.all_stuck:
        reasons.append("every slot is stuck in a handler that cannot be stopped")
    return reasons


class StatusServer:
    """Serves the pages. Threads of the server call ``snapshot`` and ``health``, at any moment."""

    def __init__(
        self,
        address: str,
        *,
        snapshot: Callable[[], StatsSnapshot],
        stats: Stats,
        health: Callable[[], Health],
        posts: Mapping[str, Post] | None = None,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        self._address = address
        self._snapshot = snapshot
        self._health = health
        self._posts = posts
        self._client_timeout_s = client_timeout_s
        self._metrics = Metrics(stats, self._read_balanced)
        self._server: PageServer | None = None

    def start(self) -> str:
        """Begin to serve. Return the address as "host:port", with the port that was found for port 0.

        Raises ConfigError if the address cannot be listened on.
        """
        pages = {
            "/livez": self._livez,
            "/metrics": lambda: page_reply(HTTPStatus.OK, self._metrics.exposition(), CONTENT_TYPE),
            "/readyz": self._readyz,
            "/stats": self._stats,
        }
        remedy = "set worker.http to a free address, or to off"
        listening = listen(self._address, what="the worker's status", remedy=remedy)
        self._server = PageServer(listening, pages, posts=self._posts, client_timeout_s=self._client_timeout_s)
        self._server.start()
        return self._server.address

    def stop(self) -> None:
        """Free the port, and disconnect every client. May be repeated."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _stats(self) -> Reply:
        return page_reply(HTTPStatus.OK, msgspec.json.encode(self._read_balanced()) + b"\n", "application/json")

    def _livez(self) -> Reply:
        if reasons := find_problems(self._health()):
            return page_reply(
                HTTPStatus.SERVICE_UNAVAILABLE, "".join(f"{reason}\n" for reason in reasons).encode()
            )
        return page_reply(HTTPStatus.OK, b"ok\n")

    def _readyz(self) -> Reply:
        state = self._health().state
        if state is State.RUNNING:
            return page_reply(HTTPStatus.OK, b"ok\n")
        return page_reply(HTTPStatus.SERVICE_UNAVAILABLE, f"{state.value}\n".encode())

    def _read_balanced(self) -> StatsSnapshot:
        """Return a snapshot between two steps of the event loop, which goes on counting meanwhile."""
        for _ in range(_READS_MAX - 1):
            with suppress(RuntimeError):  # A dictionary grew while it was iterated.
                snapshot = self._snapshot()
                if is_balanced(snapshot.counts):
                    return snapshot
            time.sleep(0.001)
        return self._snapshot()  # Wrong counts are shown, not hidden.


def serve_status(
    config: WorkerConfig,
    *,
    snapshot: Callable[[], StatsSnapshot],
    stats: Stats,
    health: Callable[[], Health],
    take: Callable[[Sequence[str]], None],
    has_room: Callable[[], bool],
) -> tuple[StatusServer, str, str | None]:
    """Start the server of a worker. Return it, where it listens, and where producers send wake-ups: None for nowhere.

    ``take`` and ``has_room`` are those of the page that takes wake-ups.
    """
    posts = build_posts(config, take=take, has_room=has_room)
    server = StatusServer(config.http, snapshot=snapshot, stats=stats, health=health, posts=posts)
    listening = server.start()
    return server, listening, push_address(config, listening)
