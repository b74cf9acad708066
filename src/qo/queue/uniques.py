"""Unique tasks in the bucket: one small object for each names the task that stands for all that are the same.

Whoever submits writes the id of its task there first, by conditional write, and then creates the task under that id. If
it dies in between, the next submitter of the same finds the id and no task, and creates it.

The object's name is derived from what makes the tasks the same. In an encrypted queue that takes the key: otherwise
whoever lists the bucket could find out by guessing what the inputs are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from qo.ambient import Ambient
from qo.core import keys, uniqueness, wire
from qo.core.uniqueness import Unique, UniqueHolder
from qo.errors import Contended
from qo.queue.payload import Payloads
from qo.queue.tasks import Snapshot, Tasks
from qo.store import register
from qo.store.port import ObjectStore

PURPOSE = "unique tasks"  # What the key of these names is derived for.
TRIES_MAX = 40
REST_FIRST_S, REST_MAX_S = 0.02, 1.0


class Uniques:
    def __init__(self, store: ObjectStore, tasks: Tasks, payloads: Payloads, ambient: Ambient) -> None:
        self._store = store
        self._tasks = tasks
        self._payloads = payloads
        self._ambient = ambient

    async def find(self, unique: Unique, task_type: str, input: Any, new_id: str) -> Snapshot | str:
        """Return the task that stands for a new one, or the id under which the new one is to be created.

        Raises Contended when other submitters won every time.
        """
        (key, *former_keys), rest_s = self._keys(uniqueness.identity(unique, task_type, input)), REST_FIRST_S
        for _ in range(TRIES_MAX):
            stored = await self._store.get(key)
            if stored is not None:
                holder = wire.decode(UniqueHolder, stored.body, key)
                snapshot = await self._tasks.load(holder.task_id)
                if snapshot is None:
                    return holder.task_id  # Its submitter has died, or is about to create it: the first one does.
                if uniqueness.stands_for(snapshot.task, unique, now=await self._store.now()):
                    return snapshot
            if (former := await self._find_former(former_keys, unique)) is not None:
                return former
            if await self._replace(key, new_id, None if stored is None else stored.etag):
                return new_id
            await asyncio.sleep(rest_s * (0.5 + self._ambient.unit()))
            rest_s = min(rest_s * 2, REST_MAX_S)
        raise Contended(f"many submit the same unique task of type {task_type!r} at once; try again")

    def _keys(self, identity: str) -> list[str]:
        """Return the key of the object, and those that it had before the encryption key was changed or introduced."""
        return [keys.unique(name) for name in (*self._payloads.conceal(identity, PURPOSE), identity)]

    async def _find_former(self, former_keys: Sequence[str], unique: Unique) -> Snapshot | None:
        """Return the task that stands for a new one by an object with a former name."""
        for key in former_keys:
            stored = await self._store.get(key)
            if stored is None:
                continue
            snapshot = await self._tasks.load(wire.decode(UniqueHolder, stored.body, key).task_id)
            if snapshot is not None and uniqueness.stands_for(snapshot.task, unique, now=await self._store.now()):
                return snapshot
        return None

    async def _replace(self, key: str, task_id: str, etag: str | None) -> bool:
        holder = UniqueHolder(task_id=task_id, token=self._ambient.token())

        def ours(body: bytes) -> bool:
            return wire.decode(UniqueHolder, body, key).token == holder.token

        wrote = await register.write(
            self._store, key, wire.encode(holder), if_match=etag, ours=ours, ambient=self._ambient
        )
        return not isinstance(wrote, register.Moved)
