"""``POST /wake``: the receiving side of push.

Whoever holds the push token names tasks that are ready; the worker then claims them without polling. Without a valid
signature the answer is 401 and nothing else, before the body is read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus

import msgspec

from qo.core.push import BODY_BYTES_MAX, IDS_MAX, is_address, verify_body, verify_header
from qo.core.shard import validate_task_id
from qo.core.struct_preload import preload
from qo.errors import UsageError
from qo.http_server.messages import Head, Reply, Request
from qo.http_server.pages import Post, page_reply
from qo.queue.wake_client import wake_path
from qo.worker.config import WorkerConfig

log = logging.getLogger(__name__)

ANY_ADDRESS = ("0.0.0.0", "[::]", "::")


class WakeUpBody(msgspec.Struct, frozen=True):
    tasks: list[str] = []


preload(WakeUpBody)


class WakePage:
    """``take`` and ``has_room`` are called on a thread of the status server."""

    def __init__(
        self,
        tokens: Sequence[str],
        worker_id: str,
        *,
        take: Callable[[Sequence[str]], None],
        has_room: Callable[[], bool],
    ) -> None:
        self._tokens = tokens
        self._worker_id = worker_id
        self._take = take
        self._has_room = has_room
        self.post = Post(self._admit, self._answer)

    def _admit(self, head: Head) -> Reply | None:
        if verify_header(self._tokens, self._worker_id, head.headers.get("authorization", "")) is None:
            return _refusal(HTTPStatus.UNAUTHORIZED)
        if int(head.headers.get("content-length", "0")) > BODY_BYTES_MAX:
            return _refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        if not self._has_room():
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE)
        return None

    def _answer(self, request: Request) -> Reply:
        digest = verify_header(self._tokens, self._worker_id, request.headers.get("authorization", ""))
        if digest is None or not verify_body(digest, request.body):
            return _refusal(HTTPStatus.UNAUTHORIZED)
        try:
            requested = msgspec.json.decode(request.body, type=WakeUpBody).tasks[:IDS_MAX]
            task_ids = [validate_task_id(each) for each in requested]
        except (msgspec.MsgspecError, ValueError, RecursionError, UsageError):
            return _refusal(HTTPStatus.BAD_REQUEST)
        self._take(task_ids)
        return Reply(HTTPStatus.NO_CONTENT)


def _refusal(status: HTTPStatus) -> Reply:
    return page_reply(status, f"{status.phrase.lower()}\n".encode())


def build_posts(
    config: WorkerConfig, *, take: Callable[[Sequence[str]], None], has_room: Callable[[], bool]
) -> dict[str, Post]:
    """Return the paths of the status server that take POST: none without a push token. Those of the other queues of the
    process are added when their workers begin: one listener takes the wake-ups of all."""
    if not config.push_tokens:
        return {}
    paths = {} if config.wake_paths is None else config.wake_paths
    page = WakePage(config.push_tokens, config.worker_id, take=take, has_room=has_room)
    paths[wake_path(config.push_place)] = page.post
    return paths


def push_address(config: WorkerConfig, listening: str) -> str | None:
    """Return the address that producers are given, if the worker takes wake-ups."""
    if not config.push_tokens:
        return None
    address = config.push_address or listening
    if address.rpartition(":")[0] in ANY_ADDRESS:
        log.warning("producers cannot wake this worker: %s names no machine; set worker.push_address", address)
        return None
    if not is_address(address):
        log.warning(
            "producers cannot wake this worker: %r is not an IP address and a port, and names are never looked up; set "
            "worker.push_address, as 10.1.2.3:8090",
            address,
        )
        return None
    return address
