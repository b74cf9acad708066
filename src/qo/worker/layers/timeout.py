"""Stopping an attempt that takes too long."""

from __future__ import annotations

import asyncio

from qo.worker.api.request import Request
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.cancel import Why
from qo.worker.loop.clock import Clock
from qo.worker.loop.outcome import Outcome, Retried


def timeout() -> Layer:
    """Stop an attempt when the request's clock says so, which knows whose timeout counts.

    The handler is asked to stop (``cancel``) and cancelled. If it finishes all the same, what it says counts; if it
    fails then, the reason is that it timed out.
    """

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            if request.clock.timeout_s is None:
                return await inner(request)
            return await _within(inner, request)

        return run

    return layer


async def _within(inner: Service, request: Request) -> Outcome:
    clock = request.clock
    attempt = asyncio.current_task()
    assert attempt is not None, "the clock stops the asyncio task that runs the attempt"
    cancelled_before = attempt.cancelling()

    def expire() -> None:
        # The handler resumes after both: it finds the reason whenever it looks.
        attempt.cancel()
        request.cancel.request(Why.TIMEOUT)

    clock.start(expire)
    try:
        outcome = await inner(request)
    except asyncio.CancelledError:
        ours = request.cancel.why is Why.TIMEOUT and attempt.cancelling() - clock.expired <= cancelled_before
        if not ours:
            raise  # The worker's doing: it knows why.
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
