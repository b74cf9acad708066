"""The states that the rows of a pipeline can have. The values are stored: they never change."""

from __future__ import annotations

from enum import StrEnum


class EventState(StrEnum):
    PENDING = "pending"  # Not routed yet.
    ROUTED = "routed"  # Its deliveries record the outcome at each reader.
    SUPERSEDED = "superseded"  # A later event, or a removal, made it obsolete before it was routed.
    FILTERED = "filtered"  # No job reads it.


class DeliveryOutcome(StrEnum):
    """The outcome of an event at one of its readers."""

    PENDING = "pending"  # It waits for the other inputs of a join.
    CONSUMED = "consumed"  # It created a task.
    MERGED = "merged"  # Its task existed.
    SUPERSEDED = "superseded"
    FILTERED = "filtered"


class AttemptOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    RETRIED = "retried"
    RELEASED = "released"
    RESCHEDULED = "rescheduled"  # It asked to come back later.
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class CancelCode(StrEnum):
    """Why the dispatcher cancelled a task. A task that a person cancelled has no code, only a reason in words."""

    VERSION_GIVEN_UP = "version_given_up"  # Its version was rolled back or abandoned.
    EFFECTS_MADE = "effects_made"  # An earlier edition of its job had the same effects outside.
    EFFECTS_DEFERRED = (
        "effects_deferred"  # Another edition is about to have the same effects; undecided until it ends.
    )
    EFFECTS_CALLED_OFF = "effects_called_off"  # A person cancelled the task that it was deferred to.


class BulkChangeKind(StrEnum):
    """What happens to all tasks of an edition, a chunk at a time."""

    CANCEL = "cancel"
    REVIVE = "revive"


class EffectKind(StrEnum):
    """How an entry of the outbox is carried out."""

    WAKE = "wake"  # By a message to the queue of a runtime.
    INVOKE = "invoke"  # By a call of a function service.
    RUN = "run"  # By a run inside the dispatcher.


class OutboxState(StrEnum):
    PENDING = "pending"
    DONE = "done"
    DEAD = "dead"  # Given up after too many failures.


class InvalidationReason(StrEnum):
    REPLACED = "replaced"  # A commit replaced what others had read.
    REMOVED = "removed"  # A removal took it away.
    REORG = "reorg"
    CORRECTION = "correction"
    MANUAL = "manual"
    SCHEMA_CHANGE = "schema_change"


class BackfillState(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    CANCELLED = "cancelled"


class BundleState(StrEnum):
    UPLOADING = "uploading"
    FINAL = "final"


class Outcome(StrEnum):
    """How an attempt ended, as it is reported."""

    SUCCESS = "success"
    RETRYABLE = "retryable_error"
    FATAL = "fatal_error"
    CANCELLED = "cancelled"
    RELEASED = "released"  # Not done, but not its fault: does not count as an attempt.
