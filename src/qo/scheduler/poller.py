"""What the scheduler does for every kind of source that it polls."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """What one look at all sources of a kind has come to."""

    sources: int = 0
    emitted: int = 0  # Events, also those that the dispatcher had heard of before.
    failures: tuple[str, ...] = ()
    wait_s: float  # Until the next look.


class Poller(Protocol):
    """All sources of one kind. Use it as a context, which closes what it has opened."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def poll(self) -> PollResult:
        """Emit what is new. A source that fails does not keep the others from being looked at.

        Raises QoError if the dispatcher cannot be asked for the sources; poll again later.
        """
        ...
