"""Tasks, as shown to people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from qo.api.contract.body import Answer, Body


class Superseded(Answer):
    """Why a failed task needs no attention any more."""

    by_task: str | None = None  # The task that did its work.
    version: int | None = None  # Or its version, which was abandoned or replaced, if no live version has its job.
    text: str


class TaskRow(Answer):
    """A task in a list."""

    id: str
    dag: str
    job: str
    status: str
    attempt: int
    partition_key: str | None = None
    cursor: int | None = None
    worker_id: str | None = None
    last_error: str | None = None
    released: bool  # While it is pending: whether its wake-up was sent.
    created_at: datetime
    updated_at: datetime
    superseded: Superseded | None = None  # Of a failed task: why it needs no attention.


class TaskList(Answer):
    tasks: list[TaskRow]
    after: str | None = None  # Continue after it; None: no more.


class AttemptView(Answer):
    attempt: int
    worker_id: str | None = None
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None  # completed, failed, retried, released, rescheduled, timed_out, cancelled
    error: str | None = None  # If it was rescheduled: what it waits for.
    code: str | None = None  # The fingerprint of the code that ran; None: the worker's own code, or not reported.
    packages: list[str] | None = None  # Installed packages that differed from those the version recorded.
    # With whose credentials it read and wrote: attempt, or those of the worker and why (not_minted, off, s3a, files).
    data_access: str | None = None


class ReadView(Answer):
    """What the last attempt read from one input: a partition, a range of cursors, or everything up to a revision."""

    position: int
    dataset_id: str
    generation_id: str
    partition_key: str | None = None
    revision: int | None = None
    cursor_after: int | None = None
    cursor_upto: int | None = None


class CommitView(Answer):
    revision: int
    dataset_id: str
    generation_id: str
    partition_key: str | None = None
    cursor: int | None = None
    location: str | None = None
    rows: int | None = None
    bytes: int | None = None
    replaced_by: int | None = None
    committed_at: datetime


class TaskView(TaskRow):
    """Everything about one task."""

    operator: str
    code: str | None = None  # The fingerprint of its job's code.
    bundle: str | None = None  # The bundle that it runs from; None: it runs the worker's own code.
    queue: str
    edition_id: str
    dedupe_key: str
    event_seq: int | None = None
    dataset_id: str | None = None
    generation_id: str | None = None
    start: int | None = None
    end: int | None = None
    attributes: dict[str, Any] | None = None
    invalidation_id: str | None = None
    available_at: datetime
    lease_expires_at: datetime | None = None
    timeout_seconds: float | None = None
    retry_count: int
    max_retries: int
    rescheduled: int = 0  # How often it was rescheduled; 0 unless its last attempt was.
    reschedule_reason: str | None = None  # What it waits for, as the task reported it.
    traceback: str | None = None
    cancel_requested: bool
    cancelled_by: str | None = None
    cancel_reason: str | None = None
    progress: Any = None
    output: Any = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    attempts: list[AttemptView] = []
    inputs: list[ReadView] = []
    commits: list[CommitView] = []  # The first hundred.


class CancelRequest(Body):
    reason: str | None = Field(default=None, max_length=1000)


class MovedAnswer(Answer):
    task_id: str
    status: str
    changed: bool  # False: it had this status already.
