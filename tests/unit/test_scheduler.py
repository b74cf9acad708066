"""Schedules in a store, and the scheduler's passes over them, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from qo.ambient import Ambient
from qo.core import keys, wire
from qo.core.pricing import Operation
from qo.core.schedule import RUNS_MAX, CatchUp, Overlap, Schedule
from qo.core.task import Status, Task
from qo.errors import NotFound, Refused, StoreError, Unavailable, UsageError
from qo.queue.queue import Claim, Queue
from qo.queue.schedule_runner import Report, Scheduler
from qo.queue.schedules import Schedules
from qo.store.faulty import FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.metered import Metered
from qo.store.port import PutResult

pytestmark = pytest.mark.fast

START = datetime(2026, 3, 1, 12, 0, 20, tzinfo=UTC)
ONE = datetime(2026, 3, 1, 13, tzinfo=UTC)
HOUR = timedelta(hours=1)


class World:
    """A queue in memory, its schedules, and the store's clock."""

    def __init__(self) -> None:
        self.time = START
        self.store = MemoryStore(clock=lambda: self.time)
        self.queue = Queue(self.store, ambient=Ambient.seeded(7))
        self.schedules = Schedules(self.queue)
        self.scheduler = Scheduler(self.queue)

    async def hourly(self, name: str = "report", **more: Any) -> Schedule:
        return await self.schedules.create(name, task_type="work", cron="0 * * * *", **more)

    async def tick_at(self, time: datetime, scheduler: Scheduler | None = None) -> Report:
        self.time = time
        return await (scheduler or self.scheduler).tick()

    async def tasks(self) -> list[Task]:
        return sorted(await self.queue.list(limit=1000), key=lambda task: task.created_at)

    async def finish(self, task_id: str | None) -> None:
        assert task_id is not None
        claim = await self.queue.claim(task_id, worker_id="w")
        assert isinstance(claim, Claim)
        await self.queue.complete(claim)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.queue.close()


# Keeping schedules


async def test_a_schedule_is_found_as_it_was_created(world: World) -> None:
    made = await world.hourly("b", input={"n": 1}, timezone="Europe/Berlin", priority=3)
    await world.hourly("b-c")
    await world.hourly("a")
    assert await world.schedules.get("b") == made
    assert (made.created_at, made.active_since, made.last_run_at) == (START, START, None)
    assert [schedule.name for schedule in await world.schedules.list()] == ["a", "b", "b-c"]


async def test_a_taken_name_is_refused_and_its_schedule_left_alone(world: World) -> None:
    first = await world.hourly()
    with pytest.raises(Refused, match="report"):
        await world.hourly(priority=9)
    assert await world.schedules.get("report") == first


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": "a/b"}, "name"),
        ({"cron": "* * *"}, "fields"),
        ({"timezone": "Mars/Olympus"}, "time zone"),
        ({"catch_up": "sometimes"}, "catch_up"),
        ({"task_type": ""}, "task type"),
        ({"priority": 10}, "priority"),
        ({"max_retries": -1}, "max_retries"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"input": {1, 2}}, "input"),
    ],
)
async def test_a_schedule_that_could_not_submit_its_tasks_is_never_stored(
    world: World, wrong: dict[str, Any], why: str
) -> None:
    good: dict[str, Any] = {"name": "report", "task_type": "work", "cron": "0 * * * *"}
    with pytest.raises(UsageError, match=why):
        await world.schedules.create(**{**good, **wrong})
    assert await world.schedules.list() == []
    made = await world.schedules.create(**good)
    if "name" not in wrong:
        with pytest.raises(UsageError, match=why):
            await world.schedules.update("report", **wrong)
        assert await world.schedules.get("report") == made


async def test_what_is_not_there_is_said_to_be_missing(world: World) -> None:
    calls = [
        world.schedules.get("none"),
        world.schedules.update("none", priority=1),
        world.schedules.enable("none"),
        world.schedules.disable("none"),
        world.schedules.delete("none"),
        world.schedules.trigger("none"),
    ]
    for call in calls:
        with pytest.raises(NotFound, match="none"):
            await call


async def test_of_changes_made_at_once_none_is_lost(world: World) -> None:
    await world.hourly()
    await asyncio.gather(
        world.schedules.update("report", priority=5),
        world.schedules.update("report", max_retries=9),
        world.schedules.update("report", overlap=Overlap.SKIP),
        world.schedules.disable("report"),
    )
    found = await world.schedules.get("report")
    assert (found.priority, found.max_retries, found.overlap, found.enabled) == (5, 9, Overlap.SKIP, False)


async def test_deleting_a_schedule_leaves_its_tasks(world: World) -> None:
    await world.hourly()
    await world.tick_at(ONE)
    await world.schedules.delete("report")
    with pytest.raises(NotFound):
        await world.schedules.get("report")
    assert len(await world.tasks()) == 1
    assert await world.tick_at(ONE + HOUR) == Report()


async def test_a_trigger_runs_now_and_leaves_the_plan_as_it_is(world: World) -> None:
    await world.hourly(enabled=False, input={"n": 1}, priority=2)
    task = await world.schedules.trigger("report")
    assert (task.schedule, task.input, task.priority, task.available_at) == ("report", {"n": 1}, 2, START)
    again = await world.schedules.trigger("report")
    found = await world.schedules.get("report")
    assert (found.last_task_id, found.last_run_at) == (again.id, None)
    assert again.id != task.id


# Passes


async def test_a_run_submits_the_task_that_the_schedule_describes(world: World) -> None:
    await world.hourly(input={"n": [1, "ü"]}, timeout_s=77, max_retries=8, priority=4)
    assert await world.tick_at(ONE - timedelta(seconds=1)) == Report(schedules=1)
    assert await world.tick_at(ONE) == Report(schedules=1, fired=1)
    (task,) = await world.tasks()
    assert (task.task_type, task.input, task.schedule) == ("work", {"n": [1, "ü"]}, "report")
    assert (task.timeout_seconds, task.max_retries, task.priority) == (77, 8, 4)
    assert (task.status, task.available_at) == (Status.PENDING, ONE)
    found = await world.schedules.get("report")
    assert (found.last_run_at, found.last_task_id) == (ONE, task.id)


async def test_a_run_fires_once_however_many_passes_see_it(world: World) -> None:
    await world.hourly()
    assert (await world.tick_at(ONE)).fired == 1
    for seconds in (0, 1, 59, 3599):
        assert (await world.tick_at(ONE + timedelta(seconds=seconds))).fired == 0
    assert (await world.tick_at(ONE + HOUR)).fired == 1
    assert len(await world.tasks()) == 2


async def test_racing_schedulers_fire_a_run_once(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.hourly(name)
    world.time = ONE
    schedulers = [Scheduler(Queue(world.store, ambient=Ambient.seeded(n))) for n in range(5)]
    reports = await asyncio.gather(*(scheduler.tick() for scheduler in schedulers))
    assert [report.failures for report in reports] == [()] * 5
    tasks = await world.tasks()
    assert sorted(str(task.schedule) for task in tasks) == ["a", "b", "c"]
    for schedule in await world.schedules.list():
        assert (await world.queue.get(schedule.last_task_id or "")).schedule == schedule.name
        assert schedule.last_run_at == ONE


@pytest.mark.parametrize("seed", range(4))
async def test_racing_schedulers_on_a_failing_store_fire_every_run_once(world: World, seed: int) -> None:
    await world.schedules.create("a", task_type="work", cron="*/5 * * * *", catch_up=CatchUp.ALL)
    plan = FaultPlan(refused=0.02, lost_reply=0.04, conflict=0.02, own_412=0.04)
    faulty = Faulty(world.store, plan, Ambient.seeded(seed))
    schedulers = [Scheduler(Queue(faulty, ambient=Ambient.seeded(100 * seed + n))) for n in range(3)]
    for minute in range(0, 61, 2):
        world.time = START + timedelta(minutes=minute)
        passes = await asyncio.gather(*(s.tick() for s in schedulers), return_exceptions=True)
        # A pass that could not even list the schedules is as one that did not happen.
        assert all(isinstance(done, Report | StoreError) for done in passes)
    await world.scheduler.tick()
    assert sum(faulty.injected.values()) > 0
    ids = [task.idempotency_key for task in await world.tasks()]
    assert len(ids) == len(set(ids)) == 12
    assert (await world.schedules.get("a")).last_run_at == ONE


async def test_an_idle_pass_costs_one_list(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.hourly(name)
    metered = Metered(world.store)
    scheduler = Scheduler(Queue(metered))
    await world.tick_at(START + HOUR, scheduler)
    metered.reset()
    await world.tick_at(START + HOUR, scheduler)
    assert metered.counts == {Operation.LIST: 1}
    await world.schedules.update("b", priority=1)
    await world.tick_at(START + HOUR, scheduler)
    assert metered.counts == {Operation.LIST: 2, Operation.GET: 1}


async def test_every_schedule_is_visited_however_many_there_are(world: World) -> None:
    base = await world.hourly("a0000")
    for n in range(1, 1005):
        twin = replace(base, name=f"a{n:04}")
        await world.store.put(keys.schedule(twin.name), wire.encode(twin))
    assert await world.tick_at(ONE) == Report(schedules=1005, fired=1005)


async def test_a_broken_schedule_is_reported_and_stops_no_other(world: World) -> None:
    await world.hourly("good")
    await world.store.put(keys.schedule("broken"), b"{")
    torn = await world.hourly("torn")
    await world.store.put(keys.schedule("torn"), wire.encode(replace(torn, cron="61 * * * *")))
    report = await world.tick_at(ONE)
    assert (report.schedules, report.fired, len(report.failures)) == (3, 1, 2)
    assert "schedules/broken.json" in report.failures[0]
    assert "61 * * * *" in report.failures[1]
    assert [each.name for each in await world.schedules.list()] == ["good", "torn"]


# What was missed


async def test_missed_runs_are_made_up_for_as_told(world: World) -> None:
    for catch_up in CatchUp:
        await world.hourly(catch_up.value, catch_up=catch_up)
    await world.tick_at(ONE + 3 * HOUR + timedelta(minutes=30))
    runs = [str(task.schedule) for task in await world.tasks()]
    assert sorted(runs) == ["all"] * 4 + ["last"]


async def test_a_long_absence_is_made_up_for_over_several_passes(world: World) -> None:
    await world.schedules.create("a", task_type="work", cron="* * * * *", catch_up=CatchUp.ALL)
    back = START + timedelta(minutes=RUNS_MAX + 10)
    fired = [(await world.tick_at(back)).fired for _ in range(3)]
    assert fired == [RUNS_MAX, 10, 0]
    assert len(await world.tasks()) == RUNS_MAX + 10


async def test_what_was_disabled_is_not_made_up_for(world: World) -> None:
    await world.hourly(catch_up=CatchUp.ALL)
    await world.schedules.disable("report")
    assert (await world.tick_at(ONE + 5 * HOUR)).fired == 0
    await world.schedules.enable("report")
    assert (await world.tick_at(ONE + 5 * HOUR + timedelta(minutes=30))).fired == 0
    assert (await world.tick_at(ONE + 6 * HOUR)).fired == 1


# Overlap


async def test_overlapping_runs_are_skipped_if_so_told(world: World) -> None:
    await world.hourly(overlap=Overlap.SKIP)
    await world.tick_at(ONE)
    first = (await world.schedules.get("report")).last_task_id
    assert await world.tick_at(ONE + HOUR) == Report(schedules=1, skipped=1)
    found = await world.schedules.get("report")
    assert (found.last_run_at, found.last_task_id) == (ONE + HOUR, first)
    await world.finish(first)
    assert (await world.tick_at(ONE + HOUR)).fired == 0, "a skipped run is not made up for"
    assert (await world.tick_at(ONE + 2 * HOUR)).fired == 1
    assert len(await world.tasks()) == 2


async def test_overlapping_runs_are_allowed_by_default(world: World) -> None:
    await world.hourly()
    await world.tick_at(ONE)
    assert await world.tick_at(ONE + HOUR) == Report(schedules=1, fired=1)


async def test_a_planned_run_does_not_overlap_a_triggered_one(world: World) -> None:
    await world.hourly(overlap=Overlap.SKIP)
    task = await world.schedules.trigger("report")
    assert (await world.tick_at(ONE)).skipped == 1
    await world.finish(task.id)
    assert (await world.tick_at(ONE + HOUR)).fired == 1


async def test_a_last_task_that_was_removed_blocks_nothing(world: World) -> None:
    await world.hourly(overlap=Overlap.SKIP)
    await world.tick_at(ONE)
    (task,) = await world.tasks()
    await world.store.delete(keys.task(task.shard, task.id))
    assert (await world.tick_at(ONE + HOUR)).fired == 1


# Crashes and changes in between


class Unwritable(MemoryStore):
    """A store whose keys under one prefix cannot be written for a while."""

    prefix = "nothing"

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if key.startswith(self.prefix):
            raise Unavailable(f"{key} cannot be written")
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


@pytest.fixture
async def fragile(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("qo.store.register.REST_FIRST_S", 0.0)
    world.store = Unwritable(clock=lambda: world.time)
    world.queue = Queue(world.store, ambient=Ambient.seeded(7))
    world.schedules, world.scheduler = Schedules(world.queue), Scheduler(world.queue)
    return world


def broken(world: World, prefix: str) -> None:
    assert isinstance(world.store, Unwritable)
    world.store.prefix = prefix


async def test_a_run_that_was_submitted_but_not_recorded_is_the_same_task_the_next_time(fragile: World) -> None:
    await fragile.hourly()
    broken(fragile, keys.SCHEDULES)
    report = await fragile.tick_at(ONE)
    assert len(report.failures) == 1
    assert (await fragile.schedules.get("report")).last_run_at is None
    (task,) = await fragile.tasks()
    await fragile.finish(task.id)
    broken(fragile, "nothing")
    assert (await fragile.tick_at(ONE + timedelta(seconds=15), Scheduler(fragile.queue))).fired == 1
    assert [(t.id, t.status) for t in await fragile.tasks()] == [(task.id, Status.COMPLETED)]
    found = await fragile.schedules.get("report")
    assert (found.last_run_at, found.last_task_id) == (ONE, task.id)


async def test_an_input_changed_between_submitting_and_recording_makes_no_second_run(fragile: World) -> None:
    await fragile.hourly(input={"n": 1})
    broken(fragile, keys.SCHEDULES)
    await fragile.tick_at(ONE)
    broken(fragile, "nothing")
    await fragile.schedules.update("report", input={"n": 2}, task_type="other")
    report = await fragile.tick_at(ONE + timedelta(seconds=15))
    assert (report.fired, report.failures) == (1, ())
    (task,) = await fragile.tasks()
    assert task.input == {"n": 1}
    assert (await fragile.schedules.get("report")).last_task_id == task.id


async def test_recording_a_run_keeps_what_was_changed_meanwhile(world: World) -> None:
    await world.hourly()
    stale = Scheduler(world.queue)
    await world.tick_at(START, stale)
    world.time = ONE
    submit = world.queue.submit

    async def slow(*args: Any) -> Task:
        task = await submit(*args)
        await world.schedules.update("report", priority=6)
        return task

    world.queue.submit = slow
    assert (await stale.tick()).failures == ()
    found = await world.schedules.get("report")
    assert (found.priority, found.last_run_at) == (6, ONE)
    assert found.last_task_id is not None


async def test_a_namesake_created_later_gets_runs_of_its_own(world: World) -> None:
    await world.hourly()
    await world.tick_at(ONE)
    await world.schedules.delete("report")
    await world.hourly()
    assert (await world.tick_at(ONE)).fired == 0, "its first run is still to come"
    assert (await world.tick_at(ONE + HOUR)).fired == 1
    assert len({task.id for task in await world.tasks()}) == 2


async def test_a_run_of_a_deleted_schedule_is_not_recorded_with_its_namesake(world: World) -> None:
    await world.hourly()
    world.time = ONE
    submit = world.queue.submit

    async def slow(*args: Any) -> Task:
        task = await submit(*args)
        await world.schedules.delete("report")
        await world.hourly(priority=1)
        return task

    world.queue.submit = slow
    assert (await world.scheduler.tick()).failures == ()
    found = await world.schedules.get("report")
    assert (found.last_run_at, found.last_task_id) == (None, None)


async def test_a_schedule_deleted_during_a_pass_does_not_come_back(world: World) -> None:
    await world.hourly()
    world.time = ONE
    submit = world.queue.submit

    async def slow(*args: Any) -> Task:
        task = await submit(*args)
        await world.schedules.delete("report")
        return task

    world.queue.submit = slow
    assert (await world.scheduler.tick()).failures == ()
    assert await world.schedules.list() == []


# The loop


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await holds():  # noqa: ASYNC110 - what is waited for is in the store, which has no events.
            await asyncio.sleep(0.001)


async def until_fired(world: World, count: int) -> None:
    async def holds() -> bool:
        return len(await world.tasks()) >= count

    await until(holds)


async def test_the_loop_fires_until_it_is_stopped(world: World) -> None:
    await world.hourly()
    stop = asyncio.Event()
    loop = asyncio.create_task(world.scheduler.run(stop, interval_s=0.001))
    for n in range(3):
        world.time = ONE + n * HOUR
        await until_fired(world, n + 1)
    stop.set()
    async with asyncio.timeout(10):
        await loop


async def test_the_loop_outlives_a_store_that_is_away(world: World) -> None:
    await world.hourly()
    world.time = ONE
    faulty = Faulty(world.store, FaultPlan(), Ambient.seeded(1))
    faulty.outage(True)
    stop = asyncio.Event()
    loop = asyncio.create_task(Scheduler(Queue(faulty)).run(stop, interval_s=0.001))

    async def failed_thrice() -> bool:
        return sum(faulty.injected.values()) >= 3

    await until(failed_thrice)
    faulty.outage(False)
    await until_fired(world, 1)
    stop.set()
    async with asyncio.timeout(10):
        await loop


async def test_a_stopped_loop_does_not_wait_for_its_interval(world: World) -> None:
    stop = asyncio.Event()
    loop = asyncio.create_task(world.scheduler.run(stop, interval_s=3600))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(10):
        await loop


@pytest.mark.parametrize("interval_s", [0, -1, float("nan")])
async def test_an_interval_that_is_none_is_refused(world: World, interval_s: float) -> None:
    with pytest.raises(UsageError, match="interval"):
        await world.scheduler.run(asyncio.Event(), interval_s=interval_s)
