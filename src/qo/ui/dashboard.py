"""The dashboard of one machine: it serves the page, its store and, if there is one, the dispatcher from one origin.

Another site cannot use a visitor's browser against it: the site cannot sign requests, the checks of Host (against DNS
rebinding) and Origin refuse it, and no reply allows another origin to read it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from qo.errors import NotFound
from qo.http_server.listening import LOOPBACK, listen
from qo.http_server.messages import Head, Reply, Request, body_length
from qo.http_server.server import Server
from qo.store.port import ObjectStore
from qo.ui.access_links import PageCredentials, generate_key
from qo.ui.assets import CONFIG, INDEX, Assets
from qo.ui.data_preview import Previews
from qo.ui.forwarding import ROOT as API
from qo.ui.forwarding import Dispatcher, Forwarding
from qo.ui.gateway import Gateway

BUCKET = "qo"
REGION = "us-east-1"
S3 = "/s3"

# Any port, since an SSH tunnel may use another one; but only the names of loopback.
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?\Z")
_GUARDED = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PLAIN = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}

Queues = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Served:
    """What the dashboard shows. ``queues`` returns the prefixes of the store that hold queues of their own."""

    store: ObjectStore
    queues: Queues
    dispatcher: Dispatcher | None = None
    read_only: bool = False
    worker_health_threshold_s: float | None = (
        None  # Set by operators; None: each worker's heartbeat names its own.
    )
    previews: Previews | None = None  # Reads rows of datasets; None: they are not shown.


class Dashboard:
    """Create it with ``await Dashboard.open(...)``, and close it. The caller closes the store."""

    def __init__(self, served: Served, assets: Assets) -> None:
        key, self._token = generate_key(), secrets.token_urlsafe(30)
        dispatcher = served.dispatcher
        self._served = served
        self._assets = assets
        self._gateway = Gateway(served.store, key, bucket=BUCKET, root=S3, read_only=served.read_only)
        self._forwarding = (
            None
            if dispatcher is None
            else Forwarding(dispatcher, self._token, read_only=served.read_only, previews=served.previews)
        )
        self._server: Server | None = None
        self.credentials = PageCredentials(
            access_key_id=key.access_key,
            secret_access_key=key.secret_key,
            dispatcher_token=self._token if dispatcher is not None else None,
            may_act=not served.read_only,
        )

    @classmethod
    async def open(cls, served: Served, *, port: int = 0, assets: Assets | None = None) -> Dashboard:
        """Serve on a port of loopback; 0: any free one. Raises ConfigError if the port is taken."""
        dashboard = cls(served, assets or Assets())
        remedy = "choose another port with --port"
        listening = listen(f"{LOOPBACK}:{port}", what="the dashboard", remedy=remedy)
        dashboard._server = await Server.open(dashboard.answer, listening, admit=dashboard.admit)
        return dashboard

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.port}"

    @property
    def link(self) -> str:
        """The link that signs in. Whoever has it may do everything that this dashboard may."""
        return f"{self.url}/#c={self.credentials.text()}"

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close()

    async def admit(self, head: Head) -> Reply | None:
        """Return the refusal of a request, before its body is read; None if it may proceed."""
        if (refusal := _refuse_foreign_origin(head)) is not None:
            return refusal
        if _is_store_request(head):
            return await self._gateway.admit(head)
        if (forwarding := self._find_forwarding(head)) is not None:
            return forwarding.admit(head)
        return _refuse_page_request(head)

    async def answer(self, request: Request) -> Reply:
        if (refusal := _refuse_foreign_origin(request)) is not None:
            return refusal
        if _is_store_request(request):
            return await self._gateway.answer(request)
        if (forwarding := self._find_forwarding(request)) is not None:
            return await forwarding.answer(request)
        if (refusal := _refuse_page_request(request)) is not None:
            return refusal
        return await self._page(request, request.headers["host"])

    def _find_forwarding(self, head: Head) -> Forwarding | None:
        return self._forwarding if head.path.startswith(API) else None

    async def _page(self, request: Request, host: str) -> Reply:
        name = request.path.removeprefix("/") or INDEX
        if name == CONFIG:
            body = json.dumps(await self._config(host)).encode()
            return Reply(200, body, {**_GUARDED, "Content-Type": "application/json", "Cache-Control": "no-store"})
        try:
            asset = self._assets.load().get(name)
        except NotFound as error:
            return Reply(503, f"{error}\n".encode(), {**_PLAIN, **_GUARDED})
        if asset is None:
            return Reply(404, b"there is no such file\n", {**_PLAIN, **_GUARDED})
        headers = {**_GUARDED, "Content-Type": asset.content_type, "Cache-Control": asset.cache}
        if asset.packed is not None:
            headers["Vary"] = "Accept-Encoding"
            if "gzip" in request.headers.get("accept-encoding", ""):
                return Reply(200, asset.packed, {**headers, "Content-Encoding": "gzip"})
        return Reply(200, asset.body, headers)

    async def _config(self, host: str) -> dict[str, object]:
        from qo import __version__

        return {
            "endpoint": "",
            "bucket": BUCKET,
            "prefix": "",
            "region": REGION,
            "dispatcher": f"http://{host}" if self._forwarding is not None else None,
            "version": __version__,
            "worker_health_threshold_s": self._served.worker_health_threshold_s,
            "queues": list(await self._served.queues()),
        }


def _is_store_request(head: Head) -> bool:
    return head.path == S3 or head.path.startswith(f"{S3}/")


def _refuse_foreign_origin(head: Head) -> Reply | None:
    host = head.headers.get("host", "")
    if not _HOST.match(host):
        return Reply(
            403, b"the dashboard is served to this machine only: open it as 127.0.0.1 or localhost\n", _PLAIN
        )
    if head.headers.get("origin", f"http://{host}") != f"http://{host}":
        return Reply(403, b"requests from pages of other origins are refused\n", _PLAIN)
    return None


def _refuse_page_request(head: Head) -> Reply | None:
    """Refuse anything but a plain read. The page's files need no credentials, so no body is read for them."""
    if head.method not in ("GET", "HEAD"):
        return Reply(405, b"only GET and HEAD\n", {**_PLAIN, "Allow": "GET, HEAD"})
    if body_length(head.headers):
        return Reply(400, b"a request for a file must not have a body\n", _PLAIN)
    return None
