"""What can become of a claim: exactly one of these five.

    Acked     the work is done
    Retried   the attempt failed, and the task is tried again
    Dead      no further attempt: no retry is left, it can never succeed, or somebody cancelled it
    Released  given back unharmed: it costs no retry
    Lost      the lease is somebody else's now, or nobody could be told: nothing is written

The worker counts by the same words, and ``claimed == acked + retried + dead + released + lost + held`` always.
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
from qo.worker.observe.secrets import without_secrets

_OURS = str(Path(__file__).parents[2]) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep

ERROR_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 32_000


@dataclass(frozen=True, slots=True)
class Acked:
    """A handler that is told elsewhere how its work went may give this itself, to have a failure counted as one."""

    output: Any = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Retried:
    """The error kept is the real one, with where it came from."""

    error: str
    traceback: str | None = None
    delay_s: float | None = None  # The handler's own wish, instead of the retry policy's.
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


def not_begun() -> Released:
    """What becomes of a claim whose lease is gone before its handler was called."""
    return Released("its lease ran out before it was begun")


Outcome = Acked | Retried | Dead | Released | Lost


class OutcomeError(Exception):
    """Stands for what was raised where it could not be passed on as it was: in a child process, for example."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(getattr(outcome, "error", None) or getattr(outcome, "reason", ""))
        self.outcome = outcome


def outcome_of(error: BaseException) -> Outcome:
    """What an exception of a handler means. CancelledError is for the worker to judge, who knows why it came."""
    match error:
        case OutcomeError():
            return error.outcome
        case Reject():
            # What it was raised from is the error itself; a bare one says all in its text.
            return Dead(text_of(error), None if error.__cause__ is None else traceback_of(error))
        case Retry():
            # A subclass may not have called our __init__.
            return Retried(text_of(error), delay_s=getattr(error, "delay_s", None))
        case Reschedule():
            said = f": {reason}" if (reason := reason_of(error)) else ""
            return Released(f"the handler asked to come back later{said}", error.delay_s, by_handler=True)
        case _:
            return Retried(text_of(error), traceback_of(error))


def given_up() -> bool:
    """Inside a handler's call: whether the worker cancelled it; otherwise something that it waited for was."""
    attempt = asyncio.current_task()
    return attempt is None or attempt.cancelling() > 0


def text_of(error: BaseException) -> str:
    """What to keep of an error, in text that can be written whatever the error is."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # It is the handler's code that runs here.
        text = ""
    if not text or not isinstance(error, (Reject, Retry)):
        text = f"{name}: {text}" if text else name
    return without_secrets(_encodable(text))[:ERROR_CHARS_MAX]


def reason_of(error: Reschedule) -> str | None:
    """Why a handler wants to come back later, in text that can be written."""
    reason = getattr(error, "reason", None)  # A subclass may not have called our __init__.
    return None if reason is None else without_secrets(_encodable(str(reason)))[:ERROR_CHARS_MAX]


def traceback_of(error: BaseException) -> str | None:
    try:
        told = traceback.TracebackException.from_exception(error)
        _begin_with_handler(told)
        return without_secrets(_encodable("".join(told.format())))[-TRACEBACK_CHARS_MAX:]
    except BaseException:
        return None


def _begin_with_handler(told: traceback.TracebackException) -> None:
    """Leave out the calls that led to the handler's own code: they are the same for every error."""
    seen: set[int] = set()
    waiting: list[traceback.TracebackException | None] = [told]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        own = next((at for at, frame in enumerate(each.stack) if _is_handlers(frame.filename)), 0)
        del each.stack[:own]
        waiting += [each.__cause__, each.__context__, *(each.exceptions or ())]


def _is_handlers(filename: str) -> bool:
    """Whether code is neither ours nor Python's nor of a package."""
    inside = filename.startswith((_OURS, _STANDARD, "<frozen "))
    return not inside and not {"site-packages", "dist-packages"} & set(Path(filename).parts)


def _encodable(text: str) -> str:
    """Without the lone surrogates that undecodable file names bring along: UTF-8 has none."""
    return text.encode("utf-8", "replace").decode()
