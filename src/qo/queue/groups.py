"""Groups: tasks of one group run one at a time, in the order in which they got in line.

The line is linked: each task in it waits for the turn of the one before. The only object of a group is its end,
``registers/groups/{hash}.json``, moved by conditional write to the next task that joins: that write decides the order.
Before it replaces the last task, whoever joins makes sure that this one knows its own place; so nothing is lost if the
process that wrote the object dies before it tells the task.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.commands import Rejected, TakeTurn
from qo.core.struct_preload import preload
from qo.core.task import Task
from qo.core.waits import (
    GROUP,
    Verdict,
    assess,
    flow_of,
    is_turn_over,
    target_of,
    turn_condition,
    wants_place,
)
from qo.errors import Contended, CorruptRecord
from qo.queue.listing import pages
from qo.queue.tasks import Snapshot, Tasks
from qo.store import register
from qo.store.port import ObjectStore

log = logging.getLogger(__name__)

JOINS_MAX = 40
REST_FIRST_S, REST_MAX_S = 0.02, 1.0


class LineEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The last task in the line of a group."""

    name: str
    task_id: str
    turn: int
    after: str | None  # The turn before it, when it joined.
    token: str


preload(LineEnd)


class Groups:
    def __init__(self, store: ObjectStore, tasks: Tasks, ambient: Ambient) -> None:
        self._store = store
        self._tasks = tasks
        self._ambient = ambient

    async def join(self, snapshot: Snapshot) -> Snapshot:
        """Give a task its place at the end of its group's line, unless it has one. May be repeated by anybody.

        Raises Contended when other tasks joined first every time.
        """
        task, rest_s = snapshot.task, REST_FIRST_S
        name = flow_of(task).group or ""
        for _ in range(JOINS_MAX):
            last, etag = await self._last(name)
            # Read after the line's end: if the task has joined and others after it, it knows its place by now.
            loaded = await self._tasks.load(task.id)
            if loaded is None or not wants_place(flow_of(loaded.task)):
                return loaded or snapshot
            turn = flow_of(loaded.task).turn
            if last is not None and (last.task_id, last.turn) == (task.id, turn):
                return await self._place(loaded, last)
            if last is not None:
                await self._place_last(last)
            end = LineEnd(
                name=name,
                task_id=task.id,
                turn=turn,
                after=None if last is None else turn_condition(last.task_id, last.turn),
                token=self._ambient.token(),
            )
            if await self._replace(end, etag):
                return await self._place(loaded, end)
            await asyncio.sleep(rest_s * (0.5 + self._ambient.unit()))
            rest_s = min(rest_s * 2, REST_MAX_S)
        raise Contended(
            f"other tasks join the group {name!r} all the time: try again with fewer submitters at once"
        )

    async def _place_last(self, last: LineEnd) -> None:
        """Make sure that the last task knows its place, before another one replaces it."""
        snapshot = await self._tasks.load(last.task_id)
        if snapshot is not None and flow_of(snapshot.task).turn == last.turn:
            await self._place(snapshot, last)

    async def _place(self, snapshot: Snapshot, end: LineEnd) -> Snapshot:
        """Tell a task which turn is before its own."""
        if GROUP not in flow_of(snapshot.task).waits_for:
            return snapshot
        after = end.after
        if after is not None:
            before = await self._tasks.load(target_of(after))
            if assess(snapshot.task, after, None if before is None else before.task) is Verdict.MET:
                after = None
        moved = await self._tasks.apply(snapshot, TakeTurn(self._ambient.token(), end.turn, after))
        return snapshot if isinstance(moved, Rejected) else moved

    async def line(self, name: str) -> list[Task]:
        """Return the tasks of a group that have not ended, in the order of their turns."""
        last, _ = await self._last(name)
        tasks: deque[Task] = deque()
        place = None if last is None else turn_condition(last.task_id, last.turn)
        while place is not None:
            snapshot = await self._tasks.load(target_of(place))
            if snapshot is None or is_turn_over(snapshot.task, int(place.partition("#")[2])):
                break
            if not snapshot.task.ended:
                tasks.appendleft(snapshot.task)
            waits_for = flow_of(snapshot.task).waits_for
            place = last.after if last is not None and GROUP in waits_for else next(iter(waits_for), None)
            last = None
        return list(tasks)

    async def names(self) -> AsyncIterator[str]:
        """Yield the name of every group that a task has ever joined. Unreadable ones are logged."""
        async for entries in pages(self._store, keys.GROUPS):
            for entry in entries:
                if (stored := await self._store.get(entry.key)) is None:
                    continue
                try:
                    name = wire.decode(LineEnd, stored.body, entry.key).name
                except CorruptRecord as error:
                    log.warning("group left out: %s", error)
                else:
                    yield name

    async def _last(self, name: str) -> tuple[LineEnd | None, str | None]:
        key = keys.group(name)
        stored = await self._store.get(key)
        if stored is None:
            return None, None
        last = wire.decode(LineEnd, stored.body, key)
        if last.name != name:
            raise CorruptRecord(f"{key} is of the group {last.name!r}, not of {name!r}")
        return last, stored.etag

    async def _replace(self, end: LineEnd, etag: str | None) -> bool:
        key = keys.group(end.name)

        def ours(body: bytes) -> bool:
            return wire.decode(LineEnd, body, key).token == end.token

        wrote = await register.write(
            self._store, key, wire.encode(end), if_match=etag, ours=ours, ambient=self._ambient
        )
        return not isinstance(wrote, register.Moved)
