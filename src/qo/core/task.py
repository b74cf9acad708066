"""The task: one value, one object in the bucket, one version per change.

The fields are those of the stored JSON, documented for users in ``docs/reference/task-format.md``.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from qo.core.struct_preload import preload

Instant = Annotated[datetime, msgspec.Meta(tz=True)]  # A stored time without an offset is a corrupt record.

FORMAT = 1  # Raised when a reader of the old format could no longer understand the new one.


class Status(StrEnum):
    PENDING = "pending"  # Waiting to be claimed.
    RUNNING = "running"  # Held by a worker under a lease.
    COMPLETED = "completed"
    FAILED = "failed"  # Retries are used up, or the failure is permanent: the dead letters.
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # Nobody claimed it before its ``expires_at``.
    ARCHIVED = "archived"  # Put away; left out of listings unless asked for.


ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED, Status.ARCHIVED})

PRIORITY_MAX = 9


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The delay after a failed attempt. See ``core.retry.delay_s``."""

    initial_interval_ms: int = 1_000
    max_interval_ms: int = 60_000
    multiplier: float = 2.0
    jitter_percent: float = 0.25  # 0.25 spreads the delay over ±25 %.


class OnDependencyFailure(StrEnum):
    """What becomes of a waiting task when a task that it depends on ends without having completed."""

    CANCEL = "cancel"
    RUN = "run"  # It runs all the same.


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """How a task is connected with others. The rules are in ``core.waits``."""

    depends_on: tuple[str, ...] = ()  # The ids of the tasks that it depends on, in the order given.
    on_dependency_failure: OnDependencyFailure = OnDependencyFailure.CANCEL
    waits_for: tuple[str, ...] = ()  # The conditions that are not met yet. With any left, it cannot be claimed.
    dependents: tuple[str, ...] = ()  # The ids of the tasks to look at when this one has ended.
    broken_by: str | None = None  # The dependency for which it was cancelled.
    group: str | None = None  # Tasks of one group run one at a time, in order.
    turn: int = 0  # Which place in the group's line it has, or had: a replayed task gets in line again.


class Task(msgspec.Struct, frozen=True, kw_only=True):
    # Identity
    id: str
    task_type: str
    shard: str  # The first hex characters of the id.
    format: int = FORMAT

    # State
    status: Status = Status.PENDING
    token: str  # Identifies the last write, so that a writer whose reply was lost recognises its own.

    # Scheduling
    available_at: Instant  # Not claimable before.
    expires_at: Instant | None = None  # Not claimable from then on.
    priority: int = 0  # 0 to PRIORITY_MAX; see ``core.keys.ready_minute``.
    lease_expires_at: Instant | None = None

    # Execution. A large value lives in its own object, which the ref names.
    input: Any = None
    input_ref: str | None = None
    output: Any = None
    output_ref: str | None = None

    # Retry
    timeout_seconds: float | None = None  # Of one attempt; None: the default of the handler or its worker.
    max_retries: int = 3
    retry_count: int = 0
    retry_policy: RetryPolicy = RetryPolicy()
    reschedule_count: int = 0
    max_reschedules: int | None = None  # None means without limit.
    deliveries: int = 0  # Claims in a row whose worker never ended the attempt; one that does resets it.
    max_deliveries: int = 5  # After so many such claims the task fails: it is assumed to kill its workers.

    # Timestamps, all by the store's clock
    created_at: Instant
    updated_at: Instant
    completed_at: Instant | None = None

    # Worker assignment
    inbox: str | None = None  # The worker whose inbox has its hint, while it is pending; None: the ready index.
    worker_id: str | None = None
    lease_id: str | None = None
    settled_lease_id: str | None = None  # The last lease whose holder ended its attempt itself.
    attempt: int = 0  # Grows with each claim and never shrinks.

    # Failure
    last_error: str | None = None
    traceback: str | None = None
    on_failure: str | None = None  # The type of the task that is submitted when this one fails for good.
    followed_attempt: int = 0  # The attempt whose final failure has got that task.

    # Cancellation
    cancel_requested: bool = False
    cancelled_by: str | None = None
    cancel_reason: str | None = None

    # Origin and bookkeeping
    idempotency_key: str | None = None
    schedule: str | None = None  # The cron schedule that submitted it.
    archived_from: Status | None = None  # What unarchiving restores.
    progress: Any = None
    traceparent: str | None = None  # W3C trace context of the submitter.
    flow: Flow | None = None  # None: it has nothing to do with other tasks.

    @property
    def waiting(self) -> bool:
        """Whether it is pending, and waits for other tasks."""
        return self.flow is not None and bool(self.flow.waits_for) and self.status is Status.PENDING

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def follow_up_due(self) -> bool:
        """Whether it has failed for good, and the task that ``on_failure`` names is not yet known to be submitted."""
        if self.on_failure is None:
            return False
        return Status.FAILED in (self.status, self.archived_from) and self.followed_attempt < self.attempt


preload(Task)
