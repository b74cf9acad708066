"""The queue of the test kit: time that stands still, a drain that skips over it, and assertions that say what is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

import qo
from qo.core.control import Target
from qo.errors import Unavailable
from qo.queue import control
from qo.testing import DrainFailed, Fault, FaultPlan, MemoryQueue, draining, virtual
from qo.testing.expected import matches
from qo.worker.api.context import Context

pytestmark = pytest.mark.fast

app = qo.App()


@app.task("work")
async def work(input: Any) -> Any:
    return input


@app.task("flaky")
def flaky(input: int, ctx: qo.BlockingContext) -> int:  # On a thread.
    if ctx.attempt < input:
        raise ConnectionError("not yet")
    return ctx.attempt


@app.task("wrong")
async def wrong(input: Any) -> None:
    raise qo.Reject(f"never {input}")


@app.task("later")
async def later(input: Any) -> None:
    raise qo.Reschedule(3600)


@app.task("again")
async def again(input: Any, ctx: Context) -> None:
    await ctx.submit("again")


async def test_time_stands_still_until_it_is_moved() -> None:
    queue = MemoryQueue()
    before = await queue.store.now()
    await asyncio.sleep(0.01)
    assert await queue.store.now() == before
    queue.advance(90)
    assert await queue.store.now() == before + timedelta(seconds=90)


async def test_a_drain_skips_over_delays_and_rests() -> None:
    queue = MemoryQueue()
    before = await queue.store.now()
    week_s = 7 * 86400
    await queue.submit("flaky", 4, qo.Options(delay_s=week_s))
    drained = await queue.drain(app)
    assert [task.output for task in drained.completed] == [4]
    assert (drained.attempts, drained.remaining) == (4, ())
    assert timedelta(seconds=week_s + 4) < await queue.store.now() - before < timedelta(seconds=week_s + 12)


async def test_a_drain_of_a_while_ends_then_and_no_later() -> None:
    queue = MemoryQueue()
    before = await queue.store.now()
    for delay_s in (0, 60, 3600, 3601):
        await queue.submit("work", delay_s, qo.Options(delay_s=delay_s))
    now = await queue.drain(app, for_s=0)
    assert [task.output for task in now.completed] == [0]
    later = await queue.drain(app, for_s=3600)
    assert [task.output for task in later.completed] == [60, 3600]
    assert await queue.store.now() == before + timedelta(hours=1)
    assert [task.input for task in later.remaining] == [3601]


async def test_every_failed_task_is_reported_with_its_error_and_where_it_was() -> None:
    queue = MemoryQueue()
    await queue.submit("work")
    await queue.submit("wrong", "one")
    await queue.submit("flaky", 9, qo.Options(max_retries=1))
    with pytest.raises(DrainFailed) as told:
        await queue.drain(app)
    said = str(told.value)
    assert said.startswith("2 of 3 tasks failed:\n")
    assert 'wrong  "one"  failed after 1 attempt: never one' in said
    assert "flaky  9  failed after 2 attempts: ConnectionError: not yet" in said
    assert 'raise ConnectionError("not yet")' in said


async def test_failures_that_may_be_are_given_and_told_once() -> None:
    queue = MemoryQueue()
    await queue.submit("wrong")
    drained = await queue.drain(app, may_fail=True)
    assert [task.last_error for task in drained.failed] == ["never None"]
    assert (await queue.drain(app)).ended == ()


async def test_what_nobody_handles_is_left() -> None:
    queue = MemoryQueue()
    task = await queue.submit("strange")
    drained = await queue.drain(app)
    assert (drained.ended, [left.id for left in drained.remaining]) == ((), [task.id])


async def test_what_a_dead_worker_held_is_taken_back_when_its_lease_is_over() -> None:
    queue = MemoryQueue()
    task = await queue.submit("work")
    await queue.claim(task.id, worker_id="dead", lease_s=600)
    held = await queue.drain(app, for_s=599)
    assert [left.status for left in held.remaining] == [qo.Status.RUNNING]
    drained = await queue.drain(app)
    assert [done.attempt for done in drained.completed] == [2]


async def test_what_is_paused_is_left() -> None:
    queue = MemoryQueue()
    await queue.submit("work")
    await queue.submit("flaky", 0)
    await control.pause(queue, Target(task_type="work"), by="test")
    assert [left.task_type for left in (await queue.drain(app)).remaining] == ["work"]
    await control.pause(queue, Target(), by="test")
    await queue.submit("flaky", 0)
    assert len((await queue.drain(app)).remaining) == 2


async def test_a_drain_without_an_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "ATTEMPTS_MAX", 50)
    monkeypatch.setattr(draining, "JUMPS_MAX", 5)
    queue = MemoryQueue()
    await queue.submit("again")
    with pytest.raises(DrainFailed, match="has not ended after 5"):
        await queue.drain(app)
    queue = MemoryQueue()
    await queue.submit("later")
    with pytest.raises(DrainFailed, match="has not ended after 6 attempts and 5 jumps"):
        await queue.drain(app)


async def test_large_values_are_as_good_as_small_ones() -> None:
    queue = MemoryQueue()
    large = {"text": "x" * 300_000}
    await queue.submit("work", large)
    assert queue.assert_enqueued("work", large).input == large
    assert (await queue.drain(app)).completed[0].output == large


async def test_an_assertion_finds_what_fits_and_else_says_what_waits() -> None:
    queue = MemoryQueue()
    first = await queue.submit("work", {"order": 7, "to": {"name": "ada"}}, qo.Options(priority=5, key="k"))
    await queue.submit("work", {"order": 8}, qo.Options(delay_s=3600))
    await queue.submit("other", None)
    assert queue.assert_enqueued("work").id == first.id
    assert queue.assert_enqueued("work", {"to": {"name": ANY}}, priority=5, key="k", delay_s=0).id == first.id
    queue.assert_enqueued("work", {"order": 8}, count=1, delay_s=pytest.approx(3600, abs=1))
    queue.assert_enqueued("other", None, count=1)
    queue.assert_enqueued("work", count=2)
    queue.refute_enqueued("work", {"order": 9})
    with pytest.raises(AssertionError) as told:
        queue.assert_enqueued("work", {"order": 9}, delay_s=60)
    assert str(told.value) == (
        "no task waits, of type 'work' with input {'order': 9}, delay_s 60\n"
        "what waits:\n"
        '  work  {"order": 7, "to": {"name": "ada"}}  priority=5  key=\'k\'\n'
        '  work  {"order": 8}  delay_s=3600\n'
        "  other  null"
    )
    with pytest.raises(AssertionError, match="2 tasks wait, not 3, of type 'work'"):
        queue.assert_enqueued("work", count=3)
    with pytest.raises(AssertionError, match="a task waits, of type 'other'"):
        queue.refute_enqueued("other")
    with pytest.raises(AssertionError, match="nothing waits"):
        MemoryQueue().assert_enqueued("work")


@pytest.mark.parametrize(
    ("wanted", "found", "fits"),
    [
        ({}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, [1], False),
        ([{"a": 1}], [{"a": 1, "b": 2}], True),
        ([1], [1, 2], False),
        ((1, 2), [1, 2], True),
        ("a", "a", True),
        (1.5, pytest.approx(1.5), True),
    ],
)
def test_of_an_object_what_is_named_must_be_so(wanted: Any, found: Any, fits: bool) -> None:
    assert matches(wanted, found) is fits


async def test_faults_change_nothing_of_what_becomes_of_tasks() -> None:
    queue = MemoryQueue(FaultPlan(refused=0.05, lost_reply=0.05, conflict=0.1, own_412=0.1), seed=4)
    for number in range(3):
        await queue.submit("work", number)
    queue.faults.inject(Fault.OUTAGE, times=7)
    drained = await queue.drain(app)
    assert sorted(task.output for task in drained.completed) == [0, 1, 2]
    assert queue.faults.injected[Fault.OUTAGE] == 7


async def test_a_store_that_stays_away_is_no_endless_drain() -> None:
    queue = MemoryQueue()
    await queue.submit("work")
    queue.faults.outage(True)
    with pytest.raises(Unavailable):
        await queue.drain(app)
    queue.assert_enqueued("work")  # Which looks at the truth, faults or not.


def test_in_virtual_time_the_queue_goes_with_its_loop() -> None:
    async def main() -> None:
        queue = MemoryQueue()
        before = await queue.store.now()
        await asyncio.sleep(3600)
        assert await queue.store.now() == before + timedelta(hours=1)
        queue.advance(60)
        assert await queue.store.now() == before + timedelta(hours=1, minutes=1)

    virtual.run(main())


async def test_the_same_seed_is_the_same_run() -> None:
    async def run(seed: int) -> list[str]:
        queue = MemoryQueue(seed=seed)
        for number in range(5):
            await queue.submit("work", number)
        return [task.id for task in (await queue.drain(app)).completed]

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)


def test_who_connects_meanwhile_gets_the_same_queue(qo_queue: MemoryQueue, qo_run: Any) -> None:
    async def submit() -> None:
        async with qo.connect() as queue:
            await queue.submit("work", "async")

    qo_run(submit())
    with qo.blocking() as (queue, run):
        run(queue.submit("work", "blocking"))
    assert len(qo_run(qo_queue.drain(app)).completed) == 2


async def test_an_async_test_awaits(qo_queue: MemoryQueue, qo_run: Any) -> None:
    await qo_queue.submit("work")
    assert len((await qo_queue.drain(app)).completed) == 1
    with pytest.raises(pytest.fail.Exception, match="await the call"):
        qo_run(qo_queue.submit("work"))


def test_afterwards_the_settings_are_what_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QO_STORE", f"local:{tmp_path}")
    with MemoryQueue().connected():
        pass
    assert qo.connect()._settings.store == f"local:{tmp_path}"


def test_who_uses_no_fixture_pays_nothing_for_the_plugin() -> None:
    look = (
        "import sys, qo.testing.plugin; print(sorted(name for name in sys.modules if name.split('.')[0] == 'qo'))"
    )
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == "['qo', 'qo.testing', 'qo.testing.plugin', 'qo.version']"
