"""The outcome of a claim: exactly one of these five.

    Acked     the work is done
    Retried   the attempt failed, and the task is tried again
    Dead      no further attempt: no retry is left, the task can never succeed, or it was cancelled
    Released  given back unharmed: it costs no retry
    Lost      the lease belongs to another worker, or the store did not answer: nothing is written

The worker counts by the same names, and ``claimed == acked + retried + dead + released + lost + held`` always.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qo.worker.api.signals import Reject, Reschedule, Retry
from qo.worker.observe.secrets import redact_secrets

_QO = str(Path(__file__).parents[2]) + os.sep
_STDLIB = sysconfig.get_path("stdlib") + os.sep

ERROR_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 32_000


@dataclass(frozen=True, slots=True)
class Acked:
    """A handler whose work is reported elsewhere may return this itself, to have a failure counted as one."""

    output: Any = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Retried:
    """``error`` is the handler's own error, and ``traceback`` where it came from."""

    error: str
    traceback: str | None = None
    delay_s: float | None = None  # Chosen by the handler instead of the retry policy.
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Dead:
    error: str
    traceback: str | None = None
    timed_out: bool = False
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    reason: str
    delay_s: float = 0.0
    by_handler: bool = False  # Asked for by the handler: counts towards the task's ``max_reschedules``.
    shed: bool = False  # A layer had no room for it.


@dataclass(frozen=True, slots=True)
class Lost:
    reason: str


def unstarted_outcome() -> Released:
    """Return the outcome of a claim whose lease ran out before its handler was called."""
    return Released("its lease ran out before it was begun")


Outcome = Acked | Retried | Dead | Released | Lost


class OutcomeError(Exception):
    """Carries an outcome as an exception, where the original one could not be passed on: from a child process, say."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(getattr(outcome, "error", None) or getattr(outcome, "reason", ""))
        self.outcome = outcome


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome that an exception of a handler means. CancelledError is not for this function: the worker
    knows why it cancelled."""
    match error:
        case OutcomeError():
            return error.outcome
        case Reject():
            # The traceback is that of the cause; without a cause, the text says everything.
            return Dead(text_of(error), None if error.__cause__ is None else traceback_of(error))
        case Retry():
            # A subclass may not have called our __init__.
            return Retried(text_of(error), delay_s=getattr(error, "delay_s", None))
        case Reschedule():
            detail = f": {reason}" if (reason := reason_of(error)) else ""
            return Released(f"the handler asked to come back later{detail}", error.delay_s, by_handler=True)
        case _:
            return Retried(text_of(error), traceback_of(error))


def is_cancelled_by_worker() -> bool:
    """Whether the worker cancelled the current attempt; if not, something that its handler awaited was cancelled."""
    attempt = asyncio.current_task()
    return attempt is None or attempt.cancelling() > 0


def text_of(error: BaseException) -> str:
    """Return an error as text that can be stored, whatever the error is."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # The handler's own code runs here.
        text = ""
    if not text or not isinstance(error, (Reject, Retry)):
        text = f"{name}: {text}" if text else name
    return redact_secrets(_encodable(text))[:ERROR_CHARS_MAX]


def reason_of(error: Reschedule) -> str | None:
    """Return why a handler wants to come back later, as text that can be stored."""
    reason = getattr(error, "reason", None)  # A subclass may not have called our __init__.
    return None if reason is None else redact_secrets(_encodable(str(reason)))[:ERROR_CHARS_MAX]


def traceback_of(error: BaseException) -> str | None:
    try:
        summary = traceback.TracebackException.from_exception(error)
        _drop_frames_before_handler(summary)
        first = redact_secrets(_encodable(_user_frames_text(summary)))[: TRACEBACK_CHARS_MAX // 4]
        whole = redact_secrets(_encodable("".join(summary.format())))
        return first + whole[len(first) - TRACEBACK_CHARS_MAX :]
    except BaseException:
        return None


def _drop_frames_before_handler(summary: traceback.TracebackException) -> None:
    """Leave out the calls that led to the handler's own code: they are the same for every error."""
    visited: set[int] = set()
    pending: list[traceback.TracebackException | None] = [summary]
    while pending:
        current = pending.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        first = next((at for at, frame in enumerate(current.stack) if is_user_code(frame.filename)), 0)
        del current.stack[:first]
        pending += [current.__cause__, current.__context__, *(current.exceptions or ())]


def _user_frames_text(summary: traceback.TracebackException) -> str:
    """Return the frames of the user's own code, if a traceback ends deep in the code of others; otherwise nothing."""
    visited: set[int] = set()
    current: traceback.TracebackException | None = summary
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        frames = [frame for frame in current.stack if is_user_code(frame.filename)]
        if frames:
            if frames[-1] is current.stack[-1]:
                return ""  # It is what one sees at the end, anyway.
            places = "".join(traceback.StackSummary.from_list(frames).format())
            return f"In your code (most recent call last):\n{places}\nIn full:\n"
        current = current.__cause__ or current.__context__
    return ""


def is_user_code(filename: str) -> bool:
    """Whether a file belongs neither to qo nor to Python nor to an installed package."""
    inside = filename.startswith((_QO, _STDLIB, "<frozen "))
    return not inside and not {"site-packages", "dist-packages"} & set(Path(filename).parts)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which come from undecodable file names and cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()
