"""What a submitter may say about a task, checked before anything is written."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from qo.ambient import Ambient
from qo.core import retry
from qo.core.shard import shard_of
from qo.core.task import PRIORITY_MAX, RetryPolicy, Task
from qo.errors import UsageError

_KEYED_IDS = uuid.UUID("6f0d2a52-5f0b-5c1e-9a55-6f1b0c2d7e11")  # The name space of ids derived from keys.
_TASK_TYPE_LEN_MAX = 200
DELAY_S_MAX = 10 * 366 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything optional about a task. Times are the store's; give ``at`` or ``delay_s``, not both."""

    delay_s: float | None = None
    at: datetime | None = None
    expires_in_s: float | None = None
    expires_at: datetime | None = None
    key: str | None = None  # Idempotency: the same key always names the same task.
    key_scope: str | None = None  # Keys are unique within their scope; None: within the task type.
    timeout_s: float = 300.0
    max_retries: int = 3
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_reschedules: int | None = None
    priority: int = 0
    schedule: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class NewTask:
    task_type: str
    input: Any = None
    options: Options = field(default_factory=Options)


def build(new: NewTask, *, now: datetime, prefix_len: int, ambient: Ambient) -> Task:
    """The task as it will first be written; a UsageError that names what is wrong with it."""
    options = new.options
    _check(new.task_type, options)
    task_id = _task_id(new.task_type, options, ambient)
    due = _instant(now, options.at, options.delay_s) or now
    expires = _instant(now, options.expires_at, options.expires_in_s)
    if expires is not None and expires <= max(now, due):
        raise UsageError("the task would expire before it may be claimed: let it expire later or start earlier")
    return Task(
        id=task_id,
        task_type=new.task_type,
        shard=shard_of(task_id, prefix_len),
        token=ambient.token(),
        available_at=max(due, now),
        expires_at=expires,
        priority=options.priority,
        input=new.input,
        timeout_seconds=float(options.timeout_s),
        max_retries=options.max_retries,
        retry_policy=options.retry_policy,
        max_reschedules=options.max_reschedules,
        created_at=now,
        updated_at=now,
        idempotency_key=options.key,
        schedule=options.schedule,
        traceparent=options.traceparent,
    )


def _task_id(task_type: str, options: Options, ambient: Ambient) -> str:
    """A key *is* the id, so that two racing submitters of one key write one object."""
    if options.key is None:
        return ambient.task_id()
    scope = f"type:{task_type}" if options.key_scope is None else f"scope:{options.key_scope}"
    return str(uuid.uuid5(_KEYED_IDS, f"{scope}\n{options.key}"))


def _instant(now: datetime, at: datetime | None, in_s: float | None) -> datetime | None:
    return now + timedelta(seconds=in_s) if in_s is not None else at


def _check(task_type: str, options: Options) -> None:
    if not task_type or len(task_type) > _TASK_TYPE_LEN_MAX or not task_type.isprintable():
        raise UsageError(f"a task type is 1 to {_TASK_TYPE_LEN_MAX} printable characters, not {task_type[:40]!r}")
    _one_of("at", options.at, "delay_s", options.delay_s)
    _one_of("expires_at", options.expires_at, "expires_in_s", options.expires_in_s)
    check_number("delay_s", options.delay_s, 0, DELAY_S_MAX)
    check_number("expires_in_s", options.expires_in_s, 0, DELAY_S_MAX)
    check_number("timeout_s", options.timeout_s, 0.001, DELAY_S_MAX)
    check_number("max_retries", options.max_retries, 0, 1_000_000)
    check_number("max_reschedules", options.max_reschedules, 0, 1_000_000)
    check_number("priority", options.priority, 0, PRIORITY_MAX)
    for name, instant in (("at", options.at), ("expires_at", options.expires_at)):
        if instant is not None and instant.tzinfo is None:
            raise UsageError(f"{name} needs a time zone: without one, nobody knows which moment is meant")
    if options.key is not None and not options.key:
        raise UsageError("an idempotency key must not be empty")
    retry.validate(options.retry_policy)


def _one_of(first: str, a: object, second: str, b: object) -> None:
    if a is not None and b is not None:
        raise UsageError(f"give {first} or {second}, not both")


def check_number(name: str, value: float | None, low: float, high: float) -> None:
    """A UsageError unless the number, if there is one, lies within the bounds."""
    if value is not None and not low <= value <= high:  # Also catches NaN, which compares false.
        raise UsageError(f"{name} must be between {low:g} and {high:g}, not {value}")
