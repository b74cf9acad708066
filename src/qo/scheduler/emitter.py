"""What a source's process needs of the dispatcher, and nothing more: a port, and the one over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from qo.api.contract.source import EmitAnswer, EmitRequest, LiveSource, SourcesAnswer
from qo.api.contract.task import EventBody
from qo.api.internal_client import DispatcherClient


class Emitter(Protocol):
    def sources(self, kind: str) -> Awaitable[SourcesAnswer]:
        """All live sources of a kind, and what time it is by the database."""
        ...

    def emit(
        self, dag: str, job: str, *, key: str, events: Sequence[EventBody], edition_id: str | None = None
    ) -> Awaitable[EmitAnswer]:
        """Say something new for a source: for all its live editions, or for one. Saying it again under the same key
        does nothing more."""
        ...

    def remember(self, edition_id: str, memory: Any, error: str | None = None) -> Awaitable[object]:
        """Keep something for a source; ``sources`` gives it back. The last one to say it is remembered.

        ``error``: instead, what keeps the source from speaking. It stands until something is kept again.
        """
        ...


class RemoteEmitter:
    """A dispatcher over HTTP."""

    def __init__(self, client: DispatcherClient) -> None:
        self._client = client

    async def sources(self, kind: str) -> SourcesAnswer:
        # The time of the first page: a look that takes long must not believe itself to be later than it asked.
        page = first = await self._client.sources()
        found = list(page.sources)
        while page.next is not None:
            page = await self._client.sources(after=page.next)
            found += page.sources
        return SourcesAnswer(now=first.now, sources=[each for each in found if each.kind == kind])

    async def emit(
        self, dag: str, job: str, *, key: str, events: Sequence[EventBody], edition_id: str | None = None
    ) -> EmitAnswer:
        request = EmitRequest(idempotency_key=key, events=list(events), edition_id=edition_id)
        return await self._client.emit(dag, job, request)

    async def remember(self, edition_id: str, memory: Any, error: str | None = None) -> None:
        await self._client.remember(edition_id, memory, error)


@dataclass(frozen=True, slots=True)
class Spoken:
    """A source as its process sees it: a job, however many of its editions are live."""

    dag: str
    job: str
    config: dict[str, Any]
    editions: tuple[str, ...]
    paused: str | None
    memories: tuple[Any, ...]
    now: datetime

    @property
    def name(self) -> str:
        return f"{self.dag}.{self.job}"


def by_job(answer: SourcesAnswer) -> list[Spoken]:
    """The sources by job: what is said for one reaches all its editions. Where their plans differ, that of the active
    one counts."""
    found: dict[tuple[str, str], list[LiveSource]] = {}
    for each in sorted(answer.sources, key=lambda each: (not each.active, each.version)):
        found.setdefault((each.dag, each.job), []).append(each)
    return [_spoken(editions, answer.now) for _, editions in sorted(found.items())]


def by_edition(answer: SourcesAnswer) -> list[Spoken]:
    """The sources by edition, for those whose editions look at different things."""
    return [_spoken([each], answer.now) for each in answer.sources]


def _spoken(editions: Sequence[LiveSource], now: datetime) -> Spoken:
    first = editions[0]
    memories = tuple(each.memory for each in editions if each.memory is not None)
    ids = tuple(each.edition_id for each in editions)
    return Spoken(first.dag, first.job, first.config, ids, first.paused, memories, now)
