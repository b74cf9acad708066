"""Tokens of people and workers, which admins create and list."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from qo.api.contract.body import Answer, Body

DAYS_MAX = 3650


class Role(StrEnum):
    """What the holder of a token may do. Each of the first three includes the rights of those before it."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"
    WORKER = "worker"  # May claim tasks, and nothing of the above.
    SCALER = "scaler"  # May see the load of runtimes and report its decisions, and nothing of the above.


Bound = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


class CreateToken(Body):
    name: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")
    role: Role
    ttl_s: float | None = Field(default=None, gt=0, le=DAYS_MAX * 86_400)  # Unset: until it is revoked.
    # Of a worker: it claims tasks of these runtimes and of these queues only. Unset: of all.
    runtimes: list[Bound] | None = Field(default=None, min_length=1, max_length=100)
    queues: list[Bound] | None = Field(default=None, min_length=1, max_length=100)

    @model_validator(mode="after")
    def _check_binding(self) -> Self:
        if self.role is not Role.WORKER and (self.runtimes or self.queues):
            raise ValueError("only a token of the role worker is bound to runtimes and queues")
        return self


class TokenAnswer(Answer):
    id: str
    name: str
    role: Role
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    runtimes: list[str] | None = None  # Of a worker: what it is bound to; unset: all.
    queues: list[str] | None = None


class TokenCreated(TokenAnswer):
    token: str = Field(repr=False)  # Shown only once: only its hash is stored.


class TokenPage(Answer):
    tokens: list[TokenAnswer]
    next: str | None = None  # Pass it as ``after`` for the following page.
