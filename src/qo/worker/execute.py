"""Running one handler, and turning whatever happens into one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from qo.worker.app import Handler
from qo.worker.context import Context
from qo.worker.signals import Reject, Reschedule, Retry

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


async def execute(handler: Handler, input: Any, context: Context, threads: Executor) -> Outcome:
    """The outcome of one attempt. Raises only CancelledError, when the worker itself gives the attempt up."""
    try:
        return Done(await _call(handler, input, context, threads))
    except Reject as said:
        return Broken(_text(said), permanent=True)
    except Retry as said:
        return Broken(_text(said), delay_s=said.delay_s)
    except Reschedule as said:
        return Later(said.delay_s)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # A handler that calls sys.exit() must not end the worker.
        if isinstance(error, TimedOut):
            return Broken(str(error))
        return Broken(_text(error), traceback="".join(traceback.format_exception(error))[-TRACEBACK_CHARS_MAX:])


class TimedOut(Exception):
    pass


async def _call(handler: Handler, input: Any, context: Context, threads: Executor) -> Any:
    arguments = (input, context) if handler.wants_context else (input,)
    timeout_s = context.task.timeout_seconds
    late = TimedOut(f"timed out after {timeout_s:g} s")
    if handler.is_async:
        return await _within(timeout_s, handler.function(*arguments), late)
    call = partial(contextvars.copy_context().run, handler.function, *arguments)
    future = asyncio.get_running_loop().run_in_executor(threads, call)
    done, _ = await asyncio.wait({future}, timeout=timeout_s)
    if not done:
        future.add_done_callback(lambda gone: gone.cancelled() or gone.exception())
        raise late  # The thread itself cannot be stopped; its result, if one comes, goes nowhere.
    return future.result()


async def _within(timeout_s: float, call: Awaitable[Any], late: TimedOut) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise  # The handler's own timeout, not ours.
        raise late from None


def _text(error: BaseException) -> str:
    name = type(error).__name__
    text = str(error)
    if isinstance(error, (Reject, Retry)):
        return (text or name)[:ERROR_CHARS_MAX]
    return (f"{name}: {text}" if text else name)[:ERROR_CHARS_MAX]
