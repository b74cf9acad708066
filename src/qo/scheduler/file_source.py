"""File and http sources: one partition event for each file that appears or changes.

The partition key follows from the file's path (``core.pipeline.naming``, ``core.pipeline.key_pattern``), so a file that
changes is the same partition again, and its readers run again. Files that disappear are not announced. Each
announcement has the key ``file:LOCATION:ETAG``: however often it is made, and by however many schedulers, it counts
once. In a directory a file must be unchanged at two polls, so that one that is still being written waits; in a store
objects appear whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from qo.ambient import SYSTEM, Ambient
from qo.api.contract.source import ERROR_MAX, Coalesced
from qo.api.contract.task import EventBody
from qo.config.settings import Settings
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.key_pattern import find_key, find_keys
from qo.core.pipeline.naming import idempotency_key
from qo.core.words import plural
from qo.errors import QoError, UsageError
from qo.pipeline.sources import SOURCES, load
from qo.scheduler.emitter import Emitter, SourceView, by_edition
from qo.scheduler.file_listing import File, Place, matches, open_place
from qo.scheduler.poller import PollResult
from qo.scheduler.sightings import Sightings

log = logging.getLogger(__name__)

INTERVAL_S = 5.0  # How long a new source may go unnoticed.
CONCURRENT_EMITS = 16
REMEMBER_EVERY = 1000  # If the process dies during its first poll, at most so many files are announced again.


async def open_directory(config: Mapping[str, Any], settings: Settings) -> Place:
    """Open the directory or prefix that a source of the kind ``files`` watches."""
    path = config.get("path")
    if not path:
        raise UsageError("a files source needs a path")
    return await open_place(str(path), settings)


async def open_place_of(kind: str, config: Mapping[str, Any], settings: Settings) -> Place:
    """Open the place where files of a source arrive. Raises UsageError, also for a kind without files."""
    spec = SOURCES[SourceKind(kind)]
    if spec.place is None:
        raise UsageError(f"a {kind} source watches no files")
    return await load(spec.place)(config, settings)


@dataclass(slots=True)
class Watcher:
    """One source's place, and which of its files have been announced."""

    place: Place
    sightings: Sightings
    due_at: float = 0.0  # By the monotonic clock.
    last_etags: dict[str, str] = field(default_factory=dict[str, str])  # At the last poll, where files settle.
    last_memory: Any = None
    waiting: dict[str, str] = field(default_factory=dict[str, str])  # Files that the source may not announce yet.
    changes: dict[str, int] = field(default_factory=dict[str, int])  # How often each was seen to change meanwhile.
    keys: dict[str, str] = field(default_factory=dict[str, str])  # Of partitions, by path, at the last look.
    problem: str | None = None  # Why files at the last look were left out.

    async def poll(self, emitter: Emitter, source: SourceView) -> int:
        """Announce new and changed files. Return how many there were."""
        pattern = str(source.config.get("pattern") or "*")
        files: dict[str, File] = {}
        async for page in self.place.files(source.now):
            files.update((each.path, each) for each in page if matches(each.path, pattern))
        self.keys = self._find_keys(source, files, expects_all=pattern != "*")
        files = {path: file for path, file in files.items() if path in self.keys}
        etags = {path: each.etag for path, each in files.items()}
        fresh = self.sightings.fresh(etags)
        if self.place.settles:
            settled = [path for path in fresh if self.last_etags.get(path) == etags[path]]
            self.last_etags, fresh = etags, settled
        if source.held is not None:
            await self._wait(emitter, source, {path: etags[path] for path in fresh})
            return 0
        for start in range(0, len(fresh), REMEMBER_EVERY):
            await self._announce(emitter, source, [files[path] for path in fresh[start : start + REMEMBER_EVERY]])
            await self._remember(emitter, source)
        self.waiting.clear()
        self.changes.clear()
        await self._remember(emitter, source)
        return len(fresh)

    def _find_keys(self, source: SourceView, files: Mapping[str, File], *, expects_all: bool) -> dict[str, str]:
        """Return the keys of the files that have one, by path. Files that share one with others have none."""
        pattern = source.config.get("key")
        keys = {path: each.key for path, each in files.items() if each.key is not None} or find_keys(
            pattern, files
        )
        self.problem = None if pattern is None else _describe_left_out(str(pattern), files, keys, expects_all)
        return keys

    async def _wait(self, emitter: Emitter, source: SourceView, fresh: dict[str, str]) -> None:
        """Count what arrives while the source is held back. It is announced as it is when the source goes on."""
        for path, etag in fresh.items():
            if self.waiting.get(path) != etag:
                self.changes[path] = self.changes.get(path, 0) + 1
        self.waiting = fresh
        await self._remember(emitter, source)

    async def _announce(self, emitter: Emitter, source: SourceView, files: list[File]) -> None:
        limit = asyncio.Semaphore(CONCURRENT_EMITS)

        async def announce(each: File) -> None:
            key, events = (
                idempotency_key("file", each.location, each.etag),
                [announcement(each, self.keys[each.path])],
            )
            count = self.changes.get(each.path, 0) if source.coalesces else 0
            async with limit:
                await emitter.emit(
                    source.dag,
                    source.job,
                    key=key,
                    events=events,
                    edition_id=source.editions[0],
                    coalesced=Coalesced(count=count) if count > 1 else None,
                )
            self.sightings.mark_announced(each.path, each.etag)

        results = await asyncio.gather(*map(announce, files), return_exceptions=True)
        for failure in results:
            if isinstance(failure, BaseException):
                await self._remember(emitter, source)  # The others have been announced.
                raise failure

    async def _remember(self, emitter: Emitter, source: SourceView) -> None:
        memory = self.sightings.memory() | ({"waiting": len(self.waiting)} if self.waiting else {})
        if memory == self.last_memory:
            return
        await emitter.remember(source.editions[0], memory)
        self.last_memory = memory


def _describe_left_out(
    pattern: str, files: Iterable[str], keys: Mapping[str, str], expects_all: bool
) -> str | None:
    """Return why files are not announced; None if all are, or those that are not were not meant."""
    shared: dict[str, str] = {}
    strangers: list[str] = []
    for path in sorted(files):
        if path in keys:
            continue
        key = find_key(pattern, path)
        if key is None:
            strangers.append(path)
        elif (other := shared.setdefault(key, path)) != path:
            return (
                f"{other} and {path} both have the key {key}, so neither is announced: write more of their paths into "
                "'key', or less into 'pattern'"
            )
    if not strangers or not expects_all:
        return None
    return (
        f"{plural(len(strangers), 'file')} of 'pattern' do not fit 'key' {pattern!r} and are not announced, such as "
        f"{strangers[0]}"
    )


def announcement(file: File, key: str) -> EventBody:
    attributes = {
        "path": file.path,
        "size": file.size,
        "etag": file.etag,
        "location": file.folder,
        "files": [file.name],
    }
    return EventBody(partition_key=key, attributes=attributes)


class Watchers:
    """All sources of one kind that watch files, each edition by itself: another path or pattern is another edition,
    for which all files are new. Use it as a context, which closes what it has opened."""

    def __init__(
        self, kind: SourceKind, emitter: Emitter, settings: Settings, *, ambient: Ambient = SYSTEM
    ) -> None:
        self._kind, self._emitter, self._settings, self._ambient = kind, emitter, settings, ambient
        self._watchers: dict[str, Watcher] = {}  # By edition.
        self._errors: dict[str, str] = {}  # By edition, the error that was reported last.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for edition in list(self._watchers):
            await self._close(edition)

    async def poll(self) -> PollResult:
        """Look at each source that is due. A source that fails is looked at again when it is next due."""
        sources = by_edition(await self._emitter.sources(self._kind.value))
        for edition in self._watchers.keys() - {each.editions[0] for each in sources}:
            await self._close(edition)
        emitted = 0
        failures: list[str] = []
        for source in sources:
            try:
                emitted += await self._poll_source(source)
            except (QoError, OSError) as error:
                log.warning("%s source %s: %s", self._kind, source.name, error)
                failures.append(f"{source.name}: {error}")
                await self._report(source.editions[0], str(error)[:ERROR_MAX])
        return PollResult(
            sources=len(sources), emitted=emitted, failures=tuple(failures), wait_s=self._seconds_until_due()
        )

    async def _poll_source(self, source: SourceView) -> int:
        if source.paused is not None:
            return 0  # Files that arrive meanwhile are announced when it is resumed.
        watcher = await self._open(source)
        if self._ambient.monotonic() < watcher.due_at:
            return 0
        edition, memory = source.editions[0], watcher.last_memory
        try:
            count = await watcher.poll(self._emitter, source)
            if watcher.last_memory is not memory:
                self._errors.pop(edition, None)  # To remember what was seen clears the error.
            if (problem := watcher.place.problem or watcher.problem) is not None:
                await self._report(edition, problem[:ERROR_MAX])
            elif edition in self._errors:
                await self._emitter.remember(edition, watcher.sightings.memory())
                del self._errors[edition]
            return count
        finally:
            watcher.due_at = self._ambient.monotonic() + float(source.config.get("poll_seconds") or 30)

    async def _open(self, source: SourceView) -> Watcher:
        edition = source.editions[0]
        if edition not in self._watchers:
            place = await open_place_of(self._kind, source.config, self._settings)
            memory = source.memories[0] if source.memories else None
            self._watchers[edition] = Watcher(place, Sightings(memory))
        return self._watchers[edition]

    async def _report(self, edition: str, message: str) -> None:
        """Report an error once, until it changes: ``qo source list`` shows it until the source works again."""
        if self._errors.get(edition) == message:
            return
        with contextlib.suppress(QoError):  # The log has it, too.
            await self._emitter.remember(edition, None, message)
            self._errors[edition] = message

    async def _close(self, edition: str) -> None:
        self._errors.pop(edition, None)
        if watcher := self._watchers.pop(edition, None):
            await watcher.place.close()

    def _seconds_until_due(self) -> float:
        soonest = min((each.due_at for each in self._watchers.values()), default=float("inf"))
        return min(INTERVAL_S, max(0.01, soonest - self._ambient.monotonic()))
