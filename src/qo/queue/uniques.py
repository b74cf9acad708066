"""Unique tasks in the bucket: one small object for each names the task that stands for all that are the same.

Whoever submits writes the id of its task there first, by conditional write, and then creates the task under that id. If
it dies in between, the next submitter of the same finds the id and no task, and creates it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from qo.ambient import Ambient
from qo.core import keys, uniqueness, wire
from qo.core.uniqueness import Unique, UniqueHolder
from qo.errors import Contended
from qo.queue.payload import Payloads
from qo.queue.tasks import Snapshot, Tasks
from qo.store import register
from qo.store.port import ObjectStore

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
        identity = uniqueness.identity(unique, task_type, input)
        key, rest_s = keys.unique(self._payloads.hide_identity(identity)), REST_FIRST_S
        for _ in range(TRIES_MAX):
            stored = await self._store.get(key)
            if stored is not None:
                holder = wire.decode(UniqueHolder, stored.body, key)
                snapshot = await self._tasks.load(holder.task_id)
                if snapshot is None:
                    return holder.task_id  # Its submitter has died, or is about to create it: the first one does.
                if uniqueness.stands_for(snapshot.task, unique, now=await self._store.now()):
                    return snapshot
            if await self._replace(key, new_id, None if stored is None else stored.etag):
                return new_id
            await asyncio.sleep(rest_s * (0.5 + self._ambient.unit()))
            rest_s = min(rest_s * 2, REST_MAX_S)
        raise Contended(f"many submit the same unique task of type {task_type!r} at once; try again")

    async def _replace(self, key: str, task_id: str, etag: str | None) -> bool:
        holder = UniqueHolder(task_id=task_id, token=self._ambient.token())

        def ours(body: bytes) -> bool:
            return wire.decode(UniqueHolder, body, key).token == holder.token

        wrote = await register.write(
            self._store, key, wire.encode(holder), if_match=etag, ours=ours, ambient=self._ambient
        )
        return not isinstance(wrote, register.Moved)
