"""Bundles of code, and the messages between the dispatcher and a running function."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import Field

from qo.api.contract.body import Answer, Body
from qo.api.contract.task import EventBody, Outcome, OutputBody, Work
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
    runtime: str | None = None  # From the manifest, once the bundle is uploaded.
    entrypoint: str | None = None
    files: int | None = None


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
    )  # Where to fetch the bundle; unset: it is unpacked already.
    bundle_sha256: str
    entrypoint: str
    work: Work


class FunctionReply(Body):
    """The one JSON object that a function writes to its standard output. ``{}`` is success."""

    display_fields: ClassVar[frozenset[str]] = frozenset({"error", "result"})

    outcome: Literal[Outcome.SUCCESS, Outcome.RETRYABLE, Outcome.FATAL] = Outcome.SUCCESS
    outputs: list[OutputBody] = Field(default=[], max_length=1000)
    events: list[EventBody] = Field(default=[], max_length=1000)
    error: str | None = Field(default=None, max_length=20_000)
    retry_after_s: float | None = Field(default=None, ge=0, le=86_400)
    result: Any = None
