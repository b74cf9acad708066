"""Running one handler, and turning whatever happens into one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable, Callable
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
    except TimedOut as late:
        return Broken(str(late))
    except BaseException as error:  # A handler that calls sys.exit() must not end the worker.
        if isinstance(error, asyncio.CancelledError) and _given_up():
            raise
        return Broken(_text(error), traceback="".join(traceback.format_exception(error))[-TRACEBACK_CHARS_MAX:])


class TimedOut(Exception):
    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"timed out after {round(timeout_s, 3):g} s")


def _given_up() -> bool:
    """Whether the worker cancelled this attempt; otherwise something that the handler waited for was."""
    attempt = asyncio.current_task()
    return attempt is None or attempt.cancelling() > 0


async def _call(handler: Handler, input: Any, context: Context, threads: Executor) -> Any:
    arguments = (input, context) if handler.wants_context else (input,)
    timeout_s = context.task.timeout_seconds
    if handler.is_async:
        return await _within(timeout_s, handler.function(*arguments), context)
    call = partial(_caught, partial(contextvars.copy_context().run, handler.function, *arguments))
    future = asyncio.get_running_loop().run_in_executor(threads, call)
    done, _ = await asyncio.wait({future}, timeout=timeout_s)
    if not done:
        raise TimedOut(timeout_s)  # The thread itself cannot be stopped; its result, if one comes, goes nowhere.
    output, error = future.result()
    if error is not None:
        raise error
    return output


def _caught(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What a function gave or raised, as a value: a future does not carry every exception as it was."""
    try:
        return function(), None
    except BaseException as error:
        return None, error


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


def _text(error: BaseException) -> str:
    name = type(error).__name__
    text = str(error)
    if isinstance(error, (Reject, Retry)):
        return (text or name)[:ERROR_CHARS_MAX]
    return (f"{name}: {text}" if text else name)[:ERROR_CHARS_MAX]
