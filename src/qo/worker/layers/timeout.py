"""Stopping an attempt that takes too long."""

from __future__ import annotations

import asyncio

from qo.worker.api.request import Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import Clock
from qo.worker.loop.outcome import Outcome, Retried


def timeout() -> Layer:
    """Stop an attempt when the request's clock expires.

    The handler is asked to stop (``cancel``) and cancelled. If it returns all the same, its outcome counts; if it
    raises, the outcome is that it timed out.
    """

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            if request.clock.timeout_s is None:
                return await inner(request)
            return await _run_within_limit(inner, request)

        return run

    return layer


async def _run_within_limit(inner: Service, request: Request) -> Outcome:
    clock = request.clock
    attempt = asyncio.current_task()
    assert attempt is not None, "the clock stops the asyncio task that runs the attempt"
    cancelled_before = attempt.cancelling()

    def expire() -> None:
        # The handler resumes after both, so it always finds the reason.
        attempt.cancel()
        request.cancel.request(Why.TIMEOUT)

    clock.start(expire)
    try:
        outcome = await inner(request)
    except asyncio.CancelledError:
        is_timeout = request.cancel.why is Why.TIMEOUT and attempt.cancelling() - clock.expired <= cancelled_before
        if not is_timeout:
            raise  # The worker cancelled it, and knows why.
        return timed_out(clock)
    finally:
        clock.stop()
        if clock.expired:
            attempt.uncancel()
    if clock.expired and isinstance(outcome, Retried):
        return timed_out(clock, outcome.traceback)
    return outcome


def timed_out(clock: Clock, traceback: str | None = None) -> Retried:
    remedy = f": {clock.remedy}" if clock.remedy else ""
    return Retried(f"timed out after {round(clock.allowed_s, 3):g} s{remedy}", traceback, timed_out=True)
