"""What happens to a request for which there is no room: it waits, within bounds, or its task is given back."""

from __future__ import annotations

from qo.queue.options import check_number
from qo.worker.api.request import Overloaded, Request
from qo.worker.layers.permits import Permits
from qo.worker.layers.stack import Layer, Service
from qo.worker.loop.outcome import Outcome, Released

AGAIN_AFTER_S = 1.0  # When it is unknown how soon there will be room.


def load_shed() -> Layer:
    """Give a task back, at no cost to it, if the layers inside have no room: it does not wait for them."""

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            may_wait, request.may_wait = request.may_wait, False
            try:
                return await inner(request)
            except Overloaded as error:
                return Released(str(error), error.retry_after_s, shed=True)
            finally:
                request.may_wait = may_wait

        return run

    return layer


def buffer(size: int = 128) -> Layer:
    """Let at most ``size`` requests wait in the layers inside: for a permit, say.

    A request waits from when it enters the buffer to when its handler's function is called (``Request.start``). Inside,
    it may always wait. A request for which the buffer is full is refused, or waits outside if it may.
    """
    check_number("buffer", size, 1, 1_000_000)
    places = Permits(size)
    leave = places.give

    def layer(inner: Service) -> Service:
        async def run(request: Request) -> Outcome:
            if not places.take():
                if not request.may_wait:
                    raise Overloaded(f"{size} wait already", AGAIN_AFTER_S)
                with request.clock.pause():
                    await places.wait()
            may_wait, request.may_wait = request.may_wait, True
            request.places += (leave,)
            try:
                return await inner(request)
            finally:
                request.may_wait = may_wait
                request.leave_places()  # If it ended without having been started.

        return run

    return layer
