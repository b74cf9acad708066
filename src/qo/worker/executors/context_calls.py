"""What a worker does for a function in a child process: it calls the methods of its context, and logs for it."""

from __future__ import annotations

import asyncio
import logging
import pickle
from typing import Any

from qo.errors import QoError
from qo.worker.api.context import Context
from qo.worker.api.request import Request
from qo.worker.executors.child_messages import Answer, ContextCall, Facts, LogMessage
from qo.worker.loop.suspension import boot_time


async def answer_call(request: Request, call: ContextCall) -> Answer:
    """Call a method of the context. An error of the method becomes part of the answer."""
    value, failure = None, None
    try:
        value = await _call(request.context, call.method, pickle.loads(call.arguments))
    except Exception as error:
        failure = _picklable(error)
    return Answer(call.number, value, failure, _facts(request))


async def _call(context: Context, method: str, arguments: tuple[Any, ...]) -> Any:
    match method:
        case "progress":
            context.progress(*arguments)
        case "extend":
            context.extend(*arguments)
        case "renew":
            lease_s, progress = arguments
            await context.renew(lease_s, progress=progress)
        case "submit":
            return await context.submit(*arguments)
        case "submit_flow":
            plan, key = arguments
            return await context.submit_flow(plan, key=key)
        case "results":
            return await context.results()
        case "result":
            return await context.result(*arguments)
        case "dependencies":
            return await context.dependencies()
        case _:
            pass  # The child wants only the facts.
    return None


def _facts(request: Request) -> Facts:
    deadline, context = request.clock.deadline, request.context
    return Facts(
        remaining_s=None if deadline is None else deadline - asyncio.get_running_loop().time(),
        cancel_requested=context.cancel_requested,
        draining=context.draining,
        begin_by=min((boot_time() + each.remaining_s() for each in request.leases), default=None),
    )


def _picklable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return QoError(f"{type(error).__name__}: {error}")


def forward_log(request: Request, message: LogMessage) -> None:
    """Log what the child has logged, as if it had happened in this process. A line of a batch is about no single
    task."""
    record = logging.makeLogRecord(message.record)
    for name, value in ({} if request.members else request.context.log.extra or {}).items():
        record.__dict__.setdefault(name, value)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
