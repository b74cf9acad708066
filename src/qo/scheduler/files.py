"""File sources: one partition event for each file that arrives or changes below a directory or prefix.

The partition key follows from the file's path (``core.flow.naming``), so a file that changes is the same partition
again, and its readers run again. Files that disappear are not announced. Each announcement has the key
``file:LOCATION:ETAG``: however often it is made, and by however many watchers, it counts once. In a directory a file
must be unchanged for two looks, so that one that is being written waits; in a store objects appear whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from qo.ambient import SYSTEM, Ambient
from qo.api.contract.source import ERROR_MAX
from qo.api.contract.task import EventBody
from qo.config.settings import Settings
from qo.core.pipeline.naming import idempotency_key, partition_key
from qo.errors import QoError, UsageError
from qo.scheduler.emitter import Emitter, Spoken, by_edition
from qo.scheduler.file_listing import File, Place, matches, open_place
from qo.scheduler.sightings import Sightings

log = logging.getLogger(__name__)

INTERVAL_S = 5.0  # How long a new source may go unnoticed.
AT_ONCE = 16  # Announcements under way.
REMEMBER_EVERY = 1000  # So much is announced again at most if the process dies in a first look.


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    sources: int = 0
    announced: int = 0
    failures: tuple[str, ...] = ()
    wait_s: float = INTERVAL_S


@dataclass(slots=True)
class Watcher:
    """One source's place, and what has been seen there."""

    place: Place
    sightings: Sightings
    due_at: float = 0.0  # By the monotonic clock.
    last_look: dict[str, str] = field(default_factory=dict[str, str])  # Marks, of places where files settle.
    remembered: Any = None

    async def look(self, emitter: Emitter, source: Spoken) -> int:
        """Announce what is new; how many files that were."""
        pattern = str(source.config.get("pattern") or "*")
        found: dict[str, File] = {}
        async for page in self.place.files():
            found.update((each.path, each) for each in page if matches(each.path, pattern))
        present = {path: each.etag for path, each in found.items()}
        fresh = self.sightings.fresh(present)
        if self.place.settles:
            settled = [path for path in fresh if self.last_look.get(path) == present[path]]
            self.last_look, fresh = present, settled
        for start in range(0, len(fresh), REMEMBER_EVERY):
            await self._announce(emitter, source, [found[path] for path in fresh[start : start + REMEMBER_EVERY]])
            await self._remember(emitter, source)
        await self._remember(emitter, source)
        return len(fresh)

    async def _announce(self, emitter: Emitter, source: Spoken, files: list[File]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(each: File) -> None:
            key, events = idempotency_key("file", each.location, each.etag), [announcement(each)]
            async with gate:
                await emitter.emit(source.dag, source.job, key=key, events=events, edition_id=source.editions[0])
            self.sightings.announced(each.path, each.etag)

        done = await asyncio.gather(*map(one, files), return_exceptions=True)
        for failure in done:
            if isinstance(failure, BaseException):
                await self._remember(emitter, source)  # The others have been announced.
                raise failure

    async def _remember(self, emitter: Emitter, source: Spoken) -> None:
        memory = self.sightings.memory()
        if memory == self.remembered:
            return
        await emitter.remember(source.editions[0], memory)
        self.remembered = memory


def announcement(file: File) -> EventBody:
    attributes = {
        "path": file.path,
        "size": file.size,
        "etag": file.etag,
        "location": file.folder,
        "files": [file.name],
    }
    return EventBody(partition_key=partition_key(file.path), attributes=attributes)


class Watchers:
    """All file sources of a dispatcher, each edition by itself: another path or pattern is another edition, which must
    hear of all the files that are there. Use it as a context, which closes what it has opened."""

    def __init__(self, emitter: Emitter, settings: Settings, *, ambient: Ambient = SYSTEM) -> None:
        self._emitter, self._settings, self._ambient = emitter, settings, ambient
        self._watchers: dict[str, Watcher] = {}
        self._trouble: dict[str, str] = {}  # By edition, what has been told of it.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for edition in list(self._watchers):
            await self._forget(edition)

    async def look(self) -> Looked:
        """Look at each source that is due. What goes wrong with one stays with it, until its next look."""
        sources = by_edition(await self._emitter.sources("files"))
        for gone in self._watchers.keys() - {each.editions[0] for each in sources}:
            await self._forget(gone)
        announced = 0
        failures: list[str] = []
        for source in sources:
            try:
                announced += await self._visit(source)
            except (QoError, OSError) as error:
                log.warning("file source %s: %s", source.name, error)
                failures.append(f"{source.name}: {error}")
                await self._complain(source.editions[0], str(error)[:ERROR_MAX])
        return Looked(sources=len(sources), announced=announced, failures=tuple(failures), wait_s=self._wait_s())

    async def _visit(self, source: Spoken) -> int:
        if source.paused is not None:
            return 0  # What arrives meanwhile is found when it goes on.
        watcher = await self._watcher(source)
        if self._ambient.monotonic() < watcher.due_at:
            return 0
        try:
            found = await watcher.look(self._emitter, source)
            if (edition := source.editions[0]) in self._trouble:
                await self._emitter.remember(edition, watcher.sightings.memory())
                del self._trouble[edition]
            return found
        finally:
            watcher.due_at = self._ambient.monotonic() + float(source.config.get("poll_seconds") or 30)

    async def _watcher(self, source: Spoken) -> Watcher:
        path = source.config.get("path")
        if not path:
            raise UsageError("a files source needs a path")
        edition = source.editions[0]
        if edition not in self._watchers:
            memory = source.memories[0] if source.memories else None
            place = await open_place(str(path), self._settings)
            self._watchers[edition] = Watcher(place, Sightings(memory))
        return self._watchers[edition]

    async def _complain(self, edition: str, said: str) -> None:
        """Once for each trouble: ``qo source list`` shows it until it is over."""
        if self._trouble.get(edition) == said:
            return
        with contextlib.suppress(QoError):  # The log has it, too.
            await self._emitter.remember(edition, None, said)
            self._trouble[edition] = said

    async def _forget(self, edition: str) -> None:
        self._trouble.pop(edition, None)
        if known := self._watchers.pop(edition, None):
            await known.place.close()

    def _wait_s(self) -> float:
        soonest = min((each.due_at for each in self._watchers.values()), default=float("inf"))
        return min(INTERVAL_S, max(0.01, soonest - self._ambient.monotonic()))
