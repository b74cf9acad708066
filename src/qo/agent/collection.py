"""Deleting what nobody needs any more: lists the data root, asks which prefixes may go, deletes those.

Each prefix stands for itself, so a collection that was cut off is simply begun again. What does not look like the
prefix of an attempt or the manifest of a version (bundles, latest manifests, files of others) is never touched.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from qo.api.contract.garbage import PREFIXES_MAX, Judged
from qo.config.settings import Settings
from qo.dispatcher.engine.garbage import PREFIX
from qo.dispatcher.views.manifests import DIRECTORY, KEY
from qo.store.opening import open_store
from qo.store.port import DELETE_LIMIT_MAX, Doomed, ObjectStore

KEYS_MAX = 100_000  # Objects of a bucket that are held in memory at a time.

Judge = Callable[[Sequence[str]], Awaitable[Sequence[Judged]]]


@dataclass(slots=True)
class Found:
    """The prefix of an attempt, and what lies below it; or a manifest."""

    prefix: str  # Below the root, without a slash at its end.
    manifest: bool = False
    files: int = 0
    bytes: int = 0
    keys: list[str] = field(default_factory=list[str])  # In a bucket: whole.


class Root(Protocol):
    """A data root."""

    def found(self) -> AsyncIterator[Found]:
        """Every prefix of an attempt and every manifest of a version, each once."""
        ...

    async def delete(self, found: Found) -> None: ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class Collected:
    """What was deleted; of a dry run, what would be."""

    prefixes: int = 0  # Of attempts.
    files: int = 0  # Of these, and manifests.
    bytes: int = 0
    kept: dict[str, int] = field(default_factory=dict[str, int])  # Prefixes of attempts, by why.


async def collect(
    root: Root, judge: Judge, *, dry_run: bool, on_gone: Callable[[Found, str], None] = lambda found, why: None
) -> Collected:
    """Delete every prefix that may go. ``on_gone`` hears of each, after it is deleted."""
    done = Collected()
    waiting: list[Found] = []
    async for each in root.found():
        waiting.append(each)
        if len(waiting) == PREFIXES_MAX or sum(len(one.keys) for one in waiting) > KEYS_MAX:
            await _settle(root, judge, waiting, done, dry_run, on_gone)
            waiting = []
    if waiting:
        await _settle(root, judge, waiting, done, dry_run, on_gone)
    return done


async def _settle(
    root: Root,
    judge: Judge,
    waiting: Sequence[Found],
    done: Collected,
    dry_run: bool,
    on_gone: Callable[[Found, str], None],
) -> None:
    verdicts = {each.prefix: each for each in await judge([each.prefix for each in waiting])}
    for each in waiting:
        verdict = verdicts[each.prefix]
        if not verdict.gone:
            if not each.manifest:
                done.kept[verdict.why] = done.kept.get(verdict.why, 0) + 1
            continue
        if not dry_run:
            await root.delete(each)
        done.prefixes += not each.manifest
        done.files += each.files
        done.bytes += each.bytes
        on_gone(each, verdict.why)


async def open_root(settings: Settings) -> Root:
    """The data root of the settings."""
    data = settings.dispatcher.data_root
    if data.startswith("s3://"):
        return Bucket((await open_store(replace(settings, store=data))).store)
    return Directory(Path(data.removeprefix("file:").removeprefix("//")))


class Directory:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def found(self) -> AsyncIterator[Found]:
        for dataset in await asyncio.to_thread(_folders, self._root):
            for generation in await asyncio.to_thread(_folders, dataset):
                # A generation at a time: it has as many folders as it has had tasks.
                for each in await asyncio.to_thread(self._attempts, generation):
                    yield each
        for name in await asyncio.to_thread(_folders, self._root / DIRECTORY):
            for each in await asyncio.to_thread(self._manifests, name):
                yield each

    async def delete(self, found: Found) -> None:
        await asyncio.to_thread(self._delete, self._root / found.prefix)

    async def close(self) -> None:
        pass

    def _attempts(self, generation: Path) -> list[Found]:
        places = [attempt for task in _folders(generation) for attempt in _folders(task)]
        named = [(place, place.relative_to(self._root).as_posix()) for place in places]
        return [_measured(place, name) for place, name in named if PREFIX.match(name)]

    def _manifests(self, name: Path) -> list[Found]:
        named = [(place, place.relative_to(self._root).as_posix()) for place in sorted(name.iterdir())]
        return [Found(key, True, 1, place.lstat().st_size) for place, key in named if KEY.match(key)]

    def _delete(self, place: Path) -> None:
        if place.is_file():
            place.unlink()
            return
        shutil.rmtree(place)
        try:
            place.parent.rmdir()  # The task's own, if this was the last of its attempts.
        except OSError:
            return


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(each for each in path.iterdir() if each.is_dir() and not each.is_symlink())
    except FileNotFoundError:
        return []


def _measured(place: Path, name: str) -> Found:
    sizes = [each.lstat().st_size for each in place.rglob("*") if each.is_symlink() or each.is_file()]
    return Found(name, files=len(sizes), bytes=sum(sizes))


class Bucket:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def found(self) -> AsyncIterator[Found]:
        after, more = "", True
        held: Found | None = None
        while more:
            page = await self._store.list("", start_after=after)
            more = page.truncated and bool(page.entries)
            for entry in page.entries:
                after = entry.key
                manifest = KEY.match(entry.key) is not None
                prefix = entry.key if manifest else "/".join(entry.key.split("/")[:4])
                if not manifest and (entry.key == prefix or not PREFIX.match(prefix)):
                    continue
                if held is not None and held.prefix != prefix:
                    yield held
                    held = None
                held = held or Found(prefix, manifest)
                held.keys.append(entry.key)
                held.files += 1
                held.bytes += entry.size
        if held is not None:
            yield held

    async def delete(self, found: Found) -> None:
        for start in range(0, len(found.keys), DELETE_LIMIT_MAX):
            await self._store.delete_many([Doomed(key) for key in found.keys[start : start + DELETE_LIMIT_MAX]])

    async def close(self) -> None:
        await self._store.close()
