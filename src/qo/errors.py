"""Every error qo raises, in one tree. Each is named by what the caller can do about it.

    QoError
    ├── UsageError              the call is wrong: fix it
    │   └── ConfigError         a setting is wrong: fix the file, flag or variable it names
    ├── NotFound                there is no such task, schedule, worker or app
    ├── Refused                 the task's state does not allow it: look at the task
    │   ├── LeaseLost           another attempt owns the task now: stop working, write nothing
    │   ├── Cancelled           somebody asked the attempt to stop: end it, and say so
    │   ├── IdempotencyConflict the key was used before for something else: choose another key
    │   └── HeldBack            the source accepts nothing while what it feeds is overfull: try again later
    ├── Unauthenticated         the dispatcher does not know who asks: give it a valid token
    ├── Forbidden               it knows, and the token does not allow this: ask for one that does
    ├── TaskFailed              the task that was waited for did not complete
    ├── StoreError              the store said no
    │   ├── PreconditionFailed  somebody else wrote first: read again
    │   ├── ConcurrentWrite     two writes at one moment, neither may have happened: read again
    │   ├── Unavailable         no answer, or a server error: it may have happened; ask before repeating
    │   ├── AccessDenied        the credentials are missing, wrong or too weak
    │   ├── NoSuchBucket        there is no such bucket
    │   ├── Contended           other writers won every time: back off, then call again
    │   └── Unproven            the bucket has not been proven, or disagrees with the settings: qo doctor
    └── CorruptRecord           an object is not what its key promises: a person must look

Control words that a task handler raises (Retry, Reject, Reschedule) are not errors of qo; they live in
``qo.worker.api.signals``.
"""

from __future__ import annotations


class QoError(Exception):
    """Base of all errors. ``exit_code`` is what the command line ends with."""

    exit_code = 1


class UsageError(QoError):
    exit_code = 2


class ConfigError(UsageError):
    pass


class NotFound(QoError):
    exit_code = 3


class Refused(QoError):
    exit_code = 4


class LeaseLost(Refused):
    pass


class Cancelled(Refused):
    pass


class IdempotencyConflict(Refused):
    pass


class HeldBack(Refused):
    """A source accepts nothing now because what it feeds is overfull. Try again after ``retry_after_s``."""

    retry_after_s = 30


class Unauthenticated(QoError):
    exit_code = 9


class Forbidden(QoError):
    exit_code = 9


class TaskFailed(QoError):
    exit_code = 8


class StoreError(QoError):
    exit_code = 5


class PreconditionFailed(StoreError):
    pass


class ConcurrentWrite(StoreError):
    pass


class Unavailable(StoreError):
    pass


class AccessDenied(StoreError):
    pass


class NoSuchBucket(StoreError):
    pass


class Contended(StoreError):
    pass


class Unproven(StoreError):
    exit_code = 6


class CorruptRecord(QoError):
    exit_code = 7
