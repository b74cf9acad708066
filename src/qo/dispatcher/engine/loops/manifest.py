"""The manifest loop writes the manifests of published datasets, some time after their commits.

Several dispatchers may write at once, and one of them may be slow. So the latest manifest is replaced only by one of a
later epoch or revision.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec

from qo.config.settings import Settings
from qo.dispatcher.state import commit_locks
from qo.dispatcher.state.database import State
from qo.dispatcher.views import manifests
from qo.dispatcher.views.manifests import DIRECTORY, Due
from qo.store.directory import Directory, open_directory


async def tick(state: State, settings: Settings) -> int:
    """Write the manifests that are due; return how many."""
    due = await asyncio.to_thread(_find_due, state)
    if not due:
        return 0
    root = await open_directory(settings.dispatcher.data_root, settings)
    try:
        for each in due:
            document = await asyncio.to_thread(_read_manifest, state, each)
            await write(root, document)
            await asyncio.to_thread(_mark, state, each, len(document["files"]))
    finally:
        await root.close()
    return len(due)


async def write(root: Directory, document: dict[str, Any]) -> bool:
    """Write both files of a manifest into the data root. Return whether the latest one was replaced.

    Raises Contended when other dispatchers won every time; the next tick tries again.
    """
    body = msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
    folder = f"{DIRECTORY}/{quote(document['name'], safe='')}"
    await root.create(f"{folder}/{document['revision']}.json", body)  # If it exists, it has the same content.
    return await root.update(
        f"{folder}/latest.json", lambda content: body if content is None or _is_later(body, content) else None
    )


def _is_later(new: bytes, old: bytes) -> bool:
    return _position(new) > _position(old)


def _position(body: bytes) -> tuple[int, int]:
    try:
        manifest = msgspec.json.decode(body)
        return int(manifest["epoch"]), int(manifest["revision"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return -1, -1  # Not a manifest, or damaged: replace it.


def _find_due(state: State) -> list[Due]:
    with state.read() as tx:
        due = manifests.due(tx)
    # Commits under way may get earlier revisions than those of the manifests.
    commit_locks.await_commits_first(state, {each.generation_id for each in due})
    return due


def _read_manifest(state: State, due: Due) -> dict[str, Any]:
    with state.read() as tx:
        return manifests.manifest(tx, due)


def _mark(state: State, due: Due, pieces: int) -> None:
    with state.write() as tx:
        manifests.mark(tx, due, pieces)
