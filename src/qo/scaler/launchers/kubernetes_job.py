"""The Job that runs one worker on Kubernetes, and what is read from a Job that is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qo.core.pipeline.scaling import WorkerState
from qo.errors import ConfigError
from qo.scaler.launchers.launcher import LaunchedWorker, WorkerSpec

RUNTIME_LABEL, PLACE_LABEL = "qo/runtime", "qo/place"
POD_UID = "POD_UID"
NAME_CHARS_MAX = 50  # Pods add to the name of their Job, and it must fit into a label.
KEPT_S = 86_400  # For so long Kubernetes keeps a Job that has ended, with its log, unless its place is filled.


@dataclass(frozen=True, slots=True)
class JobSettings:
    namespace: str = "default"
    service_account: str | None = None
    config_map: str | None = None
    secret: str | None = None
    ending_s: float = 30.0  # What a worker takes to end beside finishing its tasks.


def check_spec(spec: WorkerSpec) -> None:
    """Raise ConfigError for a runtime that cannot have Jobs."""
    place = f"[runtimes.{spec.runtime}]"
    if spec.image is None:
        raise ConfigError(f"{place}: Kubernetes needs an image: write image = the one that qo is installed in")
    if "_" in spec.runtime or len(spec.runtime) > NAME_CHARS_MAX or spec.runtime.endswith("-"):
        raise ConfigError(
            f"{place}: its Jobs are named after the runtime, and names on Kubernetes have no underscores, end with a "
            f"letter or digit, and have {NAME_CHARS_MAX} characters at most: choose another name"
        )


def job_name(spec: WorkerSpec, place: int) -> str:
    return f"qo-{spec.place_name(place)}"


def render_job(spec: WorkerSpec, settings: JobSettings, place: int) -> dict[str, Any]:
    """Return the manifest of the Job at a place."""
    labels = {
        "app.kubernetes.io/name": "qo-worker",
        "app.kubernetes.io/managed-by": "qo-scaler",
        RUNTIME_LABEL: spec.runtime,
        PLACE_LABEL: str(place),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(spec, place), "namespace": settings.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,  # The scaler replaces what died, at its own pace.
            "completions": 1,
            "parallelism": 1,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod(spec, settings, place)},
        },
    }


def _pod(spec: WorkerSpec, settings: JobSettings, place: int) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,  # A worker does not call the API of Kubernetes.
        # Kubernetes kills it after that; until then it finishes what it runs.
        "terminationGracePeriodSeconds": round(spec.drain_s + settings.ending_s),
        "containers": [_container(spec, settings, place)],
    }
    if settings.service_account is not None:
        pod["serviceAccountName"] = settings.service_account
    return pod


def _container(spec: WorkerSpec, settings: JobSettings, place: int) -> dict[str, Any]:
    options = {
        "--runtime": spec.runtime,
        "--concurrency": str(spec.slots),
        "--id": f"{spec.place_name(place)}-$({POD_UID})",
        "--workers": "1",
        "--idle-timeout": "never",  # The scaler alone decides when it ends.
        "--shutdown-grace-s": f"{spec.drain_s:g}",
    }
    container: dict[str, Any] = {
        "name": "worker",
        "image": spec.image,
        "command": ["qo"],
        "args": ["worker", "run", *(text for pair in options.items() for text in pair)],
        "env": [{"name": POD_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    sources = [("configMapRef", settings.config_map), ("secretRef", settings.secret)]
    if env_from := [{kind: {"name": name}} for kind, name in sources if name is not None]:
        container["envFrom"] = env_from
    resources = {"memory": _quantity(spec.memory), "cpu": None if spec.cpu is None else f"{spec.cpu:g}"}
    if requests := {key: value for key, value in resources.items() if value is not None}:
        container["resources"] = {
            "requests": requests,
            "limits": {k: v for k, v in requests.items() if k == "memory"},
        }
    return container


def _quantity(memory: str | None) -> str | None:
    """Return an amount as Kubernetes writes it: a thousand is a small k there."""
    return f"{memory[:-1]}k" if memory is not None and memory.endswith("K") else memory


def read_job(spec: WorkerSpec, job: Mapping[str, Any]) -> LaunchedWorker | None:
    """Return the worker of a Job; None if the Job fills no place of the runtime."""
    metadata: Mapping[str, Any] = job.get("metadata") or {}
    status: Mapping[str, Any] = job.get("status") or {}
    name = str(metadata.get("name", "")).removeprefix("qo-")
    if (place := spec.place_of(name)) is None:
        return None
    state, detail = WorkerState.READY if status.get("ready") else WorkerState.STARTING, ""
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True" and condition.get("type") in ("Complete", "Failed"):
            state = WorkerState.DEAD
            detail = " ".join(filter(None, (condition.get("reason"), condition.get("message")))) or "it has ended"
    if metadata.get("deletionTimestamp") is not None:
        state = WorkerState.DRAINING
    return LaunchedWorker(name, place, state, str(metadata.get("uid", "")), is_ready_known=True, detail=detail)
