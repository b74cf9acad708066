"""A source's process that talks to the services of a state directly, as it would to a dispatcher over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from qo.api.contract.source import Coalesced, EmitAnswer, SourcesAnswer
from qo.api.contract.task import EventBody
from qo.dispatcher.sources import emission, live_sources
from qo.dispatcher.state.database import State
from qo.errors import Unavailable


class LocalEmitter:
    """``fails``: how many of the next emissions get no answer, though they came through."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.fails = 0
        self.answers: list[EmitAnswer] = []
        self.heard = asyncio.Event()  # Set by the first answer.

    async def sources(self, kind: str) -> SourcesAnswer:
        def ask() -> SourcesAnswer:
            with self.state.read() as tx:
                return live_sources.list_sources(tx, kind=kind)

        return await asyncio.to_thread(ask)

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
        def say() -> EmitAnswer:
            with self.state.write() as tx:
                return emission.emit(
                    tx, dag, job, key=key, events=events, by="tests", edition_id=edition_id, coalesced=coalesced
                )

        answer = await asyncio.to_thread(say)
        if self.fails:
            self.fails -= 1
            raise Unavailable("no answer")
        self.answers.append(answer)
        self.heard.set()
        return answer

    async def remember(self, edition_id: str, memory: Any, error: str | None = None) -> None:
        def keep() -> None:
            with self.state.write() as tx:
                live_sources.remember(tx, edition_id, memory, error)

        await asyncio.to_thread(keep)

    @property
    def new(self) -> int:
        """How many emissions were not repetitions."""
        return sum(not each.repeated for each in self.answers)
