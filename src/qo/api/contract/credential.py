"""Credentials of a bucket, requested by a running task."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from qo.api.contract.body import Answer
from qo.api.contract.task import Fence


class CredentialsRequest(Fence):
    """Request credentials with the rights of the attempt that the fence names."""


class CredentialsAnswer(Answer):
    access_key_id: str
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)
    expiration: datetime  # Request new ones before it. Never later than the expiry of the task's token.
    endpoint: str | None = None  # URL of the S3-compatible server; unset: AWS.
    region: str
    read_prefixes: list[str] = []
    write_prefixes: list[str] = []
