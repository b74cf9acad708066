"""Schedules in the store: one object each, changed only by compare-and-swap."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

from msgspec.structs import replace

from qo.core import keys, wire
from qo.core.schedule import CatchUp, Overlap, Schedule, change, run_key, validate, validate_name
from qo.core.task import Task
from qo.errors import Contended, CorruptRecord, NotFound, Refused
from qo.queue.concurrency import gather_cancellable
from qo.queue.listing import READS_AT_ONCE, pages
from qo.queue.options import NewTask, Options, build
from qo.queue.queue import Queue
from qo.store import register
from qo.store.port import PutResult, Stored

log = logging.getLogger(__name__)

WRITES_MAX = 10
KEY_SCOPE = "schedule"  # Of the runs' idempotency keys, so that a run keeps its id when the task type is changed.


class Settings(TypedDict, total=False):
    """The optional settings of a schedule; see ``core.schedule.Schedule``."""

    input: Any
    timezone: str
    enabled: bool
    catch_up: CatchUp
    overlap: Overlap
    timeout_s: float | None
    max_retries: int
    priority: int


class Changes(Settings, total=False):
    task_type: str
    cron: str


class Snapshot(NamedTuple):
    """A schedule as it was read or written, with its ETag."""

    schedule: Schedule
    etag: str


def snapshot(stored: Stored, key: str) -> Snapshot:
    return Snapshot(wire.decode(Schedule, stored.body, key), stored.etag)


def new_task(schedule: Schedule, key: str | None = None) -> NewTask:
    """Return the task that the schedule submits; with a key, for exactly one planned run."""
    options = Options(
        key=key,
        key_scope=None if key is None else KEY_SCOPE,
        timeout_s=schedule.timeout_s,
        max_retries=schedule.max_retries,
        priority=schedule.priority,
        schedule=schedule.name,
    )
    return NewTask(schedule.task_type, schedule.input, options)


def schedule_owner(name: str) -> str:
    """Return what the encrypted input of a schedule is bound to."""
    return f"schedule {name}"


class Schedules:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.store
        self._ambient = queue.ambient

    async def create(self, name: str, *, task_type: str, cron: str, **settings: Unpack[Settings]) -> Schedule:
        """Create a schedule; its first run is the first planned time after now.

        Raises UsageError if it could never run, Refused if the name is taken.
        """
        now = await self._store.now()
        schedule = Schedule(
            name=name,
            token=self._ambient.token(),
            task_type=task_type,
            cron=cron,
            created_at=now,
            updated_at=now,
            active_since=now,
            **settings,
        )
        schedule = self._validate(schedule)
        wrote = await self._write(schedule, None)
        if isinstance(wrote, register.Moved):
            raise Refused(f"there is a schedule {name} already: update or delete it, or choose another name")
        return schedule

    async def get(self, name: str) -> Schedule:
        return self._reveal((await self._load(name)).schedule)

    async def list(self) -> list[Schedule]:
        """Return every readable schedule, sorted by name. Unreadable ones are logged."""
        schedules: list[Schedule] = []
        async for entries in pages(self._store, keys.SCHEDULES):
            for start in range(0, len(entries), READS_AT_ONCE):
                batch = entries[start : start + READS_AT_ONCE]
                bodies = await gather_cancellable(self._store.get(entry.key) for entry in batch)
                for entry, stored in zip(batch, bodies, strict=True):
                    try:
                        schedules += [] if stored is None else [snapshot(stored, entry.key).schedule]
                    except CorruptRecord as error:
                        log.warning("schedule left out: %s", error)
        schedules = [self._reveal(schedule) for schedule in schedules]
        return sorted(schedules, key=lambda schedule: schedule.name)

    async def update(self, name: str, **changes: Unpack[Changes]) -> Schedule:
        """Change some settings. A new cron or time zone counts from now: earlier runs are not caught up."""
        return await self._change(name, **changes)

    async def enable(self, name: str) -> Schedule:
        """Enable the schedule from now on: runs of the time in between are not caught up."""
        return await self._change(name, enabled=True)

    async def disable(self, name: str) -> Schedule:
        return await self._change(name, enabled=False)

    async def delete(self, name: str) -> None:
        """Remove the schedule, even one that cannot be read. Tasks it has submitted stay."""
        await self._get_object(name)
        await self._store.delete(keys.schedule(name))

    async def trigger(self, name: str) -> Task:
        """Submit a run now, outside the plan, even if the schedule is disabled or its last run has not ended."""
        new = new_task(self.with_input((await self._load(name)).schedule))
        task = await self._queue.submit(new.task_type, new.input, new.options)
        await self._change(name, last_task_id=task.id)  # So that a planned run does not overlap this one.
        return task

    async def _change(self, name: str, **changes: Any) -> Schedule:
        now, token = await self._store.now(), self._ambient.token()

        def move(schedule: Schedule) -> Schedule:
            if "input" not in changes:  # Or else an input of somebody without the key would be encrypted here.
                self._queue.payloads.require_sealed(schedule.input, schedule_owner(name), "input")
            return self._validate(change(schedule, now=now, token=token, **changes))

        moved = await self.apply(await self._load(name), move)
        if moved is None:
            raise NotFound(f"schedule {name} was deleted meanwhile")
        return moved.schedule

    async def apply(self, current: Snapshot, move: Callable[[Schedule], Schedule]) -> Snapshot | None:
        """Change a schedule from ``current``. ``move`` is called again on what is there if others write too; it returns
        the same schedule if nothing is left to do. Return None if the schedule was deleted.

        Raises Contended when other writers won every time; back off and call again.
        """
        name = current.schedule.name
        for _ in range(WRITES_MAX):
            after = move(current.schedule)
            if after is current.schedule:
                return current
            wrote = await self._write(after, current.etag)
            if isinstance(wrote, PutResult):
                return Snapshot(after, wrote.etag)
            if wrote.current is None:
                return None
            current = snapshot(wrote.current, keys.schedule(name))
        raise Contended(f"schedule {name} is being changed by others all the time; try again")

    def with_input(self, schedule: Schedule) -> Schedule:
        """Return the schedule with its input decrypted. Raises Refused if the key is not here, or the input is not
        encrypted and should be."""
        plain_input = self._queue.payloads.open_input_of(schedule_owner(schedule.name), schedule.input)
        return schedule if plain_input == schedule.input else replace(schedule, input=plain_input)

    def _reveal(self, schedule: Schedule) -> Schedule:
        try:
            return self.with_input(schedule)
        except (Refused, CorruptRecord):
            return schedule  # Readers without the key see that it is encrypted.

    async def _load(self, name: str) -> Snapshot:
        return snapshot(await self._get_object(name), keys.schedule(name))

    async def _get_object(self, name: str) -> Stored:
        stored = await self._store.get(keys.schedule(validate_name(name)))
        if stored is None:
            raise NotFound(f"there is no schedule {name} in this queue")
        return stored

    async def _write(self, schedule: Schedule, etag: str | None) -> PutResult | register.Moved:
        key = keys.schedule(schedule.name)

        def ours(body: bytes) -> bool:
            return wire.decode(Schedule, body, key).token == schedule.token

        body = wire.encode(schedule)
        return await register.write(self._store, key, body, if_match=etag, ours=ours, ambient=self._ambient)

    def _validate(self, schedule: Schedule) -> Schedule:
        """Return the schedule to store. Raises UsageError now if its tasks could not be submitted later."""
        value = wire.payload(schedule.input, "the input").value
        sealed = self._queue.payloads.seal_input_of(schedule_owner(schedule.name), value)
        schedule = replace(validate(schedule), input=sealed)
        new = new_task(schedule, run_key(schedule, schedule.created_at))
        build(new, now=schedule.created_at, prefix_len=self._queue.prefix_len, ambient=self._ambient)
        return schedule
