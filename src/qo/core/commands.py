"""The commands that move a task, and why one may be rejected. ``core.lifecycle`` says what each does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from qo.core.task import Status


class Command(msgspec.Struct, frozen=True):
    token: str  # Chosen by the caller, unique; a task that carries it has already obeyed this command.


class Claim(Command, frozen=True):
    lease_id: str
    worker_id: str
    lease_s: float | None = None  # None: the task's own timeout, or LEASE_S if it has none.
    on_failure: str | None = None  # What the worker wants to follow a final failure, unless the task says.


class Held(Command, frozen=True):
    """A command that only the holder of the lease may give."""

    lease_id: str


class Renew(Held, frozen=True):
    lease_s: float | None = None
    progress: Any = None


class Complete(Held, frozen=True):
    output: Any = None
    output_ref: str | None = None
    progress: Any = None  # The final progress; None: unchanged.


class Fail(Held, frozen=True):
    error: str
    unit: float  # In [0, 1): places the retry within its jitter.
    traceback: str | None = None
    permanent: bool = False
    delay_s: float | None = None  # Set by the handler, instead of the policy's delay.
    cancelled: bool = False  # The attempt was stopped because cancellation was requested.


class Reschedule(Held, frozen=True):
    """Run the task again later, without counting a failure."""

    delay_s: float
    reason: str | None = None  # The handler's text, for the record of attempts.


class Release(Held, frozen=True):
    """Give an unfinished task back, to run at once or later. Costs no retry."""

    delay_s: float = 0.0
    error: str | None = None  # Why it was not finished; None: nothing to report.


class Lapse(Command, frozen=True):
    """The lease ran out. Names the lease that was seen, so that a newer one is not affected."""

    lease_id: str | None
    unit: float


class Cancel(Command, frozen=True):
    by: str | None = None
    reason: str | None = None


class Expire(Command, frozen=True):
    pass


class Offer(Command, frozen=True):
    """Take a pending task out of the inbox that it was routed to: any worker may find it from then on."""


class Replay(Command, frozen=True):
    pass


class Archive(Command, frozen=True):
    pass


class Unarchive(Command, frozen=True):
    pass


class FollowUp(Command, frozen=True):
    """The task that follows the final failure of an attempt has been submitted."""

    attempt: int


class AddDependent(Command, frozen=True):
    """Have this task, when it has ended, notify another one that waits for it."""

    task_id: str


class Meet(Command, frozen=True):
    """Wait no longer for these conditions."""

    conditions: tuple[str, ...]


class Break(Command, frozen=True):
    """A dependency ended without having completed: cancel the task that waits for it."""

    dependency: str
    status: Status


class TakeTurn(Command, frozen=True):
    """Wait for the turn before it in the line of its group, instead of for a place."""

    turn: int
    after: str | None  # The condition to wait for; None: nobody is before it.


class Revive(Command, frozen=True):
    """Let a task that was cancelled for a dependency wait for it again."""


class Reason(StrEnum):
    WAITING = "it waits for other tasks"
    TOO_MANY = "too many tasks depend on it"
    NOT_DUE = "it is not due yet"
    PAST_EXPIRY = "it has expired"
    WRONG_STATE = "its state does not allow that"
    LEASE_LOST = "the lease belongs to someone else now"
    LEASE_VALID = "its lease has not run out"


@dataclass(frozen=True, slots=True)
class Rejected:
    reason: Reason
    detail: str
