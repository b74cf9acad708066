"""Cron sources: each planned moment is said once, by the dispatcher's clock, whoever runs and whoever dies."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa

from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, pausing
from qo.errors import UsageError
from qo.scheduler import cron
from qo.scheduler.service import run_scheduler
from qo.scheduler.timetable import Memory, Plan, latest_memory
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipelines import dag, deployed, edited, source, staged
from support.dispatcher.states import Clock

HOURLY = dag("d", source("tick", "cron", of={"schedule": "0 * * * *"}))
BERLIN = Plan("30 2 * * *", "Europe/Berlin")


def said(state: State) -> list[tuple[int, str]]:
    table = schema.events
    with state.read() as tx:
        found = tx.execute(sa.select(table.c.cursor, table.c.attributes).order_by(table.c.seq))
        return [(row.cursor, row.attributes["scheduled_at"]) for row in found]


async def test_a_new_plan_fires_only_for_what_comes_after(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    emitter = LocalEmitter(state)
    looked = await cron.poll(emitter)
    assert (looked.sources, looked.emitted) == (1, 0)
    state_clock.advance(3600)
    assert (await cron.poll(emitter)).emitted == 1
    assert (await cron.poll(emitter)).emitted == 0
    ((cursor, at),) = said(state)
    assert datetime.fromisoformat(at) == datetime.fromtimestamp(cursor, UTC)
    assert cursor % 3600 == 0


async def test_of_what_was_missed_only_the_latest_is_made_up_for(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(10 * 3600)
    assert (await cron.poll(emitter)).emitted == 1
    with state.read() as tx:
        now = tx.now
    ((cursor, _),) = said(state)
    assert now - datetime.fromtimestamp(cursor, UTC) < timedelta(hours=1)


async def test_two_schedulers_say_each_moment_once(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    one, other = LocalEmitter(state), LocalEmitter(state)
    await cron.poll(one)
    for _ in range(3):
        state_clock.advance(3600)
        await asyncio.gather(cron.poll(one), cron.poll(other))
    assert len(said(state)) == one.new + other.new == 3


async def test_a_firing_whose_answer_was_lost_is_said_again_to_no_effect(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(3600)
    emitter.fails = 1
    assert len((await cron.poll(emitter)).failures) == 1
    assert (await cron.poll(emitter)).emitted == 1
    assert (len(said(state)), emitter.new) == (1, 0)


async def test_a_changed_plan_does_not_fire_for_the_past(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(600)
    answer = staged(state, edited(HOURLY, "tick", source={"kind": "cron", "schedule": "* * * * *"}))
    with state.write() as tx:
        cutover.activate(tx, "d", answer.version, "anna", force=True)
    assert (await cron.poll(emitter)).emitted == 0
    state_clock.advance(60)
    assert (await cron.poll(emitter)).emitted == 1


async def test_a_paused_source_is_silent_and_makes_up_for_the_latest_when_resumed(
    state: State, state_clock: Clock
) -> None:
    deployed(state, HOURLY)
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    with state.write() as tx:
        pausing.pause(tx, "d.tick", "holidays", "anna")
    state_clock.advance(5 * 3600)
    assert (await cron.poll(emitter)).emitted == 0
    with state.write() as tx:
        pausing.resume(tx, "d.tick", "anna")
    assert (await cron.poll(emitter)).emitted == 1


def announced(state: State) -> list[str]:
    table = schema.events
    with state.read() as tx:
        return list(tx.execute(sa.select(table.c.partition_key).order_by(table.c.seq)).scalars())


async def test_a_source_with_partitions_announces_each_one_that_was_missed(
    state: State, state_clock: Clock
) -> None:
    nightly = {"schedule": "0 3 * * *", "timezone": "Europe/Berlin", "offset": -1}
    days = {"kind": "day", "timezone": "Europe/Berlin", "weekdays": "MON-FRI"}
    deployed(state, dag("d", source("tick", "cron", of=nightly, partitions=days)))
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    with state.read() as tx:
        begin = tx.now
    state_clock.advance(10 * 86_400)
    assert (await cron.poll(emitter)).emitted == len(announced(state))
    assert (await cron.poll(emitter)).emitted == 0
    with state.read() as tx:
        times = Plan("0 3 * * *", "Europe/Berlin").times(begin, tx.now, 20)
    before = [(at.astimezone(ZoneInfo("Europe/Berlin")) - timedelta(days=1)).date() for at in times]
    assert announced(state) == [str(day) for day in before if day.weekday() < 5]


async def test_of_times_in_one_partition_the_last_is_announced(state: State, state_clock: Clock) -> None:
    deployed(state, dag("d", source("tick", "cron", of={"schedule": "0 * * * *"}, partitions={"kind": "month"})))
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(5 * 3600)
    assert (await cron.poll(emitter)).emitted in (1, 2)  # Two at the turn of a month.
    assert len(set(announced(state))) == len(announced(state))


async def test_what_was_missed_for_long_is_announced_in_turns(state: State, state_clock: Clock) -> None:
    deployed(state, dag("d", source("tick", "cron", of={"schedule": "0 0 * * *"}, partitions={"kind": "day"})))
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(50 * 86_400)
    first = await cron.poll(emitter)
    assert (first.emitted, first.wait_s) == (cron.MADE_UP_AT_ONCE, cron.HELD_INTERVAL_S)
    while (await cron.poll(emitter)).emitted:
        pass
    assert len(announced(state)) == len(set(announced(state))) == 50


async def test_a_plan_that_cannot_be_read_does_not_keep_the_others(state: State, state_clock: Clock) -> None:
    bad = source("bad", "cron", of={"schedule": "rate(0 minutes)"})
    deployed(state, dag("d", bad, source("good", "cron", of={"schedule": "rate(1 minute)"})))
    emitter = LocalEmitter(state)
    await cron.poll(emitter)
    state_clock.advance(60)
    looked = await cron.poll(emitter)
    assert (looked.emitted, len(looked.failures)) == (1, 1)
    assert "d.bad" in looked.failures[0]


async def test_the_scheduler_waits_for_what_is_due_and_ends_when_told(state: State, state_clock: Clock) -> None:
    deployed(state, HOURLY)
    emitter, stop = LocalEmitter(state), asyncio.Event()
    await cron.poll(emitter)
    state_clock.advance(3600)
    async with asyncio.timeout(30):
        running = asyncio.create_task(run_scheduler(emitter, stop))
        await emitter.heard.wait()
        stop.set()
        await running
    assert len(said(state)) == 1


@pytest.mark.fast
def test_rates_count_from_1970_so_that_all_schedulers_agree() -> None:
    plan, now = Plan("rate(5 minutes)"), datetime(2026, 1, 1, 12, 3, tzinfo=UTC)
    assert plan.latest(now - timedelta(minutes=4), now) == datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
    assert plan.latest(now - timedelta(minutes=2), now) is None
    assert plan.following(now) == datetime(2026, 1, 1, 12, 5, tzinfo=UTC)
    assert Plan("rate( 1 day )").following(now) == datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.fast
@pytest.mark.parametrize(
    "schedule", ["rate(0 minutes)", "rate(5 weeks)", "rate(5)", "rate(-1 hours)", "* * *", "x"]
)
def test_what_is_no_plan_is_named(schedule: str) -> None:
    with pytest.raises(UsageError):
        Plan(schedule).following(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.fast
def test_plans_follow_their_time_zone_over_a_change_of_clocks() -> None:
    # 02:30 does not exist on 29 March 2026 in Berlin: it runs once, at the first moment after the gap.
    after = BERLIN.following(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert after == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    # On 25 October it exists twice and runs the first time.
    first = BERLIN.following(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert first == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert BERLIN.following(first) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.fast
def test_only_a_memory_of_the_same_plan_counts_and_the_furthest_of_them() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    kept = tuple(Memory(BERLIN, at).to_json() for at in (late, early))
    assert latest_memory(BERLIN, (*kept, None, 7, {})) == Memory(BERLIN, late)
    assert latest_memory(Plan("30 2 * * *"), kept) is None
