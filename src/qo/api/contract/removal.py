"""Removals of partitions."""

from __future__ import annotations

from pydantic import Field

from qo.api.contract.body import Answer, Body

PARTITIONS_MAX = 1000
REASON_MAX = 500


class RemoveRequest(Body):
    """Remove partitions from every generation that a live version uses."""

    partitions: list[str] = Field(min_length=1, max_length=PARTITIONS_MAX)
    reason: str | None = Field(default=None, max_length=REASON_MAX)
    key: str | None = Field(
        default=None, min_length=1, max_length=200
    )  # Idempotency key: repeated requests with it count once.


class RemovedAnswer(Answer):
    dataset_id: str
    removed: list[str]
    already: list[str]  # Partitions that did not exist any more.
    task_ids: list[str]  # The tasks that record the removal.
