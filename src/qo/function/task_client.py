"""The calls of a running function to its dispatcher, with the capability of its attempt. They block.

Only the standard library is used: a cold start in AWS Lambda waits for every import.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from qo.core.pipeline.bundle import ZIP_BYTES_MAX
from qo.core.redaction import redact
from qo.errors import Forbidden, LeaseLost, NotFound, QoError, Refused, Unauthenticated, Unavailable, UsageError

CAPABILITY = "X-Qo-Task-Capability"
TIMEOUT_S = 10.0  # For one response.
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 5.0
PATIENCE_S = 20.0  # How long a dispatcher, or a bucket, may be away.
_BUSY = frozenset({408, 429})
_ERRORS: Mapping[int, type[QoError]] = {401: Unauthenticated, 403: Forbidden, 404: NotFound, 409: Refused}


class _NoRedirect(HTTPRedirectHandler):
    """A redirect would carry the capability elsewhere."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


_opener = build_opener(ProxyHandler({}), _NoRedirect)


class TaskClient:
    """The task API for one attempt. All calls raise Unavailable when patience runs out, LeaseLost for an attempt that
    is over, another QoError for a refusal. Safe to use from several threads."""

    def __init__(self, url: str, capability: str, fence: Mapping[str, Any]) -> None:
        self._url, self._fence = url.rstrip("/"), dict(fence)
        self._capability = capability
        self._lock = threading.Lock()

    def heartbeat(self, patience_s: float) -> bool:
        """Renew the lease, and the capability if it is about to expire; return whether the attempt is to stop."""
        answer = self._call("POST", "/v1/task/heartbeat", self._fence, patience_s=patience_s)
        if answer.get("capability_token"):
            with self._lock:
                self._capability = answer["capability_token"]
        return bool(answer.get("cancel_requested"))

    def complete(self, report: Mapping[str, Any], patience_s: float) -> None:
        """Report the end of the attempt. Repeating a report whose answer was lost changes nothing."""
        self._call("POST", "/v1/task/complete", {**self._fence, **report}, patience_s=patience_s)

    def inputs(self, position: int) -> dict[str, Any]:
        """Return the first page of the pieces of an input."""
        return self._call("GET", "/v1/task/inputs?" + urlencode({"position": position}))

    def bundle(self) -> bytes:
        """Return the zip of the attempt's bundle."""
        return _send(self._request("GET", "/v1/task/bundle", None), PATIENCE_S)

    def _call(
        self, method: str, path: str, body: Any = None, *, patience_s: float | None = None
    ) -> dict[str, Any]:
        return json.loads(_send(self._request(method, path, body), patience_s or PATIENCE_S))

    def _request(self, method: str, path: str, body: Any) -> Request:
        with self._lock:
            headers = {CAPABILITY: self._capability}
        encoded = None if body is None else json.dumps(body).encode()
        if encoded is not None:
            headers["Content-Type"] = "application/json"
        return Request(self._url + path, encoded, headers, method=method)


def fetch(url: str) -> bytes:
    """Return the zip at a presigned link. Raises as the calls of ``TaskClient``; the link is in no error."""
    return _send(Request(url), PATIENCE_S)


def _send(request: Request, patience_s: float) -> bytes:
    """Send a request until it is answered. Every call here may be repeated."""
    give_up, wait_s = time.monotonic() + patience_s, FIRST_BACKOFF_S
    while True:
        try:
            return _send_once(request)
        except Unavailable:
            if time.monotonic() + wait_s > give_up:
                raise
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, LONGEST_BACKOFF_S)


def _send_once(request: Request) -> bytes:
    try:
        with _opener.open(request, timeout=TIMEOUT_S) as response:
            content = response.read(ZIP_BYTES_MAX + 1)
    except HTTPError as error:
        with error:
            raise _translate(error.code, error.read(100_000)) from None
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(redact(f"{request.host} does not answer: {reason}")) from None
    if len(content) > ZIP_BYTES_MAX:
        raise UsageError(f"{request.host} answered with more than {ZIP_BYTES_MAX} bytes")
    return content


def _translate(status: int, content: bytes) -> QoError:
    """Return the error that a response stands for."""
    try:
        problem: dict[str, Any] = json.loads(content)
        code, text = problem["code"], "; ".join([problem["error"], *problem.get("detail", ())])
    except (ValueError, LookupError, TypeError):
        code, text = "", f"the answer was HTTP {status}"
    if code == "lease_lost":
        return LeaseLost(text)
    if status >= 500 or status in _BUSY:
        return Unavailable(text)
    return _ERRORS.get(status, UsageError)(text)
