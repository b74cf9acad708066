"""Workers as Jobs of Kubernetes, over its HTTP API with the token of a service account.

A Job is named after its place, so a place cannot be filled twice. Draining is deleting in the foreground: the pod gets
SIGTERM and its grace period, and the Job is there, marked as being deleted, until the pod has ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx

from qo.core.pipeline.scaling import WorkerState
from qo.errors import ConfigError
from qo.scaler.launchers.kubernetes_job import (
    RUNTIME_LABEL,
    JobSettings,
    check_spec,
    job_name,
    read_job,
    render_job,
)
from qo.scaler.launchers.launcher import LaunchedWorker, LaunchError, WorkerSpec

TIMEOUT_S = 20.0
PAGE = 500
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiServer:
    url: str
    token_file: Path
    ca_file: Path | None = None


def find_api_server(
    url: str | None,
    token_file: str | None,
    ca_file: str | None,
    environ: Mapping[str, str] = os.environ,
    account: Path = ACCOUNT,
) -> ApiServer:
    """Return the API server of the settings, or of the cluster that this process runs in. Raises ConfigError."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if url is None and host is None:
        raise ConfigError(
            "this process does not run in a Kubernetes cluster: set api_url, token_file and ca_file of the scaling, "
            "or run qo scaler in the cluster"
        )
    host = f"[{host}]" if host is not None and ":" in host else host
    token = account / "token" if token_file is None else Path(token_file)
    authority = account / "ca.crt" if ca_file is None else Path(ca_file)
    if not token.is_file():
        raise ConfigError(f"there is no token of a service account in {token}: set token_file of the scaling")
    if ca_file is not None and not authority.is_file():
        raise ConfigError(f"there is no certificate in {authority}: set ca_file of the scaling to a file")
    return ApiServer(url or f"https://{host}:{port}", token, authority if authority.is_file() else None)


class KubernetesLauncher:
    """Raises ConfigError for a runtime that cannot have Jobs."""

    def __init__(self, spec: WorkerSpec, settings: JobSettings, server: ApiServer) -> None:
        check_spec(spec)
        self._spec, self._settings, self._server = spec, settings, server
        self._client = httpx.AsyncClient(
            base_url=server.url,
            timeout=TIMEOUT_S,
            verify=True if server.ca_file is None else _trust(server.ca_file),
            trust_env=False,
        )
        self._jobs = f"/apis/batch/v1/namespaces/{settings.namespace}/jobs"
        self._pods = f"/api/v1/namespaces/{settings.namespace}/pods"

    async def close(self) -> None:
        await self._client.aclose()

    async def list(self) -> list[LaunchedWorker]:
        params = {"labelSelector": f"{RUNTIME_LABEL}={self._spec.runtime}", "limit": str(PAGE)}
        jobs: list[dict[str, Any]] = []
        while True:
            page: dict[str, Any] = (await self._call("GET", self._jobs, params=params)).json()
            jobs += page.get("items") or []
            about: dict[str, Any] = page.get("metadata") or {}
            if not about.get("continue"):
                break
            params["continue"] = about["continue"]
        return [worker for each in jobs if (worker := read_job(self._spec, each)) is not None]

    async def start(self, place: int) -> bool:
        manifest = render_job(self._spec, self._settings, place)
        if await self._create(manifest):
            return True
        worker = await self._find(job_name(self._spec, place))
        if worker is None or worker.state is not WorkerState.DEAD:
            return False
        await self._delete(worker, "Background")
        return await self._create(manifest)  # Or at the next turn, if Kubernetes has not removed it yet.

    async def drain(self, worker: LaunchedWorker) -> None:
        await self._delete(worker, "Foreground")

    async def kill(self, worker: LaunchedWorker) -> None:
        selector = f"batch.kubernetes.io/controller-uid={worker.uid}"
        await self._call("DELETE", self._pods, params={"labelSelector": selector, "gracePeriodSeconds": "0"})
        await self._delete(worker, "Background")

    async def _create(self, manifest: dict[str, Any]) -> bool:
        response = await self._call("POST", self._jobs, json=manifest, allowed=(HTTPStatus.CONFLICT,))
        return response.status_code != HTTPStatus.CONFLICT

    async def _find(self, name: str) -> LaunchedWorker | None:
        response = await self._call("GET", f"{self._jobs}/{name}", allowed=(HTTPStatus.NOT_FOUND,))
        return None if response.status_code == HTTPStatus.NOT_FOUND else read_job(self._spec, response.json())

    async def _delete(self, worker: LaunchedWorker, propagation: str) -> None:
        """Delete exactly this Job: one that has taken its name meanwhile has another uid, and stays."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": worker.uid},
        }
        missing_statuses = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
        await self._call("DELETE", f"{self._jobs}/qo-{worker.name}", json=options, allowed=missing_statuses)

    async def _call(
        self, method: str, path: str, *, allowed: tuple[int, ...] = (), **options: Any
    ) -> httpx.Response:
        try:
            token = self._server.token_file.read_text().strip()  # Kubernetes replaces it now and then.
            headers = {"authorization": f"Bearer {token}"}
            response = await self._client.request(method, path, headers=headers, **options)
        except (OSError, httpx.HTTPError) as error:
            raise LaunchError(f"Kubernetes at {self._server.url} does not answer: {error!r}") from error
        if response.is_error and response.status_code not in allowed:
            raise LaunchError(f"Kubernetes refused {method} {path}: {response.status_code} {_message(response)}")
        return response


def _message(response: httpx.Response) -> str:
    with suppress(ValueError, AttributeError):
        return str(response.json().get("message", ""))[:500]
    return response.text[:200]


def _trust(ca_file: Path) -> Any:
    import ssl

    return ssl.create_default_context(cafile=str(ca_file))
