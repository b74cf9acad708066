"""Bodies of the exchange: a worker reports attempts that have ended and claims its next tasks in one call."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from qo.api.contract.body import Answer, Body, Problem
from qo.api.contract.task import Claimed, ClaimRequest, CompleteAnswer, CompleteRequest, NextRequest, NotClaimed

TOGETHER_MAX = 64  # Calls of each kind.

ClaimAnswer = Annotated[Claimed | NotClaimed, Field(discriminator="status")]


class Completion(Body):
    capability_token: str = Field(min_length=1, max_length=10_000)  # Of the attempt.
    completion: CompleteRequest


class ExchangeRequest(BaseModel):
    """Its parts check themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    completions: list[Completion] = Field(default=[], max_length=TOGETHER_MAX)
    claims: list[ClaimRequest] = Field(default=[], max_length=TOGETHER_MAX)
    next: list[NextRequest] = Field(default=[], max_length=TOGETHER_MAX)


class CompletionResult(Answer):
    """What a call of its own would have been answered."""

    status: int  # As of HTTP.
    answer: CompleteAnswer | None = None
    problem: Problem | None = None


class ExchangeAnswer(Answer):
    """Answers in the order of the request."""

    completions: list[CompletionResult]
    claims: list[ClaimAnswer]
    next: list[Claimed | None] = []  # None: the queue has no more.
