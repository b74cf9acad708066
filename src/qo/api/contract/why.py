"""The answer to "why is this partition there, or not?"."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from qo.api.contract.body import Answer
from qo.api.contract.dataset import FreshnessState, StaleInput
from qo.api.contract.sink import SinkState


class Verdict(StrEnum):
    THERE = "there"
    UNDER_WAY = "under_way"  # It will be built: wait.
    BLOCKED = "blocked"  # It needs an operator: see ``do``.
    UNKNOWN = "unknown"  # No event ever announced it.


class StepKind(StrEnum):
    EVENT = "event"
    DELIVERY = "delivery"
    TASK = "task"
    COMMIT = "commit"
    CHECK = "check"  # Data failed an expectation.
    MISSING = "missing"


class Step(Answer):
    kind: StepKind
    text: str
    dataset: str | None = None
    job: str | None = None
    partition_key: str | None = None
    cursor: int | None = None
    event_seq: int | None = None
    event_id: str | None = None
    task_id: str | None = None
    revision: int | None = None
    at: datetime | None = None


class WhyAnswer(Answer):
    target: str
    dataset: str
    dataset_id: str
    generation_id: str | None = None
    partition_key: str | None = None
    cursor: int | None = None
    verdict: Verdict
    steps: list[Step] = []  # From the source downstream.
    blocked_by: str | None = None
    do: str | None = None  # What to do about it.
    stale: bool = False  # It exists, but was built from inputs that have changed since.
    stale_inputs: list[StaleInput] = []  # The inputs that have changed.
    sinks: list[SinkState] = []  # Tables outside that follow the dataset, and how far they are.
    freshness: list[FreshnessState] = []  # Of a whole dataset: how fresh it is by the clock.
    lines: list[str] = []  # The same as lines to print.
