"""Bundles of code, and the messages between the dispatcher and a running function."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from qo.api.contract.body import Answer, Body
from qo.api.contract.task import Work
from qo.core.pipeline.bundle import ZIP_BYTES_MAX


class CreateBundle(Body):
    """Announce a zip that will be uploaded, by its hash."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=1, le=ZIP_BYTES_MAX)


class BundleAnswer(Answer):
    bundle_id: str
    sha256: str
    state: Literal["uploading", "final"]
    created_at: datetime
    created_by: str
    upload_url: str | None = None  # PUT the zip there; unset: send it to the dispatcher.
    name: str | None = None  # From the manifest, once the bundle is uploaded, as are the others.
    runtime: str | None = None
    entrypoint: str | None = None
    files: int | None = None
    env_allowlist: list[str] = []


class BundleList(Answer):
    bundles: list[BundleAnswer]
    next: str | None = None


class Invocation(Answer):
    """Everything that a function receives. It reports through /v1/task with the token and the fence."""

    task_id: str
    attempt: int
    lease_id: str
    lease_expires_at: datetime
    heartbeat_s: float
    capability_token: str = Field(repr=False)
    dispatcher_url: str
    bundle_url: str | None = Field(
        default=None, repr=False
    )  # Where to fetch the bundle; unset: the dispatcher's /v1/task/bundle.
    bundle_sha256: str = ""  # Of a container: none.
    entrypoint: str = ""
    work: Work
