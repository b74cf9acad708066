"""Removals of partitions, as people decide them."""

from __future__ import annotations

from pydantic import Field

from qo.api.contract.body import Answer, Body

PARTITIONS_MAX = 1000
REASON_MAX = 500


class RemoveRequest(Body):
    """Partitions that are to be no more, in every generation that a live version has."""

    partitions: list[str] = Field(min_length=1, max_length=PARTITIONS_MAX)
    reason: str | None = Field(default=None, max_length=REASON_MAX)
    key: str | None = Field(default=None, min_length=1, max_length=200)  # Sent again with it, it counts once.


class RemovedAnswer(Answer):
    dataset_id: str
    removed: list[str]
    already: list[str]  # Were not there any more.
    task_ids: list[str]  # Of the tasks that stand for the decision.
