"""Invalidations that people declare."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from qo.api.contract.body import Answer, Body

NUMBER_MAX = 2**63 - 1


class InvalidateRequest(Body):
    """Invalidate a partition, a half-open range, or, with neither, everything; by default in the current generation."""

    dataset: str = Field(min_length=1, max_length=400)  # A published name, dag.job, or dag.job[1].
    generation_id: str | None = Field(default=None, max_length=36)
    partition_key: str | None = Field(default=None, max_length=200)
    start: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    end: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    row_filter: dict[str, Any] | None = None  # Passed to the operators of the readers.
    reason: Literal["reorg", "correction", "manual", "schema_change"] = "manual"
    key: str | None = Field(
        default=None, min_length=1, max_length=200
    )  # Idempotency key: repeated requests with it count once.


class InvalidateAnswer(Answer):
    invalidation_id: str
