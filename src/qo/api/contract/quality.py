"""What was expected of data and found, for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.api.contract.body import Answer
from qo.api.contract.task import ColumnBody


class OutputReference(Answer):
    """Of which output of which attempt."""

    dataset: str
    dataset_id: str
    generation_id: str
    partition_key: str | None = None
    cursor: int | None = None
    dag: str
    job: str
    task_id: str
    attempt: int


class CheckAnswer(OutputReference):
    """One expectation, as an attempt has found it."""

    position: int  # Among the checks of the attempt.
    name: str
    kind: str
    severity: str  # fail, warn
    passed: bool
    observed: Any = None  # What was there …
    expected: Any = None  # … and what should have been.
    at: datetime


class ChecksPage(Answer):
    checks: list[CheckAnswer]  # From new to old.
    next: str | None = None  # Pass it as ``before`` for the following page.


class RejectionAnswer(OutputReference):
    """An output that was not good enough. Its files are kept until it is forgotten."""

    output: int
    location: str
    files: list[str] = []
    rows: int | None = None
    bytes: int | None = None
    columns: list[ColumnBody] | None = None
    reason: str
    at: datetime


class RejectionsPage(Answer):
    rejections: list[RejectionAnswer]  # From new to old.
    next: str | None = None  # Pass it as ``before`` for the following page.
