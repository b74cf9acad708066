"""Tasks in the store: load one, create one, move one. The only code that writes a task object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.lifecycle import Claim, Command, Rejected, decide
from qo.core.shard import shard_of
from qo.core.task import Task
from qo.errors import Contended, CorruptRecord, NotFound
from qo.queue.hints import Hints
from qo.store import register
from qo.store.port import ObjectStore, PutResult

MOVES_MAX = 10

Release = Callable[[Task], Awaitable[bool]]


async def _release_nothing(task: Task) -> bool:
    return True


class Snapshot(NamedTuple):
    """A task as it was read or written, with its ETag."""

    task: Task
    etag: str


def _ignore(_: Task) -> None:
    """Nobody wants to know."""


class Tasks:
    def __init__(self, store: ObjectStore, hints: Hints, prefix_len: int, ambient: Ambient) -> None:
        self._store = store
        self._hints = hints
        self._prefix_len = prefix_len
        self._ambient = ambient
        self.on_write: Callable[[Task], None] = _ignore  # Called after each write, once the hints are there.
        self.release: Release = (
            _release_nothing  # Set by the queue: tells the dependents of a task that has ended.
        )

    def key(self, task_id: str) -> str:
        return keys.task(shard_of(task_id, self._prefix_len), task_id)

    async def load(self, task_id: str) -> Snapshot | None:
        key = self.key(task_id)
        stored = await self._store.get(key)
        return None if stored is None else Snapshot(wire.decode_task(stored.body, key), stored.etag)

    async def create(self, task: Task) -> tuple[Snapshot, bool]:
        """Write a new task, then its hint. If the id is taken, return the task that is there, and False."""
        key = self.key(task.id)
        for _ in range(MOVES_MAX):
            wrote = await self._write(key, task, None)
            if isinstance(wrote, PutResult):
                await self.project(task)
                self.on_write(task)
                return Snapshot(task, wrote.etag), True
            if wrote.current is not None:
                return Snapshot(wire.decode_task(wrote.current.body, key), wrote.current.etag), False
            # It was there, and then it was purged: its idempotency key may be used again.
        raise Contended(f"task {task.id} was purged each time while it was being created; submit again")

    async def apply(self, snapshot: Snapshot, command: Command, *, follow: bool = True) -> Snapshot | Rejected:
        """Apply a command to a task, or return why it is rejected. Decides again on what is there if others write too.

        If that ends the task, its dependents are told, unless ``follow`` is false: then the caller has to.

        Raises Contended when other writers won every time; back off and call again.
        """
        key = self.key(snapshot.task.id)
        for _ in range(MOVES_MAX):
            decision = decide(snapshot.task, command, now=await self._store.now())
            if isinstance(decision, Rejected):
                return decision
            if decision is snapshot.task:
                await self.project(snapshot.task)  # Its writer may have died before writing the hint.
                if follow and snapshot.task.ended:
                    await self.release(snapshot.task)
                return snapshot
            wrote = await self._move(key, snapshot, decision, command, follow)
            if isinstance(wrote, PutResult):
                self.on_write(decision)
                return Snapshot(decision, wrote.etag)
            if wrote.current is None and snapshot.task.ended:
                raise NotFound(f"task {snapshot.task.id} was purged a moment ago")
            if wrote.current is None:
                raise CorruptRecord(f"{key} was deleted while task {snapshot.task.id} was {snapshot.task.status}")
            snapshot = Snapshot(wire.decode_task(wrote.current.body, key), wrote.current.etag)
        raise Contended(f"task {snapshot.task.id} is being changed by others all the time; try again")

    async def project(self, task: Task) -> None:
        """Write the hint that the task should have."""
        if (hint := keys.index_key(task)) is not None:
            await self._hints.add(hint, task.token)

    async def _move(
        self, key: str, snapshot: Snapshot, task: Task, command: Command, follow: bool
    ) -> PutResult | register.Moved:
        """Write the task and its new hint, tell its dependents if it has ended, then drop the old hint. If one of these
        fails, the old one stays, so that one leads to the task."""
        old, new = keys.index_key(snapshot.task), keys.index_key(task)
        if isinstance(command, Claim) and new is not None:
            # The lease key is written along with the claim, not after it: the monitor then knows when to look even if
            # the worker dies right after claiming. If the claim fails, the key stays until its minute.
            hinting = self._hints.start_adding(new, task.token)
            try:
                wrote = await self._write(key, task, snapshot.etag)
            finally:
                hinted = await hinting
        else:
            wrote = await self._write(key, task, snapshot.etag)
            rehint = isinstance(wrote, PutResult) and new != old
            hinted = await self._hints.add(new, task.token) if rehint and new is not None else True
            if isinstance(wrote, PutResult) and follow and task.ended and not snapshot.task.ended:
                hinted = await self.release(task) and hinted
        if isinstance(wrote, PutResult) and hinted and old is not None and old != new:
            self._hints.drop(old)
        return wrote

    async def _write(self, key: str, task: Task, etag: str | None) -> PutResult | register.Moved:
        def ours(body: bytes) -> bool:
            return wire.decode_task(body, key).token == task.token

        return await register.write(
            self._store, key, wire.encode(task), if_match=etag, ours=ours, ambient=self._ambient
        )
