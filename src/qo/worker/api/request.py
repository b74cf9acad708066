"""The request that a service handles: one attempt at one task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.core.task import Task
from qo.worker.api.handler import Handler
from qo.worker.loop.cancel import CancelToken
from qo.worker.loop.clock import Clock
from qo.worker.loop.outcome import OutcomeError, unstarted_outcome

if TYPE_CHECKING:
    from qo.worker.api.context import Context
    from qo.worker.api.producer import ProducerHandle
    from qo.worker.loop.hold import Lease


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    task: Task  # As it was claimed.
    handler: Handler
    input: Any  # Converted to what the handler declares.
    context: Context
    producer: ProducerHandle
    cancel: CancelToken
    clock: Clock
    worker_id: str
    slot: int  # Which of the worker's slots runs it.
    lease: Lease | None = None  # None: not checked here.
    members: tuple[Request, ...] = ()  # Of a batch for a child process: the requests that its call is for.
    started: bool = False  # Whether the layers let it through to its handler.
    may_wait: bool = True  # False: a layer that would have to wait refuses instead (raises Overloaded).
    leave_slot: Callable[[], None] = lambda: None  # Lets another task begin on its slot.
    places: tuple[
        Callable[[], None], ...
    ] = ()  # Called when it starts: each frees a place in a buffer, or ends a span.

    @property
    def attempt(self) -> int:
        return self.task.attempt

    def start(self) -> None:
        """Mark the request as started. The innermost service calls this when it calls the handler."""
        self.started = True
        self.leave_places()

    def check_lease(self) -> None:
        """Raise OutcomeError if the lease is over, since another worker may have begun. Call it just before the
        handler."""
        if not all(lease.is_valid() for lease in self.leases):
            raise OutcomeError(unstarted_outcome())

    @property
    def leases(self) -> list[Lease]:
        return [each.lease for each in (self, *self.members) if each.lease is not None]

    def leave_places(self) -> None:
        if self.places:
            places, self.places = self.places, ()
            for leave in places:
                leave()


class Overloaded(Exception):
    """Raised by a layer that has no room for a request which may not wait. It never leaves the stack."""

    def __init__(self, limit: str, retry_after_s: float) -> None:
        super().__init__(f"no room: {limit}")
        self.retry_after_s = retry_after_s
