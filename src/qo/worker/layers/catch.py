"""Turning whatever a handler raises into an outcome."""

from __future__ import annotations

import asyncio

from qo.worker.api.request import Overloaded, Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.cancel import Stopped
from qo.worker.loop.outcome import Outcome, is_cancelled_by_worker, outcome_of


def catch() -> Layer:
    """Turn exceptions into outcomes, also SystemExit: a handler that calls ``sys.exit()`` must not end the worker.

    If a handler stops because it was asked to, CancelledError is raised: the layers outside and the worker know why
    they asked.
    """

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            try:
                return await inner(request)
            except BaseException as error:
                if _must_pass(error, request):
                    raise
                if isinstance(error, Stopped) and request.cancel.requested:
                    raise asyncio.CancelledError(str(error)) from error
                return outcome_of(error)

        return run

    return layer


def _must_pass(error: BaseException, request: Request) -> bool:
    match error:
        case asyncio.CancelledError():
            # If it was not asked for, something that the handler awaited was cancelled: a failure like any other.
            return request.cancel.requested or is_cancelled_by_worker()
        case Overloaded():
            return not request.may_wait  # A layer outside wants the refusal.
        case GeneratorExit():
            return _is_loop_closing()
        case _:
            return False


def _is_loop_closing() -> bool:
    """Whether the unfinished attempt is closed with its event loop: then nothing may be awaited any more."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
