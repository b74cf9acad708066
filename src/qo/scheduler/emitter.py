"""What the scheduler needs of the dispatcher, as a port, and its implementation over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from qo.api.contract.source import Coalesced, EmitAnswer, EmitRequest, LiveSource, SourcesAnswer
from qo.api.contract.task import EventBody
from qo.api.internal_client import DispatcherClient
from qo.core.pipeline.dag import BackpressureMode


class Emitter(Protocol):
    def sources(self, kind: str) -> Awaitable[SourcesAnswer]:
        """Return all live sources of a kind, and the time by the database."""
        ...

    def emit(
        self,
        dag: str,
        job: str,
        *,
        key: str,
        events: Sequence[EventBody],
        edition_id: str | None = None,
        coalesced: Coalesced | None = None,
    ) -> Awaitable[EmitAnswer]:
        """Emit events for a source: for all its live editions, or for one. A second call with the same key does
        nothing more. ``coalesced``: what was folded into it."""
        ...

    def remember(self, edition_id: str, memory: Any, error: str | None = None) -> Awaitable[object]:
        """Keep a value for a source, which ``sources`` returns. The last call wins.

        ``error``: keep instead why the source cannot emit. It is shown until a value is kept again.
        """
        ...


class RemoteEmitter:
    """A dispatcher over HTTP."""

    def __init__(self, client: DispatcherClient) -> None:
        self._client = client

    async def sources(self, kind: str) -> SourcesAnswer:
        # The time of the first page: times that pass while the others are fetched are due at the next poll.
        page = first = await self._client.sources()
        sources = list(page.sources)
        while page.next is not None:
            page = await self._client.sources(after=page.next)
            sources += page.sources
        return SourcesAnswer(now=first.now, sources=[each for each in sources if each.kind == kind])

    async def emit(
        self,
        dag: str,
        job: str,
        *,
        key: str,
        events: Sequence[EventBody],
        edition_id: str | None = None,
        coalesced: Coalesced | None = None,
    ) -> EmitAnswer:
        request = EmitRequest(idempotency_key=key, events=list(events), edition_id=edition_id, coalesced=coalesced)
        return await self._client.emit(dag, job, request)

    async def remember(self, edition_id: str, memory: Any, error: str | None = None) -> None:
        await self._client.remember(edition_id, memory, error)


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source as the scheduler sees it: a job with one or more of its live editions."""

    dag: str
    job: str
    config: dict[str, Any]
    editions: tuple[str, ...]
    paused: str | None
    memories: tuple[Any, ...]
    now: datetime
    held: str | None = None  # Why it should wait, if what it feeds is overfull.
    coalesces: bool = False  # It announces once what came while it waited.

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job}"


def by_job(answer: SourcesAnswer) -> list[SourceView]:
    """Group the sources by job: an event reaches all editions of its job. Where their configs differ, that of the
    active edition counts."""
    grouped: dict[tuple[str, str], list[LiveSource]] = {}
    for each in sorted(answer.sources, key=lambda each: (not each.active, each.version)):
        grouped.setdefault((each.dag, each.job), []).append(each)
    return [_view(editions, answer.now) for _, editions in sorted(grouped.items())]


def by_edition(answer: SourcesAnswer) -> list[SourceView]:
    """One view for each edition, for kinds whose editions watch different things."""
    return [_view([each], answer.now) for each in answer.sources]


def _view(editions: Sequence[LiveSource], now: datetime) -> SourceView:
    first = editions[0]
    memories = tuple(each.memory for each in editions if each.memory is not None)
    ids = tuple(each.edition_id for each in editions)
    coalesces = first.backpressure_mode == BackpressureMode.COALESCE
    return SourceView(
        first.dag, first.job, first.config, ids, first.paused, memories, now, held=first.held, coalesces=coalesces
    )
