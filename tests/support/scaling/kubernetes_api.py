"""A server that stands in for the API of Kubernetes: Jobs and pods of one namespace, as far as a launcher uses them.

It is as strict as the real one where that matters: it checks the token, validates what it is sent against the official
schemas, refuses a name that is taken, and deletes under preconditions.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

VERSIONS = ("1.29", "1.33", "1.36")
TOKEN = "the-token-of-the-service-account"
_JOBS = re.compile(r"/apis/batch/v1/namespaces/([^/]+)/jobs(?:/([^/]+))?\Z")
_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods\Z")


def check_schema(document: dict[str, Any]) -> None:
    """Raise for a document that one of the versions does not know, or that has a field too many."""
    for version in VERSIONS:
        kubernetes_validate.validate(document, version, strict=True)


class Cluster:
    """The Jobs. ``settle`` and the like do what the controllers of a cluster would."""

    def __init__(self, namespace: str = "shop") -> None:
        self.namespace = namespace
        self.jobs: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.killed: list[str] = []  # The selectors of pods that were deleted at once.
        self.page = 500
        self._uids = 0

    def create(self, job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        check_schema(job)
        name = job["metadata"]["name"]
        if name in self.jobs:
            return 409, _status(f'jobs.batch "{name}" already exists')
        self._uids += 1
        self.jobs[name] = {
            **job,
            "metadata": {**job["metadata"], "uid": f"uid-{self._uids}"},
            "status": {"active": 1},
        }
        return 201, self.jobs[name]

    def delete(self, name: str, options: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        assert {*options} == {"apiVersion", "kind", "propagationPolicy", "preconditions"}
        job = self.jobs.get(name)
        if job is None:
            return 404, _status(f'jobs.batch "{name}" not found')
        if options["preconditions"]["uid"] != job["metadata"]["uid"]:
            return 409, _status("the UID in the precondition does not match")
        if options["propagationPolicy"] == "Foreground":
            job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        else:
            del self.jobs[name]
        return 200, _status("deleted")

    def list(self, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        key, _, value = query["labelSelector"][0].partition("=")
        found = [job for _, job in sorted(self.jobs.items()) if job["metadata"]["labels"].get(key) == value]
        begin = int(query.get("continue", ["0"])[0])
        end = begin + min(self.page, int(query["limit"][0]))
        more = {"continue": str(end)} if end < len(found) else {}
        return 200, {"kind": "JobList", "apiVersion": "batch/v1", "metadata": more, "items": found[begin:end]}

    def get(self, name: str) -> tuple[int, dict[str, Any]]:
        return (200, self.jobs[name]) if name in self.jobs else (404, _status("not found"))

    def settle(self, name: str, **status: Any) -> None:
        self.jobs[name]["status"] = status

    def fail(self, name: str, reason: str) -> None:
        self.settle(name, conditions=[{"type": "Failed", "status": "True", "reason": reason}])

    def end_pods(self) -> None:
        """The pods of Jobs that are being deleted have ended."""
        self.jobs = {n: job for n, job in self.jobs.items() if "deletionTimestamp" not in job["metadata"]}


def _status(message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "message": message}


class _Handler(BaseHTTPRequestHandler):
    cluster: Cluster

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_GET  # noqa: N815 - as the base class calls them.

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            code, document = self._route(body)
        except (AssertionError, KeyError, kubernetes_validate.ValidationError) as error:
            code, document = 400, _status(f"{type(error).__name__}: {error}")
        text = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _route(self, body: Any) -> tuple[int, dict[str, Any]]:
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            return 401, _status("Unauthorized")
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        self.cluster.calls.append((self.command, parts.path))
        if (match := _JOBS.match(parts.path)) is not None:
            assert match[1] == self.cluster.namespace
            match self.command, match[2]:
                case "POST", None:
                    return self.cluster.create(body)
                case "GET", None:
                    return self.cluster.list(query)
                case "GET", name:
                    return self.cluster.get(name)
                case "DELETE", name if name is not None:
                    return self.cluster.delete(name, body)
        if _PODS.match(parts.path) and self.command == "DELETE":
            assert query["gracePeriodSeconds"] == ["0"]
            self.cluster.killed.append(query["labelSelector"][0])
            return 200, _status("deleted")
        return 403, _status(f"forbidden: {self.command} {parts.path}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(cluster: Cluster) -> Generator[str]:
    """Serve the cluster; yield its address."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
