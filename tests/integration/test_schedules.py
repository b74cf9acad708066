"""Schedules fire once for each planned moment, in their time zone, and catch up as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from qo.ambient import Ambient
from qo.core.schedule import CatchUp, next_run
from qo.errors import Unavailable, UsageError
from qo.queue.queue import Queue
from qo.queue.schedule_runner import Scheduler
from qo.queue.schedules import Schedules
from qo.store.memory import MemoryStore

pytestmark = pytest.mark.fast


# Far from any machine's clock: whoever reads that one instead of the store's is found out.
START = datetime(2041, 7, 3, 12, 0, 20, tzinfo=UTC)


ONE = datetime(2041, 7, 3, 13, tzinfo=UTC)


HOUR = timedelta(hours=1)


class World:
    def __init__(self) -> None:
        self.time = START
        self.queue = Queue(MemoryStore(clock=lambda: self.time), ambient=Ambient.seeded(3))
        self.schedules = Schedules(self.queue)
        self.scheduler = Scheduler(self.queue)

    async def fired_at(self, time: datetime) -> int:
        self.time = time
        return (await self.scheduler.tick()).fired


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.queue.close()


async def test_a_failed_submit_does_not_skip_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was once marked as done before its task was submitted."""
    await world.schedules.create("a", task_type="work", cron="0 * * * *", catch_up=CatchUp.ALL)

    async def refuse(*_: Any) -> None:
        raise Unavailable("no answer")

    world.time = ONE + HOUR
    with monkeypatch.context() as patch:
        patch.setattr(world.queue, "submit", refuse)
        report = await world.scheduler.tick()
    assert (report.fired, len(report.failures)) == (0, 1)
    assert "no answer" in report.failures[0]
    assert (await world.schedules.get("a")).last_run_at is None
    assert await world.fired_at(ONE + HOUR + timedelta(seconds=15)) == 2


async def test_a_submit_that_fails_midway_keeps_what_was_done_and_retries_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.schedules.create("a", task_type="work", cron="0 * * * *", catch_up=CatchUp.ALL)
    submit, calls = world.queue.submit, 0

    async def third_fails(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Unavailable("no answer")
        return await submit(*args)

    world.time = ONE + 3 * HOUR
    with monkeypatch.context() as patch:
        patch.setattr(world.queue, "submit", third_fails)
        assert (await world.scheduler.tick()).fired == 2
    assert (await world.schedules.get("a")).last_run_at == ONE + HOUR
    assert await world.fired_at(ONE + 3 * HOUR) == 2
    assert len(await world.queue.list()) == 4


async def test_the_last_task_id_is_the_id_of_the_task(world: World) -> None:
    """A placeholder once stayed there for ever, because its replacement was written with the wrong condition."""
    await world.schedules.create("a", task_type="work", cron="0 * * * *")
    seen: set[str] = set()
    for n in range(3):
        assert await world.fired_at(ONE + n * HOUR) == 1
        task = await world.queue.get((await world.schedules.get("a")).last_task_id or "")
        assert (task.schedule, task.created_at) == ("a", ONE + n * HOUR)
        seen.add(task.id)
    assert len(seen) == 3


async def test_the_time_zone_is_honoured(world: World) -> None:
    """It was once stored and ignored."""
    for zone in ("UTC", "Europe/Berlin", "America/New_York"):
        name = zone.lower().replace("/", "-")
        await world.schedules.create(name, task_type="work", cron="0 9 * * *", timezone=zone)
    fired: dict[str, int] = {}
    for hour in range(24):
        world.time = ONE + hour * HOUR
        await world.scheduler.tick()
        for task in await world.queue.list():
            fired.setdefault(str(task.schedule), (ONE + hour * HOUR).hour)
    assert fired == {"utc": 9, "europe-berlin": 7, "america-new_york": 13}
    berlin = await world.schedules.get("europe-berlin")
    assert berlin.last_run_at is not None
    assert berlin.last_run_at.astimezone(ZoneInfo("Europe/Berlin")).hour == 9


@pytest.mark.parametrize(("catch_up", "runs"), [(CatchUp.NONE, 0), (CatchUp.LAST, 1), (CatchUp.ALL, 6)])
async def test_the_catch_up_policy_is_honoured(world: World, catch_up: CatchUp, runs: int) -> None:
    """It was once stored and ignored."""
    await world.schedules.create("a", task_type="work", cron="0 * * * *", catch_up=catch_up)
    assert await world.fired_at(ONE + 5 * HOUR + timedelta(minutes=10)) == runs


@pytest.mark.parametrize("cron", ["* * * * *", "0 0 1 1 *", "0 12 * * *", "0 * * * *"])
async def test_a_new_schedule_does_not_fire_at_once(world: World, cron: str) -> None:
    """The first match since 1970 once counted as missed."""
    for catch_up in CatchUp:
        await world.schedules.create(catch_up.value, task_type="work", cron=cron, catch_up=catch_up)
    assert await world.fired_at(START) == 0
    assert await world.fired_at(START + timedelta(seconds=39)) == 0


async def test_a_new_schedule_fires_first_at_its_first_planned_moment(world: World) -> None:
    made = await world.schedules.create("a", task_type="work", cron="0 * * * *")
    assert next_run(made, START) == ONE
    assert await world.fired_at(ONE - timedelta(microseconds=1)) == 0
    assert await world.fired_at(ONE) == 1


@pytest.mark.parametrize(("day", "name"), [("0", "Sunday"), ("7", "Sunday"), ("1", "Monday"), ("6", "Saturday")])
async def test_days_of_the_week_are_counted_as_cron_counts_them(world: World, day: str, name: str) -> None:
    """Sunday was once 1, so that 0 was refused and 1-5 ran from Sunday to Thursday."""
    made = await world.schedules.create("a", task_type="work", cron=f"0 0 * * {day}")
    first = next_run(made, START)
    assert first is not None
    assert first.strftime("%A") == name


async def test_a_day_that_no_week_has_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="day-of-week"):
        await world.schedules.create("a", task_type="work", cron="0 0 * * 8")


async def test_only_the_clock_of_the_store_counts(world: World) -> None:
    """Each scheduler once went by its machine's clock, and two of them by two."""
    made = await world.schedules.create("a", task_type="work", cron="* * * * *", catch_up=CatchUp.ALL)
    assert made.created_at == START
    assert await world.fired_at(START) == 0
    for minute in range(1, 4):
        assert await world.fired_at(START + timedelta(minutes=minute)) == 1
    tasks = await world.queue.list()
    assert {task.created_at.year for task in tasks} == {2041}


async def test_two_schedulers_never_fire_one_run_twice(world: World) -> None:
    await world.schedules.create("a", task_type="work", cron="* * * * *", catch_up=CatchUp.ALL)
    schedulers = [Scheduler(Queue(world.queue.store, ambient=Ambient.seeded(n))) for n in range(2)]
    for minute in range(1, 11):
        world.time = START + timedelta(minutes=minute)
        await asyncio.gather(*(scheduler.tick() for scheduler in schedulers))
    assert len(await world.queue.list()) == 10
