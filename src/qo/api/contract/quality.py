"""Results of data quality checks, and rejected outputs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from qo.api.contract.body import Answer
from qo.api.contract.task import ColumnBody


class OutputReference(Answer):
    """The output, and the attempt that wrote it."""

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
    """The result of one expectation in an attempt."""

    position: int  # Among the checks of the attempt.
    name: str
    kind: str
    severity: str  # fail, warn
    passed: bool
    observed: Any = None  # The value in the data …
    expected: Any = None  # … and the value that the expectation requires.
    at: datetime


class ChecksPage(Answer):
    checks: list[CheckAnswer]  # From new to old.
    next: str | None = None  # Pass it as ``before`` for the following page.


class RejectionAnswer(OutputReference):
    """An output that failed its expectations. Its files are kept until it is forgotten."""

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
