"""Turning whatever a handler raises into an outcome."""

from __future__ import annotations

import asyncio

from qo.worker.api.request import Overloaded, Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.cancel import Stopped
from qo.worker.loop.outcome import Outcome, is_cancelled_by_worker, outcome_of


def catch() -> Layer:
    """One that calls ``sys.exit()`` must not end the worker either.

    A handler that stops because it was asked to leaves as CancelledError: the layers outside and the worker know why
    they asked.
    """

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            try:
                return await inner(request)
            except BaseException as error:
                if _passes(error, request):
                    raise
                if isinstance(error, Stopped) and request.cancel.requested:
                    raise asyncio.CancelledError(str(error)) from error
                return outcome_of(error)

        return run

    return layer


def _passes(error: BaseException, request: Request) -> bool:
    match error:
        case asyncio.CancelledError():
            # If nobody asked for it, something that the handler waited for was cancelled: a failure like any other.
            return request.cancel.requested or is_cancelled_by_worker()
        case Overloaded():
            return not request.may_wait  # Somebody outside has asked for a refusal.
        case GeneratorExit():
            return _thrown_away()
        case _:
            return False


def _thrown_away() -> bool:
    """Whether the attempt itself is closed, unfinished, with its event loop: nothing may be awaited any more."""
    try:
        return asyncio.current_task() is None
    except RuntimeError:
        return True
