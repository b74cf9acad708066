"""The options of a new task, checked before anything is written."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from qo.ambient import Ambient
from qo.core import retry, uniqueness, wire
from qo.core.shard import shard_of, validate_task_id
from qo.core.task import PRIORITY_MAX, Flow, OnDependencyFailure, RetryPolicy, Task
from qo.core.uniqueness import Unique
from qo.core.waits import DEPENDENCIES_MAX, GROUP
from qo.core.words import quote
from qo.errors import UsageError
from qo.telemetry.trace import current_traceparent

_KEYED_IDS = uuid.UUID("6f0d2a52-5f0b-5c1e-9a55-6f1b0c2d7e11")  # The name space of ids derived from keys.
TASK_TYPE_LEN_MAX = 200
COUNT_MAX = 1_000_000  # Of retries, reschedules and deliveries.
TIMEOUT_S_MIN = 0.001
TEXT_LEN_MAX = 1_000  # Of names and keys: they are part of every version of the task.
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
    timeout_s: float | None = None  # Of one attempt; None: as the handler and its worker say.
    max_retries: int = 3
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    max_reschedules: int | None = None
    on_failure: str | None = None  # The task type to submit if this task fails for good.
    max_deliveries: int = 5  # Workers in a row that may die while running it, before it fails.
    priority: int = 0
    depends_on: Sequence[str] = ()  # Ids of tasks: it waits until all of them have ended.
    on_dependency_failure: str = (
        OnDependencyFailure.CANCEL
    )  # If one did not complete: "cancel", or "run" all the same.
    group: str | None = None  # Tasks of one group run one at a time, in the order in which they were submitted.
    unique: Unique | None = None  # Not submitted while another one stands for it.
    schedule: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class NewTask:
    task_type: str
    input: Any = None
    options: Options = field(default_factory=Options)


def build(
    new: NewTask, *, now: datetime, prefix_len: int, ambient: Ambient, dependents: Sequence[str] = ()
) -> Task:
    """Build the task as it will first be written. Raises UsageError that names what is wrong with it."""
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
        timeout_seconds=None if options.timeout_s is None else float(options.timeout_s),
        max_retries=options.max_retries,
        retry_policy=options.retry_policy,
        max_reschedules=options.max_reschedules,
        max_deliveries=options.max_deliveries,
        on_failure=options.on_failure,
        created_at=now,
        updated_at=now,
        idempotency_key=options.key,
        schedule=options.schedule,
        traceparent=options.traceparent if options.traceparent is not None else current_traceparent(),
        flow=_flow(task_id, options, dependents),
    )


def _flow(task_id: str, options: Options, dependents: Sequence[str]) -> Flow | None:
    """Return how the new task is connected with others. At first it waits for all that it depends on."""
    if not options.depends_on and not dependents and options.group is None:
        return None
    depends_on = tuple(dict.fromkeys(validate_task_id(each) for each in options.depends_on))
    if len(depends_on) > DEPENDENCIES_MAX:
        raise UsageError(
            f"a task may depend on {DEPENDENCIES_MAX:,} others, not on {len(depends_on):,}: put tasks in between"
        )
    if task_id in depends_on:
        raise UsageError(f"task {task_id} would depend on itself, and never start")
    return Flow(
        depends_on=depends_on,
        on_dependency_failure=OnDependencyFailure(options.on_dependency_failure),
        waits_for=depends_on if options.group is None else (*depends_on, GROUP),
        dependents=tuple(dependents),
        group=options.group,
        turn=0 if options.group is None else 1,
    )


def _task_id(task_type: str, options: Options, ambient: Ambient) -> str:
    """Derive the id from the idempotency key, so that two racing submitters of one key write one object."""
    return ambient.task_id() if options.key is None else keyed_id(task_type, options)


def keyed_id(task_type: str, options: Options) -> str:
    """Return the id that belongs to the options' idempotency key."""
    scope = ("type", task_type) if options.key_scope is None else ("scope", options.key_scope)
    name = wire.encode([*scope, options.key])  # JSON keeps the parts apart, whatever characters they contain.
    return str(uuid.uuid5(_KEYED_IDS, name.decode()))


def _instant(now: datetime, at: datetime | None, in_s: float | None) -> datetime | None:
    return now + timedelta(seconds=in_s) if in_s is not None else at


def check_task(new: NewTask) -> None:
    """Raise UsageError for what is wrong with a task, as far as that can be told without a clock."""
    _check(new.task_type, new.options)


def _check(task_type: str, options: Options) -> None:
    # Types are checked too: msgspec writes whatever it is given, and only a reader would find out.
    _check_kind("a task's options", options, Options)
    check_task_type(task_type)
    if options.on_failure is not None:
        check_task_type(options.on_failure, "on_failure")
    _one_of("at", options.at, "delay_s", options.delay_s)
    _one_of("expires_at", options.expires_at, "expires_in_s", options.expires_in_s)
    check_number("delay_s", options.delay_s, 0, DELAY_S_MAX)
    check_number("expires_in_s", options.expires_in_s, 0, DELAY_S_MAX)
    check_number("timeout_s", options.timeout_s, TIMEOUT_S_MIN, DELAY_S_MAX)
    _check_whole("max_retries", options.max_retries)
    _check_range("max_retries", options.max_retries, 0, COUNT_MAX)
    if options.max_reschedules is not None:
        _check_whole("max_reschedules", options.max_reschedules)
        _check_range("max_reschedules", options.max_reschedules, 0, COUNT_MAX)
    _check_whole("max_deliveries", options.max_deliveries)
    _check_range("max_deliveries", options.max_deliveries, 1, COUNT_MAX)
    _check_whole("priority", options.priority)
    _check_range("priority", options.priority, 0, PRIORITY_MAX)
    _check_instant("at", options.at)
    _check_instant("expires_at", options.expires_at)
    _check_dependencies(options)
    if options.group is not None and not options.group:
        raise UsageError("the name of a group must not be empty")
    if options.unique is not None:
        _check_kind("unique", options.unique, Unique)
        uniqueness.validate(options.unique)
        check_number("for_s", options.unique.for_s, TIMEOUT_S_MIN, DELAY_S_MAX)
        if options.key is not None:
            raise UsageError(
                "give a key or unique, not both: a key always names the same task (Unique has its own key)"
            )
        _check_name("the key of a unique task", options.unique.key)
    for name in ("group", "key", "key_scope", "schedule", "traceparent"):
        _check_name(name, getattr(options, name))
    if options.key is not None and not options.key:
        raise UsageError("an idempotency key must not be empty")
    _check_policy(options.retry_policy)


def _check_dependencies(options: Options) -> None:
    if isinstance(options.depends_on, str):
        raise UsageError("depends_on is a list of task ids, not one id: depends_on=[...]")
    choices = [str(each) for each in OnDependencyFailure]
    if options.on_dependency_failure not in choices:
        raise UsageError(
            f"on_dependency_failure is one of {', '.join(choices)}, not {quote(options.on_dependency_failure)}"
        )


def _check_name(name: str, value: str | None) -> None:
    check_text(name, value)
    if value is not None and len(value) > TEXT_LEN_MAX:
        raise UsageError(f"{name} has {len(value):,} characters: use at most {TEXT_LEN_MAX:,}, a hash of it say")


def check_task_type(task_type: Any, name: str = "task_type") -> None:
    """Raise UsageError unless this can be a task's type."""
    if isinstance(task_type, str) and 0 < len(task_type) <= TASK_TYPE_LEN_MAX and task_type.isprintable():
        return
    raise UsageError(
        f"{name}: a task type is 1 to {TASK_TYPE_LEN_MAX} printable characters, not {_describe(task_type)}"
    )


def _check_policy(policy: RetryPolicy) -> None:
    _check_kind("retry_policy", policy, RetryPolicy)
    _check_whole("the retry policy's initial_interval_ms", policy.initial_interval_ms)
    _check_whole("the retry policy's max_interval_ms", policy.max_interval_ms)
    _check_real("the retry policy's multiplier", policy.multiplier)
    _check_real("the retry policy's jitter_percent", policy.jitter_percent)
    retry.validate(policy)


def _check_instant(name: str, instant: datetime | None) -> None:
    if instant is None:
        return
    _check_kind(name, instant, datetime)
    if instant.tzinfo is None:
        raise UsageError(f"{name} needs a time zone: without one, nobody knows which moment is meant")


def _one_of(first: str, a: object, second: str, b: object) -> None:
    if a is not None and b is not None:
        raise UsageError(f"give {first} or {second}, not both")


def check_number(name: str, value: float | None, low: float, high: float) -> None:
    """Raise UsageError unless the value is None or a number within the bounds."""
    if value is not None:
        _check_range(name, value, low, high)


def check_text(name: str, value: Any) -> None:
    """Raise UsageError unless the value is None or text that UTF-8 can hold."""
    if value is not None:
        require_text(name, value)


def require_text(name: str, value: Any) -> None:
    """Raise UsageError unless the value is text that UTF-8 can hold."""
    _check_kind(name, value, str)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{name} must be text that UTF-8 can hold, not {_describe(value)}") from None


def escape_text(name: str, text: str) -> str:
    """Escape what UTF-8 cannot hold: an error that quotes an undecodable file name must still be recorded."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{name} must be text, not {type(text).__name__}: give str(...) of it")
    return text.encode(errors="backslashreplace").decode()


def _check_range(name: str, value: float, low: float, high: float) -> None:
    _check_real(name, value)
    if not low <= value <= high:  # Also catches NaN, which compares false.
        raise UsageError(f"{name} must be between {low:,.12g} and {high:,.12g}, not {quote(value)}")


def _check_real(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{name} must be a number, not {_describe(value)}")


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name} must be a whole number, not {_describe(value)}")


def _check_kind(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise UsageError(f"{name} must be of type {kind.__name__}, not {_describe(value)}")


def _describe(value: Any) -> str:
    text = ascii(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"
