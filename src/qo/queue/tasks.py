"""Tasks in the store: load one, create one, move one. The only code that writes a task object."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.discovery import Due
from qo.core.lifecycle import Claim, Command, Rejected, decide
from qo.core.shard import shard_of
from qo.core.task import Task
from qo.errors import Contended, CorruptRecord, NotFound
from qo.queue.board import NoticeBoard
from qo.queue.hints import Hints, exactly
from qo.store import register
from qo.store.port import UNCHANGED, Deletion, ObjectStore, PutResult

MOVES_MAX = 10

Release = Callable[[Task], Awaitable[bool]]


async def _release_nothing(task: Task) -> bool:
    return True


class Snapshot(NamedTuple):
    """A task as it was read or written, with its ETag."""

    task: Task
    etag: str
    hints: tuple[Deletion, ...] | None = None  # Those that are known to lead to it; None: the one that should.

    @property
    def old_hints(self) -> tuple[Deletion, ...]:
        """The hints to remove once the task has a new one."""
        if self.hints is not None:
            return self.hints
        hint = keys.index_key(self.task)
        return () if hint is None else (Deletion(hint),)


def _ignore(_: Task) -> None:
    """Nobody wants to know."""


class Tasks:
    def __init__(
        self, store: ObjectStore, hints: Hints, board: NoticeBoard, prefix_len: int, ambient: Ambient
    ) -> None:
        self._store = store
        self._hints = hints
        self._board = board
        self._prefix_len = prefix_len
        self._ambient = ambient
        self.on_ready: Callable[[Task], None] = _ignore  # Called once the hint of a pending task is there.
        self.release: Release = (
            _release_nothing  # Set by the queue: tells the dependents of a task that has ended.
        )

    def key(self, task_id: str) -> str:
        return keys.task(shard_of(task_id, self._prefix_len), task_id)

    async def load(self, task_id: str, last: Snapshot | None = None) -> Snapshot | None:
        """Read a task. Return ``last``, as it was read before, if it has not changed since: then no body is sent."""
        key = self.key(task_id)
        if last is None:
            stored = await self._store.get(key)
        elif (stored := await self._store.get_if_changed(key, last.etag)) is UNCHANGED:
            return last
        return None if stored is None else Snapshot(wire.decode_task(stored.body, key), stored.etag)

    async def create(self, task: Task) -> tuple[Snapshot, bool]:
        """Write a new task, then its hint. If the id is taken, return the task that is there, and False."""
        key = self.key(task.id)
        for _ in range(MOVES_MAX):
            wrote = await self._write(key, task, None)
            if isinstance(wrote, PutResult):
                await self.project(task)
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
            moved = await self._move(key, snapshot, decision, command, follow)
            if isinstance(moved, Snapshot):
                return moved
            if moved.current is None and snapshot.task.ended:
                raise NotFound(f"task {snapshot.task.id} was purged a moment ago")
            if moved.current is None:
                raise CorruptRecord(f"{key} was deleted while task {snapshot.task.id} was {snapshot.task.status}")
            task = wire.decode_task(moved.current.body, key)
            is_same_attempt = task.lease_id is not None and task.lease_id == snapshot.task.lease_id
            snapshot = Snapshot(task, moved.current.etag, snapshot.hints if is_same_attempt else None)
        raise Contended(f"task {snapshot.task.id} is being changed by others all the time; try again")

    async def project(self, task: Task) -> None:
        """Write the hint that the task should have, and announce the task if it is pending."""
        if (hint := keys.index_key(task)) is not None:
            await self._add_hint(hint, task)

    async def _add_hint(self, key: str, task: Task) -> Deletion | None:
        """Return how to remove it, or None if that failed: the task's old hint must then stay."""
        result = await self._hints.add(key, task.token)
        if result is None and key.startswith(keys.INBOX):
            # Perhaps this process has no right to write there. The ready index leads to the task as well.
            return await self._add_hint(keys.ready_key(task), replace(task, inbox=None))
        if result is None:
            return None
        if keys.is_claimable_hint(key):
            self._board.post(task, result)
            self.on_ready(task)
        return exactly(key, result)

    async def index_lease(self, snapshot: Snapshot) -> Deletion | None:
        """Write the lease hint of a claimed task that is still found through its ready hint. None: there is nothing to
        do, or that failed."""
        key = keys.index_key(snapshot.task)
        if key is None or any(hint.key == key for hint in snapshot.old_hints):
            return None
        return await self._add_hint(key, snapshot.task)

    async def repair_hint(self, due: Due, task: Task | None) -> None:
        """Remove a hint that does not match its task, once the one that does is there, and dependents are told: whoever
        moved the task may have died before that."""
        if task is not None and (hint := keys.index_key(task)) is not None:
            await self._hints.restore(hint, task.token)
        if task is None or not task.ended or await self.release(task):
            await self._hints.drop_stale(due.key, due.etag)

    async def _move(
        self, key: str, snapshot: Snapshot, task: Task, command: Command, follow: bool
    ) -> Snapshot | register.Moved:
        """Write the task and its new hint, tell its dependents if it has ended, then drop the old hints. If one of
        these fails, the old ones stay, so that one leads to the task."""
        if isinstance(command, Claim):
            return await self._move_claimed(key, snapshot, task)
        wrote = await self._write(key, task, snapshot.etag)
        if not isinstance(wrote, PutResult):
            return wrote
        old, new = snapshot.old_hints, keys.index_key(task)
        if task.status is snapshot.task.status and any(hint.key == new for hint in old):
            return Snapshot(task, wrote.etag, snapshot.hints)
        hint = None if new is None else await self._add_hint(new, task)
        must_tell = follow and task.ended and not snapshot.task.ended
        is_told = await self.release(task) if must_tell else True
        if not is_told or (new is not None and hint is None):
            return Snapshot(task, wrote.etag, old)
        self.drop_hints(old, instead=hint)
        return Snapshot(task, wrote.etag, () if hint is None else (hint,))

    async def _move_claimed(self, key: str, snapshot: Snapshot, task: Task) -> Snapshot | register.Moved:
        """Write a claim. A task that was found through its ready hint keeps that one for now: most tasks end before
        they need another. It leads to the task if the worker dies."""
        new = keys.index_key(task)
        if snapshot.hints or new is None:
            wrote = await self._write(key, task, snapshot.etag)
            return wrote if isinstance(wrote, register.Moved) else Snapshot(task, wrote.etag, snapshot.hints)
        # The lease key is written along with the claim, not after it: the monitor then knows when to look even if the
        # worker dies right after claiming. If the claim fails, the key stays until its minute.
        hinting = self._hints.start_adding(new, task.token)
        try:
            wrote = await self._write(key, task, snapshot.etag)
        finally:
            hinted = await hinting
        if isinstance(wrote, register.Moved):
            return wrote
        if hinted is None:
            return Snapshot(task, wrote.etag, snapshot.old_hints)
        hint = exactly(new, hinted)
        self.drop_hints(snapshot.old_hints, instead=hint)
        return Snapshot(task, wrote.etag, (hint,))

    def drop_hints(self, old: tuple[Deletion, ...], *, instead: Deletion | None) -> None:
        """Remove old hints of a task soon, now that the new one is written. One with the same key was replaced by that,
        unless the bucket keeps it as an old version."""
        for hint in old:
            if instead is None or hint.key != instead.key or (hint.version not in (None, instead.version)):
                self._hints.drop(hint)

    async def _write(self, key: str, task: Task, etag: str | None) -> PutResult | register.Moved:
        def ours(body: bytes) -> bool:
            return wire.decode_task(body, key).token == task.token

        return await register.write(
            self._store, key, wire.encode(task), if_match=etag, ours=ours, ambient=self._ambient
        )
