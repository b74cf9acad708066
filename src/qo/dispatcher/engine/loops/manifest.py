"""Writes the manifests of published datasets, some time after their commits.

Several dispatchers may write at once, and one of them may be slow: the latest manifest is replaced only by one that
says something later, on this machine under a lock, in a bucket on condition that it is unmoved.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from qo.config.settings import Settings
from qo.dispatcher.state.database import State
from qo.dispatcher.views import manifests
from qo.dispatcher.views.manifests import DIRECTORY, Due
from qo.errors import ConcurrentWrite, Contended, PreconditionFailed
from qo.store.opening import open_store
from qo.store.port import ObjectStore

TRIES = 5


async def tick(state: State, settings: Settings) -> int:
    """Write what is due; how many."""
    due = await asyncio.to_thread(_due, state)
    if not due:
        return 0
    async with opened(settings) as place:
        for each in due:
            document = await asyncio.to_thread(_document, state, each)
            await write(place, document)
            await asyncio.to_thread(_mark, state, each, len(document["files"]))
    return len(due)


class Place(Protocol):
    """Where manifests are kept."""

    async def keep(self, key: str, body: bytes) -> None:
        """Write it, if it is not there already."""
        ...

    async def advance(self, key: str, body: bytes) -> bool:
        """Put it in the place of an earlier one. False: what is there is as late, or later."""
        ...


async def write(place: Place, document: dict[str, Any]) -> bool:
    """Both files. Whether the latest one was replaced."""
    body = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    name = quote(document["name"], safe="")
    await place.keep(f"{name}/{document['revision']}.json", body)
    return await place.advance(f"{name}/latest.json", body)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncGenerator[Place]:
    """In the data root."""
    root = settings.dispatcher.data_root
    if not root.startswith("s3://"):
        yield Files(Path(root.removeprefix("file:").removeprefix("//")) / DIRECTORY)
        return
    store = (await open_store(replace(settings, store=root))).store
    try:
        yield Bucket(store)
    finally:
        await store.close()


class Files:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def keep(self, key: str, body: bytes) -> None:
        await asyncio.to_thread(self._keep, key, body)

    async def advance(self, key: str, body: bytes) -> bool:
        return await asyncio.to_thread(self._advance, key, body)

    def _keep(self, key: str, body: bytes) -> None:
        path = self._directory / key
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, body)

    def _advance(self, key: str, body: bytes) -> bool:
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Let go of when it is closed.
            if path.exists() and not _later(body, path.read_bytes()):
                return False
            _replace(path, body)
            return True


class Bucket:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def keep(self, key: str, body: bytes) -> None:
        try:
            await self._store.put(f"{DIRECTORY}/{key}", body, if_absent=True)
        except PreconditionFailed:
            return  # It is there, and says the same.

    async def advance(self, key: str, body: bytes) -> bool:
        """Raises Contended when others won every time; the next tick tries again."""
        for _ in range(TRIES):
            there = await self._store.get(f"{DIRECTORY}/{key}")
            if there is not None and not _later(body, there.body):
                return False
            try:
                await self._store.put(
                    f"{DIRECTORY}/{key}",
                    body,
                    if_match=None if there is None else there.etag,
                    if_absent=there is None,
                )
            except (PreconditionFailed, ConcurrentWrite):
                continue
            return True
        raise Contended(f"{key} is written by others all the time")


def _replace(path: Path, body: bytes) -> None:
    # Under a name of its own, so that nobody ever reads half of it.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(body)
    beside.replace(path)


def _later(new: bytes, old: bytes) -> bool:
    return _when(new) > _when(old)


def _when(body: bytes) -> tuple[int, int]:
    try:
        said = msgspec.json.decode(body)
        return int(said["epoch"]), int(said["revision"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return -1, -1  # Not ours, or damaged: anything is better.


def _due(state: State) -> list[Due]:
    with state.read() as tx:
        return manifests.due(tx)


def _document(state: State, wanted: Due) -> dict[str, Any]:
    with state.read() as tx:
        return manifests.manifest(tx, wanted)


def _mark(state: State, written: Due, pieces: int) -> None:
    with state.write() as tx:
        manifests.mark(tx, written, pieces)
