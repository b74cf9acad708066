"""Credentials for a bucket, as a task asks for them."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from qo.api.contract.body import Answer
from qo.api.contract.task import Fence


class CredentialsRequest(Fence):
    """The fence is all: what the credentials may do is what the attempt may do."""


class CredentialsAnswer(Answer):
    access_key_id: str
    secret_access_key: str = Field(repr=False)
    session_token: str = Field(repr=False)
    expiration: datetime  # Ask again before it. Never later than the end of the task's token.
    endpoint: str | None = None  # Of the S3-compatible server; unset: AWS.
    region: str
    read_prefixes: list[str] = []
    write_prefixes: list[str] = []
