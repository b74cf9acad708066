"""Events and their deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.api.contract.body import Answer


class DeliveryAnswer(Answer):
    """The delivery of one event to one reader."""

    dag: str | None = None  # The reader's DAG; None: its definition is gone.
    job: str | None = None
    edition_id: str
    outcome: str  # consumed, merged, superseded, filtered, pending
    reason: str | None = None
    task_id: str | None = None


class EventAnswer(Answer):
    seq: int
    id: str
    dataset_id: str
    generation_id: str
    cursor: int | None = None
    partition_key: str | None = None
    start: int | None = None
    end: int | None = None
    attributes: dict[str, Any] = {}
    producer_task_id: str | None = None
    producer_attempt: int | None = None
    received_at: datetime
    state: str  # pending, routed, superseded, filtered
    reason: str | None = None
    deliveries: list[DeliveryAnswer] = []


class EventsPage(Answer):
    events: list[EventAnswer]  # The newest first.
    next: int | None = None  # Pass it as ``before`` for the following page.


class ReaderCounts(Answer):
    job: str | None = None  # As dag.job; None: its definition is gone.
    edition_id: str
    live: bool  # Whether a live version has it.
    deliveries: dict[str, int]  # By outcome.


class CountsAnswer(Answer):
    """Events of a dataset by state, and deliveries by outcome for each reader. The counts always add up."""

    dataset_id: str
    events: dict[str, int]
    readers: list[ReaderCounts]
    checked: bool = False  # Whether the counters were verified against all rows.
    problems: list[str] = []
