"""Pages by path, served by an event loop on a thread of its own, so that they are answered although the rest of the
process is busy or blocked."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from qo.http_server.listening import address_of
from qo.http_server.messages import Head, Reply, Request
from qo.http_server.server import Limits, Server

log = logging.getLogger(__name__)

THREADS_MAX = 16
THREAD_WAIT_S = 1.0
LAST_READ_S = 0.01
CLIENT_TIMEOUT_S = 5.0
TEXT = "text/plain; charset=utf-8"

Page = Callable[[], Reply]


@dataclass(frozen=True, slots=True)
class Post:
    """A path that takes POST. ``admit`` sees the head before the body is read, and returns a refusal or None; then
    ``answer`` gets the whole request. Both are called on the server's event loop, and must not block."""

    admit: Callable[[Head], Reply | None]
    answer: Callable[[Request], Reply]


def page_reply(status: int, body: bytes, content_type: str = TEXT, **headers: str) -> Reply:
    """Return a reply that must not be cached."""
    return Reply(status, body, {"Content-Type": content_type, "Cache-Control": "no-store", **headers})


class PageServer:
    """Answers GET and HEAD by calling the page of the path, each call on a thread of its own, and POST.

    A page that hangs therefore delays no other one. At most THREADS_MAX run at a time; a client that gets none within
    THREAD_WAIT_S is asked to come back. Each connection serves one request.
    """

    def __init__(
        self,
        listening: socket.socket,
        pages: Mapping[str, Page],
        *,
        posts: Mapping[str, Post] | None = None,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        self._listening = listening
        self._pages = pages
        self._posts: Mapping[str, Post] = {} if posts is None else posts  # Its owner may add to it meanwhile.
        self._limits = Limits(idle_s=client_timeout_s, step_s=client_timeout_s, keep_alive=False)
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="qo-pages", daemon=True)
        self._threads = asyncio.Semaphore(THREADS_MAX)
        self.address = address_of(listening)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Free the port, and disconnect every client. Call it once, from any other thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await Server.open(self._answer_post, self._listening, admit=self._admit, limits=self._limits)
        await self._stopping.wait()
        await asyncio.sleep(LAST_READ_S)  # To close with something unread would reset the connection.
        await server.close()

    async def _admit(self, head: Head) -> Reply | None:
        """Every request is answered from its head, so that no body is kept, except for a POST that is admitted."""
        if head.method == "POST" and (post := self._posts.get(head.path)) is not None:
            return post.admit(head)
        return await self._reply_to(head)

    async def _answer_post(self, request: Request) -> Reply:
        return self._posts[request.path].answer(request)

    async def _reply_to(self, head: Head) -> Reply:
        if head.method not in ("GET", "HEAD"):
            return page_reply(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD\n", Allow="GET, HEAD")
        if (page := self._pages.get(head.path)) is None:
            return page_reply(HTTPStatus.NOT_FOUND, f"there is only: {' '.join(self._pages)}\n".encode())
        try:
            async with asyncio.timeout(THREAD_WAIT_S):
                await self._threads.acquire()
        except TimeoutError:
            busy = b"too many requests at a time\n"
            return page_reply(HTTPStatus.SERVICE_UNAVAILABLE, busy, **{"Retry-After": "1"})
        return await self._call(head.path, page)

    async def _call(self, path: str, page: Page) -> Reply:
        """Call a page on a new thread, which gives its permit back at its end, however late that is."""
        result: asyncio.Future[Reply] = self._loop.create_future()

        def call() -> None:
            try:
                reply = page()
            except Exception:
                log.exception("cannot answer %r", path)
                reply = page_reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"this went wrong; the log says why\n")
            with suppress(RuntimeError):  # The loop is closed: the server was stopped meanwhile.
                self._loop.call_soon_threadsafe(finish, reply)

        def finish(reply: Reply) -> None:
            self._threads.release()
            if not result.done():
                result.set_result(reply)

        # Not a thread pool: the interpreter waits for the threads of a pool at exit, however long they hang.
        thread = threading.Thread(target=call, name="qo-page", daemon=True)
        try:
            thread.start()
        except BaseException:
            self._threads.release()
            raise
        return await result
