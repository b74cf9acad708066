"""Running one handler, and turning whatever happens into one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from qo.worker.app import Handler
from qo.worker.context import Context
from qo.worker.signals import Reject, Reschedule, Retry
from qo.worker.threads import Threads

ERROR_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 32_000


@dataclass(frozen=True, slots=True)
class Done:
    output: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """The attempt failed. The error kept is the real one, with where it came from."""

    error: str
    traceback: str | None = None
    permanent: bool = False
    delay_s: float | None = None


@dataclass(frozen=True, slots=True)
class Later:
    delay_s: float


Outcome = Done | Broken | Later


async def execute(handler: Handler, input: Any, context: Context, threads: Threads) -> Outcome:
    """The outcome of one attempt. Raises CancelledError when the worker itself gives the attempt up."""
    try:
        return Done(await _call(handler, input, context, threads))
    except Reject as said:
        return Broken(text_of(said), permanent=True)
    except Retry as said:
        # A subclass may not have called our __init__.
        return Broken(text_of(said), delay_s=getattr(said, "delay_s", None))
    except Reschedule as said:
        return Later(said.delay_s)
    except TimedOut as late:
        return Broken(str(late))
    except BaseException as error:  # A handler that calls sys.exit() must not end the worker.
        if isinstance(error, asyncio.CancelledError) and _given_up():
            raise
        return Broken(text_of(error), traceback=traceback_of(error))


class TimedOut(Exception):
    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"timed out after {round(timeout_s, 3):g} s")


def _given_up() -> bool:
    """Whether the worker cancelled this attempt; otherwise something that the handler waited for was."""
    attempt = asyncio.current_task()
    return attempt is None or attempt.cancelling() > 0


async def _call(handler: Handler, input: Any, context: Context, threads: Threads) -> Any:
    arguments = (input, context) if handler.wants_context else (input,)
    timeout_s = context.task.timeout_seconds
    if handler.is_async:
        return await _within(timeout_s, handler.function(*arguments), context)
    call = threads.start(partial(contextvars.copy_context().run, handler.function, *arguments))
    try:
        await asyncio.wait({call}, timeout=timeout_s)
    finally:
        if not call.done():
            threads.leave(call, context.task_id)
    if not call.done():
        raise TimedOut(timeout_s)
    output, error = call.result()
    if error is not None:
        raise error
    return output


async def _within(timeout_s: float, call: Awaitable[Any], context: Context) -> Any:
    begun = asyncio.get_running_loop().time()
    context.limit = limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise  # The handler's own timeout, not ours.
        raise TimedOut((limit.when() or begun) - begun) from None


def text_of(error: BaseException) -> str:
    """What to keep of an error, in text that can be written whatever the error is."""
    name = type(error).__name__
    try:
        text = str(error)
    except BaseException:  # It is the handler's code that runs here.
        text = ""
    if not text or not isinstance(error, (Reject, Retry)):
        text = f"{name}: {text}" if text else name
    return _encodable(text)[:ERROR_CHARS_MAX]


def traceback_of(error: BaseException) -> str | None:
    try:
        return _encodable("".join(traceback.format_exception(error)))[-TRACEBACK_CHARS_MAX:]
    except BaseException:
        return None


def _encodable(text: str) -> str:
    """Without the lone surrogates that undecodable file names bring along: UTF-8 has none."""
    return text.encode("utf-8", "replace").decode()
