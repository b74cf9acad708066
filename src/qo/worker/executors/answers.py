"""What a worker does for a function in one of its child processes: the verbs of its context, and its log."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

from qo.errors import QoError
from qo.worker.api.context import Context
from qo.worker.api.request import Request
from qo.worker.executors.messages import Answer, Ask, Facts, Logged
from qo.worker.loop.suspension import boot_time


async def answer(request: Request, ask: Ask) -> Answer:
    """The answer to any question; a verb that fails is answered with its error."""
    value, failure = None, None
    try:
        value = await _do(request.context, ask.verb, pickle.loads(ask.arguments))
    except Exception as error:
        failure = _sendable(error)
    return Answer(ask.number, value, failure, _facts(request))


async def _do(context: Context, verb: str, arguments: tuple[Any, ...]) -> Any:
    match verb:
        case "progress":
            context.progress(*arguments)
        case "extend":
            context.extend(*arguments)
        case "renew":
            lease_s, progress = arguments
            await context.renew(lease_s, progress=progress)
        case "submit":
            return await context.submit(*arguments)
        case _:
            pass  # The facts are all it wants.
    return None


def _facts(request: Request) -> Facts:
    deadline, context = request.clock.deadline, request.context
    return Facts(
        remaining_s=None if deadline is None else deadline - asyncio.get_running_loop().time(),
        cancel_requested=context.cancel_requested,
        draining=context.draining,
        begin_by=None if request.lease is None else boot_time() + request.lease.left_s(),
    )


def _sendable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return QoError(f"{type(error).__name__}: {error}")


def log_again(request: Request, logged: Logged) -> None:
    """Hand what was logged in the child to the handlers that it would have reached here."""
    record = logging.makeLogRecord(logged.record)
    for name, value in (request.context.log.extra or {}).items():
        record.__dict__.setdefault(name, value)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
